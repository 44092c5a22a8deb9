"""What all readers of documents share: the reason why one cannot be read, their bounds, headings above text."""

import re
import unicodedata
from collections.abc import Sequence

from backends.retrievers.folder.chunking import Section

MAX_TEXT = 2_000_000
"""Characters of one document, headings included: a book of 700 pages."""
MAX_SECTIONS = 20_000
MAX_HEADING = 120
"""Characters; a longer heading is cut, and is then in the text as a whole too."""
MAX_LEVELS = 7
"""Headings above a text: a title and h1 to h6."""

_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")


class Unreadable(Exception):
    """A document that gives no text. The reason reads on behind its name: "is binary"."""


def normal(text: str) -> str:
    """The text in NFC, with line ends of one kind, without control characters (but tabs) and lone surrogates."""
    text = _CONTROLS.sub("", _LINE_ENDS.sub("\n", text))
    return unicodedata.normalize("NFC", _SURROGATES.sub("\ufffd", text))


def line(text: str) -> str:
    """The normal text as one line, each run of blanks as one blank."""
    return " ".join(normal(text).split())


class Outline:
    """Makes sections of headings and texts that come in the order of the document."""

    def __init__(self) -> None:
        self._sections: list[Section] = []
        self._above: list[tuple[int, str]] = []
        self._texts: list[str] = []
        self._begun = False  # a section that has no text yet, but a heading
        self._size = 0

    def heading(self, level: int, title: str) -> None:
        """The smaller the level, the wider what is below the heading. Raises Unreadable."""
        title = line(title)
        if not title:
            return
        self._end()
        self._count(title)
        self._above = [above for above in self._above if above[0] < level][: MAX_LEVELS - 1]
        self._above.append((level, _short(title)))
        self._begun = True
        if len(title) > MAX_HEADING:
            self._texts.append(title)

    def below(self, headings: Sequence[str]) -> None:
        """What comes next is below these headings. Raises Unreadable."""
        self._end()
        self._above = [(level, _short(heading)) for level, heading in enumerate(headings)]

    def text(self, text: str) -> None:
        """A block of text; between two there is an empty line. Raises Unreadable."""
        text = normal(text).strip("\n").rstrip()
        if text:
            self._count(text)
            self._texts.append(text)

    def sections(self) -> list[Section]:
        """Raises Unreadable."""
        self._end()
        return self._sections

    def _count(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_TEXT:
            raise Unreadable(f"has more than {MAX_TEXT:,} characters of text")

    def _end(self) -> None:
        if not self._texts and not self._begun:
            return
        self._sections.append(Section(tuple(title for _, title in self._above), "\n\n".join(self._texts)))
        if len(self._sections) > MAX_SECTIONS:
            raise Unreadable(f"has more than {MAX_SECTIONS:,} headings")
        self._texts = []
        self._begun = False


def _short(heading: str) -> str:
    return heading if len(heading) <= MAX_HEADING else heading[: MAX_HEADING - 1] + "…"
