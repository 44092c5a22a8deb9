"""A long text, cut where it hurts least: between paragraphs, else lines or sentences, else words, else anywhere."""

import re
from collections.abc import Callable, Iterator, Sequence

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ROW = re.compile(r"[ \t]*([-*+•|>]|\d+[.)])[ \t]|[ \t]*\||\t| {4}")
"""A line of a list, a table or code."""
_LINE = re.compile(r"[^\n]*\n(?:[ \t]*\n)*|[^\n]+")
_SENTENCE_END = re.compile(r"(?<!\d)[.!?…][\"'”’»)\]]*\s+|[。！？][”’」』）]*\s*")
_WORD = re.compile(r"\s*\S+\s*")

_Split = Callable[[str, int], Iterator[str]]


def cut(text: str, most: int) -> Iterator[str]:
    """Pieces of at most `most` characters (1 or more), without empty lines at their ends. Together they are the text,
    blanks between them aside. A block of code (```) and a table are in one piece where they fit into one."""
    for piece in _pack(text, most, (_blocks, _parts, _words, _anywhere)):
        piece = piece.strip("\n").rstrip()
        # Blanks before the first word are kept (the first line of code) where there is room for them.
        piece = piece if len(piece) <= most else piece.lstrip()
        if piece.strip():
            yield piece


def _pack(text: str, most: int, splits: Sequence[_Split]) -> Iterator[str]:
    """Parts by the first way to split, as many in a piece as fit; one that is too long alone is split the next way.
    Blanks at the ends of a piece do not count."""
    piece = ""
    for part in splits[0](text, most):
        if len((piece + part).strip()) <= most:
            piece += part
            continue
        if piece:
            yield piece
        if len(part.strip()) <= most:
            piece = part
        else:
            *whole, piece = _pack(part, most, splits[1:])
            yield from whole
    if piece:
        yield piece


def _blocks(text: str, most: int) -> Iterator[str]:
    """Blocks with the empty lines behind them; an open fence holds the lines up to its end together."""
    block: list[str] = []
    fence = ""
    for match in _LINE.finditer(text):
        line = match[0]
        block.append(line)
        if mark := _FENCE.match(line):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
        if not fence and line.count("\n") > 1:
            yield "".join(block)
            block = []
    yield "".join(block)


def _parts(block: str, most: int) -> Iterator[str]:
    """The lines of a list, a table or code, and the sentences of anything else."""
    lines = [match[0] for match in _LINE.finditer(block)]
    if _FENCE.match(block) or 2 * sum(1 for line in lines if _ROW.match(line)) >= len(lines):
        yield from lines
        return
    begin = 0
    for match in _SENTENCE_END.finditer(block):
        yield block[begin : match.end()]
        begin = match.end()
    yield block[begin:]


def _words(text: str, most: int) -> Iterator[str]:
    for match in _WORD.finditer(text):
        yield match[0]


def _anywhere(text: str, most: int) -> Iterator[str]:
    text = text.strip()
    for begin in range(0, len(text), most):
        yield text[begin : begin + most]
