"""From a document's sections to pieces that a model can embed.

A section with all that is below its heading is one piece where that fits. Where not, what stands under the heading
itself is cut, and each section below it is looked at on its own. So where a piece begins depends on its own section and
those around it that are no larger than a piece: an edit elsewhere in the document leaves it as it is, and its vector
with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile, zip_longest

from backends.retrievers.folder.cutting import cut

MOST = 600
"""Characters of a piece: with its title nearly all are within the 256 tokens of all-MiniLM-L6-v2. (Measured on real
documentation: 4 % have more; 27 % of those of 1,000 characters.)"""
SEPARATOR = " > "
_BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True)
class Section:
    """The text under a heading, up to the next one. `headings` are all above the text, the widest first."""

    headings: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """`title` has the headings above the text, joined by " > "; it may be ""."""

    title: str
    text: str


def chunks(sections: Sequence[Section], *, most: int) -> list[Piece]:
    """Pieces of at most `most` (1 or more) characters of text, in the order of the document.

    Nothing but blanks is lost, and nothing is there twice. Where a piece has sections below its own, their headings are
    lines of its text.
    """
    # A heading right above another one is in the titles of what is below that.
    heard = [
        section
        for section, following in zip_longest(sections, sections[1:])
        if section.text.strip() or following is None or not _above(section.headings, following.headings)
    ]
    return list(_pieces(heard, 0, most))


def _above(upper: tuple[str, ...], lower: tuple[str, ...]) -> bool:
    return lower[: len(upper)] == upper


def _pieces(sections: Sequence[Section], depth: int, most: int) -> Iterator[Piece]:
    """Those of sections next to each other that share their first `depth` headings."""
    for key, group in groupby(sections, lambda section: section.headings[: depth + 1]):
        part = list(group)
        if len(key) <= depth:
            for section in part:
                yield from _own(section, most)
        elif (text := _joined(part, key, most)) is not None:
            yield Piece(SEPARATOR.join(key), text)
        else:
            yield from _pieces(part, depth + 1, most)


def _joined(sections: Sequence[Section], above: tuple[str, ...], most: int) -> str | None:
    """The text of sections below the headings `above`; None where it is too long."""
    blocks: list[str] = []
    size = -len(_BETWEEN)
    for section in sections:
        block = "\n".join(filter(None, [*_new(section.headings, above), section.text.strip("\n").rstrip()]))
        above = section.headings
        if block:
            blocks.append(block)
            size += len(_BETWEEN) + len(block)
        if size > most:
            return None
    return _BETWEEN.join(blocks) or None


def _new(headings: tuple[str, ...], before: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the headings that begin here, after a section with the headings `before`."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(headings, before, strict=False)))
    return headings[same:]


def _own(section: Section, most: int) -> Iterator[Piece]:
    # A heading with nothing below it says something too.
    text = section.text if section.text.strip() else "".join(section.headings[-1:])
    for piece in cut(text, most):
        yield Piece(SEPARATOR.join(section.headings), piece)
