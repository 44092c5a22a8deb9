"""From the bytes of a document to its sections, by the suffix of its name."""

import os
from collections.abc import Callable
from importlib import import_module

from backends.retrievers.folder.chunking import Section
from backends.retrievers.folder.formats_base import Unreadable

_HERE = "backends.retrievers.folder"
_READERS = {
    "": ("formats_text", "read_text"),
    ".txt": ("formats_text", "read_text"),
    ".rst": ("formats_text", "read_rst"),
    ".md": ("formats_markdown", "read_markdown"),
    ".markdown": ("formats_markdown", "read_markdown"),
    ".html": ("formats_html", "read_html"),
    ".htm": ("formats_html", "read_html"),
    ".pdf": ("formats_pdf", "read_pdf"),
}
SUFFIXES = frozenset(_READERS)
"""In small letters. Files without one (README) are documents where they are text."""


def read(document: str, data: bytes) -> list[Section]:
    """Raises Unreadable, and whatever a parser of foreign files may raise."""
    suffix = os.path.splitext(document)[1].lower()
    if suffix not in _READERS:
        raise Unreadable(f"is of a kind that is not read ({suffix})")
    module, name = _READERS[suffix]
    # Only when one is needed: the parser of PDF files takes half a second to import.
    reader: Callable[[bytes], list[Section]] = getattr(import_module(f"{_HERE}.{module}"), name)
    sections = reader(data)
    if not sections:
        raise Unreadable("has no text")
    return sections
