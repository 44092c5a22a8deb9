"""Plain text: which bytes are text at all, in which encoding, and the headings of reStructuredText."""

import codecs
import re

from backends.retrievers.folder.chunking import Section
from backends.retrievers.folder.formats_base import Outline, Unreadable

_BOMS = (  # the longer ones first: that of UTF-16 begins that of UTF-32
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # not those that move about on a page, and escape
MAX_CONTROLS = 0.01
"""Of the characters; a log may have some."""
MAX_HIGH = 0.3
"""Of the bytes of a text in an old 8-bit encoding; in one of few letters beyond ASCII there are far less."""

_RULE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*")


def decode(data: bytes, encoding: str = "") -> str:
    """The text; `encoding` is tried where it is not UTF-8. Raises Unreadable where it is none."""
    for bom, name in _BOMS:
        if data.startswith(bom):
            return _text(data[len(bom) :].decode(name, "replace"))
    try:
        return _text(data.decode("utf-8"))
    except UnicodeDecodeError:
        pass
    if encoding:
        return _text(data.decode(encoding, "replace"))
    high = sum(map(len, re.findall(b"[\x80-\xff]+", data)))
    try:
        # Latin-1, with the quotation marks that Windows has put in.
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        raise Unreadable("is binary") from None
    if high > MAX_HIGH * len(data) or _CONTROLS.search(text):
        raise Unreadable("is binary")
    return text


def _text(text: str) -> str:
    if "\0" in text or len(_CONTROLS.findall(text)) > MAX_CONTROLS * len(text):
        raise Unreadable("is binary")
    return text


def read_text(data: bytes) -> list[Section]:
    """Raises Unreadable."""
    outline = Outline()
    outline.text(decode(data))
    return outline.sections()


def read_rst(data: bytes) -> list[Section]:
    """A heading is a line with a line of one punctuation mark below, as long as it or longer, and perhaps one above;
    each new kind of line is a level deeper. All else is kept as it is written. Raises Unreadable."""
    lines = decode(data).splitlines()
    outline = Outline()
    levels: dict[str, int] = {}
    body: list[str] = []
    number = 0
    while number < len(lines):
        title, style, taken = _heading(lines, number)
        if taken:
            outline.text("\n".join(body))
            body = []
            outline.heading(levels.setdefault(style, len(levels)), title)
            number += taken
        else:
            body.append(lines[number])
            number += 1
    outline.text("\n".join(body))
    return outline.sections()


def _heading(lines: list[str], number: int) -> tuple[str, str, int]:
    """The heading that begins in this line: its title, the kind of its lines, and how many lines it takes; or 0."""
    first, second, third = (line.rstrip() for line in (*lines[number : number + 3], "", "")[:3])
    above = number == 0 or not lines[number - 1].strip()  # a heading begins after an empty line
    if not above:
        return "", "", 0
    if _RULE.fullmatch(first) and second.strip() and third == first and len(first) >= len(second.strip()):
        return second.strip(), first[0] * 2, 3
    if _word(first) and _RULE.fullmatch(second) and len(second) >= len(first):
        return first, second[0], 2
    return "", "", 0


def _word(text: str) -> bool:
    return bool(text) and not text[0].isspace() and not _RULE.fullmatch(text)
