"""What is read of PDF files made by hand, and what is refused."""

import io

import pytest
from pypdf import PdfReader, PdfWriter

from backends.retrievers.folder import formats, formats_pdf
from backends.retrievers.folder.chunking import Section
from backends.retrievers.folder.formats_base import Unreadable
from tests.backends.retrievers.folder.pdfs import pages, pdf, shown, stream


def refusal(data: bytes) -> str:
    with pytest.raises(Unreadable) as caught:
        formats.read("a.pdf", data)
    return str(caught.value)


def encrypted(password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pages([stream(shown("secret"))]))))
    writer.encrypt(password, owner_password="owner", algorithm="AES-256")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def bookmark(title: str, page: int, *, parent: int, following: int | None = None, first: int | None = None) -> bytes:
    more = b"/Next %d 0 R" % following if following else b""
    more += b"/First %d 0 R /Last %d 0 R" % (first, first) if first else b""
    return b"<< /Title (%s) /Parent %d 0 R /Dest [%d 0 R /Fit] %s >>" % (title.encode(), parent, 4 + 2 * page, more)


def test_each_page_is_read_below_its_number() -> None:
    contents = [stream(shown("First line\nsecond line")), stream(b""), stream(shown("Third page"), packed=1)]
    assert formats.read("a.PDF", pages(contents)) == [
        Section(("page 1",), "First line\nsecond line"),
        Section(("page 3",), "Third page"),
    ]


def test_the_outline_gives_headings() -> None:
    outlines = 4 + 2 * 4  # behind four pages
    part, chapter, last = outlines + 1, outlines + 2, outlines + 3
    data = pages(
        [stream(shown(f"text {n}")) for n in range(4)],
        catalogue=b"/Outlines %d 0 R" % outlines,
        more=[
            b"<< /Type /Outlines /First %d 0 R /Last %d 0 R /Count 3 >>" % (part, last),
            bookmark("Part", 1, parent=outlines, following=last, first=chapter),
            bookmark("Chapter", 1, parent=part),
            bookmark("Last", 3, parent=outlines),
        ],
    )
    assert formats.read("a.pdf", data) == [
        Section(("page 1",), "text 0"),
        Section(("Part", "page 2"), "text 1"),
        Section(("Part", "Chapter", "page 3"), "text 2"),
        Section(("Last", "page 4"), "text 3"),
    ]


def test_an_outline_that_leads_round_in_circles_gives_none() -> None:
    outlines = 6
    data = pages(
        [stream(shown("text"))],
        catalogue=b"/Outlines %d 0 R" % outlines,
        more=[
            b"<< /Type /Outlines /First 7 0 R /Last 7 0 R >>",
            bookmark("Round", 0, parent=outlines, following=7, first=7),
        ],
    )
    [section] = formats.read("a.pdf", data)
    assert section.text == "text"


def test_a_file_that_needs_no_password_is_read() -> None:
    assert formats.read("a.pdf", encrypted("")) == [Section(("page 1",), "secret")]


def test_a_file_with_a_password_is_refused() -> None:
    assert refusal(encrypted("geheim")) == "is encrypted"


def test_a_scan_has_no_text() -> None:
    assert refusal(pages([stream(b"0 0 100 100 re f")])) == "has no text"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is no PDF file"),
        (b"# Markdown", "is no PDF file"),
        (b"%PDF-1.7\n", "is a broken PDF file"),
        (b"%PDF-1.7\n" + bytes(range(256)) * 10, "is a broken PDF file"),
        (pages([stream(shown("text"))])[:300], "is a broken PDF file"),
        (pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"[]"]), None),
        (pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>"]), None),
    ],
    ids=["empty", "Markdown", "head", "noise", "cut", "no pages", "pages in circles"],
)
def test_a_broken_file_is_refused(data: bytes, reason: str | None) -> None:
    """Without a reason here: pypdf has no word for it, and the reading process says that it is broken."""
    if reason is None:
        with pytest.raises(Exception):  # noqa: B017, PT011
            formats.read("a.pdf", data)
    else:
        assert refusal(data) == reason


@pytest.mark.parametrize("packed", [1, 2])
def test_a_stream_that_grows_without_end_is_refused(packed: int) -> None:
    data = pages([stream(b" " * 100_000_000, packed=packed)])
    assert len(data) < 500_000
    assert refusal(data) == "is a broken PDF file"


def test_a_file_with_very_many_pages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats_pdf, "MAX_PAGES", 3)
    assert refusal(pages([stream(b"")] * 4)) == "has more than 3 pages"
