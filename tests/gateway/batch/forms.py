"""Forms that bring a file, byte by byte as clients send them, and taking them in."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.batch.form import Upload
from gateway.batch.upload import read_upload

BOUNDARY = b"0123456789abcdef"
LIMIT = 1_000_000
GONE = {"type": "http.disconnect"}

Part = tuple[bytes, bytes]


def field_of(name: str, value: bytes) -> Part:
    return b'Content-Disposition: form-data; name="' + name.encode() + b'"', value


def file_of(content: bytes, filename: str | bytes = "requests.jsonl", name: str = "file") -> Part:
    sent = filename.encode() if isinstance(filename, str) else filename
    head = b'Content-Disposition: form-data; name="' + name.encode() + b'"; filename="' + sent + b'"'
    return head + b"\r\nContent-Type: application/jsonl", content


PURPOSE = field_of("purpose", b"batch")


def form(*parts: Part, boundary: bytes = BOUNDARY) -> bytes:
    whole = b"".join(b"--" + boundary + b"\r\n" + head + b"\r\n\r\n" + value + b"\r\n" for head, value in parts)
    return whole + b"--" + boundary + b"--\r\n"


def messages(pieces: Sequence[bytes]) -> list[dict[str, Any]]:
    last = len(pieces) - 1
    return [{"type": "http.request", "body": piece, "more_body": i < last} for i, piece in enumerate(pieces)]


@dataclass
class Taking:
    """Takes in what is sent, and keeps what is handed on. After the last message a client says nothing any more."""

    handed: list[bytes] = field(default_factory=list)

    @property
    def content(self) -> bytes:
        return b"".join(self.handed)

    async def piece(self, data: bytes) -> None:
        self.handed.append(data)

    async def __call__(
        self, sent: list[dict[str, Any]], headers: dict[bytes, bytes] | None = None, *, limit: int = LIMIT
    ) -> Upload:
        left = list(sent)

        async def receive() -> dict[str, Any]:
            if not left:
                await asyncio.Event().wait()
            return left.pop(0)

        kind = b"multipart/form-data; boundary=" + BOUNDARY
        return await read_upload({b"content-type": kind, **(headers or {})}, receive, self.piece, limit=limit)

    async def body(self, *pieces: bytes, limit: int = LIMIT) -> Upload:
        return await self(messages(pieces), limit=limit)
