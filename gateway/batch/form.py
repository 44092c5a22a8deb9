"""The form that brings a file, `multipart/form-data`: bytes in, the file's bytes and what is said of it out. No I/O.

Its fields may come in any order, and each of them once. Those that are none of ours are passed over.
"""

import logging
import re
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import ApiError, bad_request, shorten

MAX_PARTS = 16
MAX_HEADERS = 8
MAX_HEADER = 4 * 1024
MAX_FIELD = 1024
MAX_FILENAME = 255
MAX_BOUNDARY = 70
"""So many characters are allowed by RFC 2046."""
UNNAMED = "upload"
FILE, PURPOSE, ANCHOR, SECONDS = "file", "purpose", "expires_after[anchor]", "expires_after[seconds]"
SHORTEST, LONGEST = 3_600, 30 * 86_400

# What is wrong with a form is for its sender to know, not for the log.
logging.getLogger("python_multipart.multipart").disabled = True


@dataclass(frozen=True)
class Upload:
    """What came beside the file's bytes. It lives so many seconds; None: its sender did not say."""

    purpose: str
    filename: str
    lives: float | None
    size: int


def boundary_of(content_type: bytes | None) -> bytes:
    """What stands between the parts. Raises ApiError 415 where it is no such form, and 400."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        text = "A file is uploaded as `multipart/form-data`, with the fields `purpose` and `file`."
        raise ApiError(415, text, code="unsupported_content_type")
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= MAX_BOUNDARY:
        raise _malformed(f"its `boundary`, which Content-Type names, must have 1 to {MAX_BOUNDARY} characters")
    return boundary


class Form:
    """Reads a form; `limit` is how large the file may be. Once it has raised ApiError it is of no more use."""

    def __init__(self, boundary: bytes, limit: int) -> None:
        self._limit = limit
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header,
                "on_headers_finished": self._named,
                "on_part_data": self._data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER,
        )
        self._parts = 0
        self._header_is, self._header_says = b"", b""
        self._disposition = b""
        self._name = ""
        self._value = b""
        self._fields: dict[str, bytes] = {}
        self._filename = ""
        self._size = 0
        self._file = bytearray()  # what was not taken yet
        self._ended = False

    @property
    def held(self) -> int:
        """So many of the file's bytes are there to be taken."""
        return len(self._file)

    def feed(self, data: bytes) -> None:
        """Raises ApiError 400 or 413."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(shorten(str(error), 200)) from None

    def take(self) -> bytes:
        """The file's bytes since the last time."""
        taken = bytes(self._file)
        self._file.clear()
        return taken

    def close(self) -> Upload:
        """There is no more of it. Raises ApiError 400."""
        if not self._ended:
            raise _malformed("it ends before its last boundary")
        if FILE not in self._fields:
            raise bad_request("`file` is required: the file itself.", param=FILE)
        if not self._size:
            raise bad_request("The file is empty.", param=FILE, code="empty_file")
        if PURPOSE not in self._fields:
            raise bad_request("`purpose` is required: 'batch'.", param=PURPOSE)
        return Upload(self._fields[PURPOSE].decode(), self._filename, self._lives(), self._size)

    def _lives(self) -> float | None:
        anchor, seconds = self._fields.get(ANCHOR), self._fields.get(SECONDS)
        if anchor is None and seconds is None:
            return None
        if anchor != b"created_at":
            raise bad_request(f"`{ANCHOR}` must be 'created_at'.", param=ANCHOR)
        if seconds is None or not re.fullmatch(rb"[0-9]{1,9}", seconds) or not SHORTEST <= int(seconds) <= LONGEST:
            text = f"`{SECONDS}` must be a whole number from {SHORTEST} to {LONGEST}."
            raise bad_request(text, param=SECONDS)
        return float(seconds)

    # What the parser calls.

    def _part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _malformed(f"it has more than {MAX_PARTS} parts")
        self._disposition = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_is += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_says += data[start:end]

    def _header(self) -> None:
        if self._header_is.lower() == b"content-disposition":
            self._disposition = self._header_says
        self._header_is, self._header_says = b"", b""

    def _named(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if name is None:
            raise _malformed("a part has no name")
        self._name = name.decode("utf-8", "replace")
        if self._name in self._fields:
            raise bad_request(f"`{shorten(self._name)}` occurs twice.", param=shorten(self._name))
        self._fields[self._name] = b""
        self._value = b""
        if self._name == FILE:
            self._filename = filename_of(options.get(b"filename", b""))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name != FILE:
            self._value += data[start:end]
            if len(self._value) > MAX_FIELD:
                raise bad_request(f"`{shorten(self._name)}` is over {MAX_FIELD} bytes.", param=shorten(self._name))
            return
        self._size += end - start
        if self._size > self._limit:
            raise too_large(self._limit)
        self._file += data[start:end]

    def _part_end(self) -> None:
        self._fields[self._name] = self._value
        if self._name == PURPOSE and self._value != b"batch":
            raise bad_request("`purpose` must be 'batch': only files of batches are kept here.", param=PURPOSE)

    def _end(self) -> None:
        self._ended = True


def filename_of(sent: bytes) -> str:
    """A name to show, never a path: some clients send the whole."""
    last = re.split(r"[/\\]", sent.decode("utf-8", "replace"))[-1]
    return "".join(c for c in last if c.isprintable())[:MAX_FILENAME] or UNNAMED


def too_large(limit: int) -> ApiError:
    text = f"The file is over {limit} bytes: spread its requests over several."
    return ApiError(413, text, param=FILE, code="request_too_large", headers={"connection": "close"})


def _malformed(what: str) -> ApiError:
    return bad_request(f"The form is malformed: {what}.", code="invalid_form")
