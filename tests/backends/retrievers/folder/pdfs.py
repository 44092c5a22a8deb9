"""PDF files made by hand: as small as they can be, and as wrong as a test wants them."""

import zlib
from collections.abc import Sequence


def pdf(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """A file with these objects, numbered from 1; the first is the catalogue."""
    data = b"%PDF-1.7\n"
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return data + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n"
        % (size, table, size, trailer, len(data))
    )


def stream(data: bytes, *, packed: int = 0) -> bytes:
    """`packed`: how often it is compressed."""
    for _ in range(packed):
        data = zlib.compress(data, 9)
    filters = b"/Filter [%s]" % b" ".join([b"/FlateDecode"] * packed) if packed else b""
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), filters, data)


def shown(text: str) -> bytes:
    """The content of a page with lines of plain ASCII."""
    lines = b" T* ".join(b"(%s) Tj" % line.encode() for line in text.split("\n"))
    return b"BT /F1 12 Tf 14 TL 72 720 Td %s ET" % lines


def pages(contents: Sequence[bytes], *, catalogue: bytes = b"", more: Sequence[bytes] = ()) -> bytes:
    """A file with a page for each content stream (see `stream`). Page n (from 0) is object 4 + 2n; `more` are the
    objects behind the pages."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R %s >>" % catalogue,
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, content in enumerate(contents):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * n)
        )
        objects.append(content)
    return pdf([*objects, *more])
