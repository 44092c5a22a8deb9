"""Input files: one request a line, read piece by piece and checked before any of them runs.

A file is never held: beside the line that is being read there is a digest for each custom_id, and the faults. Both are
bounded, since nothing is read beyond the most requests that a file may hold.
"""

import re
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.batch.faults import (
    duplicate,
    faults_of,
    no_request,
    too_long,
    too_many_inputs,
    too_many_requests,
    unreadable,
)
from gateway.batch.records import Fault, Line, Url
from gateway.errors import ApiError
from gateway.strict_json import parse_object

BOM = b"\xef\xbb\xbf"
BLANK = b" \t\r"
_LINE = re.compile(rb"[^ \t\r\n][^\n]*")
"""A line that is not blank, from its first character on. Searched for, since a file may be nothing but blank lines, and
to look at each of those would take minutes."""


class _Bodies(msgspec.Struct):
    """A request's body as it stands in the file."""

    body: msgspec.Raw


_bodies = msgspec.json.Decoder(_Bodies)


class Reader:
    """Reads the input file of a batch for this `url`. `total` is how many requests it holds, as far as it was read."""

    def __init__(self, url: Url, *, max_line: int, most: int = 50_000, most_inputs: int = 50_000) -> None:
        self._url = url
        self._max_line = max_line
        self._most = most
        self._most_inputs = most_inputs
        self._rest = bytearray()  # the begin of a line whose end has not come yet
        self._number = 1
        self._first: dict[bytes, int] = {}  # the line of each custom_id, by its digest
        self._inputs = 0
        self._models: set[str] = set()
        self.faults: list[Fault] = []
        self.total = 0

    @property
    def model(self) -> str | None:
        """The one that all requests name, None where they differ."""
        return next(iter(self._models)) if len(self._models) == 1 else None

    def feed(self, piece: bytes) -> list[Line]:
        """The requests on the lines that end in this piece; none any more once there is a fault."""
        whole, end, rest = piece.rpartition(b"\n")
        lines: list[Line] = []
        if end:
            lines = self._read(bytes(self._rest) + whole + end)
            self._rest.clear()
        self._rest += rest
        # Of a line that is too long so much is kept that it still is. Blanks before it do not count, here as below.
        if len(self._rest) > self._max_line + 2:
            self._rest = self._rest.lstrip(BLANK)
            del self._rest[self._max_line + 2 :]
        return lines

    def close(self) -> list[Line]:
        """The request on a last line without an end."""
        lines = self._read(bytes(self._rest))
        if not self.total:
            self.faults.append(no_request())
        return lines

    def _read(self, data: bytes) -> list[Line]:
        lines = []
        at = 0
        for found in _LINE.finditer(data):
            if self.total > self._most:
                break
            self._number += data.count(b"\n", at, found.start())
            at = found.start()
            line = self._request(found[0])
            if line is not None and not self.faults:
                lines.append(line)
        self._number += data.count(b"\n", at)
        return lines

    def _request(self, data: bytes) -> Line | None:
        long = len(data.removesuffix(b"\r")) > self._max_line
        if self._number == 1:
            data = data.removeprefix(BOM)
        if not data.strip(BLANK):
            return None
        self.total += 1
        if self.total > self._most:
            self.faults.append(too_many_requests(self._most, self._number))
        elif long:
            self.faults.append(too_long(self._max_line, self._number))
        else:
            return self._checked(data)
        return None

    def _checked(self, data: bytes) -> Line | None:
        try:
            request = parse_object(data)
        except ApiError as error:
            self.faults.append(unreadable(error, self._number))
            return None
        faults = faults_of(request, self._url, self._number) + self._among_others(request)
        if faults:
            self.faults += faults
            return None
        return Line(self._number, request["custom_id"], bytes(_bodies.decode(data).body))

    def _among_others(self, request: dict[str, Any]) -> list[Fault]:
        """What is wrong with it beside the requests before it."""
        found = []
        custom_id, body = request.get("custom_id"), request.get("body")
        if isinstance(custom_id, str) and custom_id:
            first = self._first.setdefault(blake2b(custom_id.encode(), digest_size=16).digest(), self._number)
            if first != self._number:
                found.append(duplicate(custom_id, first, self._number))
        if isinstance(body, dict):
            model = body.get("model")
            if isinstance(model, str) and len(self._models) < 2:
                self._models.add(model)
            if self._url == "/v1/embeddings" and self._inputs <= self._most_inputs:
                self._inputs += _inputs(body.get("input"))
                if self._inputs > self._most_inputs:
                    found.append(too_many_inputs(self._most_inputs, self._number))
        return found


def _inputs(value: Any) -> int:
    """A list of numbers is one input, already in tokens."""
    return len(value) if isinstance(value, list) and value and isinstance(value[0], str | list) else 1
