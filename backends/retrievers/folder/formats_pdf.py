"""PDF: the text of each page, below the headings of the outline and the page's number."""

import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pypdf import PdfReader
from pypdf.errors import FileNotDecryptedError, PyPdfError
from pypdf.generic import Destination

from backends.retrievers.folder.chunking import Section
from backends.retrievers.folder.formats_base import MAX_LEVELS, Outline, Unreadable, line

MAX_PAGES = 5_000
MAX_BOOKMARKS = 10_000


def read_pdf(data: bytes) -> list[Section]:
    """Raises Unreadable, and whatever pypdf raises for files that are broken in a way that it does not know."""
    if b"%PDF-" not in data[:1024]:
        raise Unreadable("is no PDF file")
    try:
        reader = PdfReader(io.BytesIO(data))
        # Many files are encrypted with no password, only to say that they may not be printed.
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("is encrypted")
        return _sections(reader)
    except FileNotDecryptedError:
        raise Unreadable("is encrypted") from None
    except PyPdfError:
        raise Unreadable("is a broken PDF file") from None


def _sections(reader: PdfReader) -> list[Section]:
    if len(reader.pages) > MAX_PAGES:
        raise Unreadable(f"has more than {MAX_PAGES:,} pages")
    bookmarks = _bookmarks(reader)
    outline = Outline()
    above: list[tuple[int, str]] = []
    for number, page in enumerate(reader.pages):
        here = bookmarks.get(number, [])
        # What begins on a page mostly begins at its top; more of it counts from the next page on.
        above = _path(above, here[:1])
        outline.below([*(title for _, title in above[: MAX_LEVELS - 1]), f"page {number + 1}"])
        outline.text(page.extract_text())
        above = _path(above, here[1:])
    return outline.sections()


def _path(above: list[tuple[int, str]], bookmarks: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The headings above what follows these (level, title)."""
    for level, title in bookmarks:
        above = [*(heading for heading in above if heading[0] < level), (level, title)]
    return above


def _bookmarks(reader: PdfReader) -> dict[int, list[tuple[int, str]]]:
    """(level, title) of those that are on a page, by its number; none where the outline is broken."""
    found: dict[int, list[tuple[int, str]]] = {}
    try:
        for level, entry in islice(_entries(reader), MAX_BOOKMARKS):
            page = reader.get_destination_page_number(entry)
            if page is not None and (title := line(str(entry.title or ""))):
                found.setdefault(page, []).append((level, title))
    except (PyPdfError, ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        return {}
    return found


def _entries(reader: PdfReader) -> Iterator[tuple[int, Destination]]:
    """With their levels. The entries below one are a list behind it."""
    waiting: list[tuple[int, Any]] = [(0, reader.outline)]
    while waiting:
        level, entry = waiting.pop()
        if isinstance(entry, list):
            waiting += [(level + 1, inner) for inner in reversed(entry)]
        else:
            yield level, entry
