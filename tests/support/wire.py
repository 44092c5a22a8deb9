"""Requests that no HTTP client would send: written to the socket by hand."""

import json
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    @property
    def error(self) -> dict[str, object]:
        return dict(json.loads(self.body)["error"])


def talk(url: str, pieces: Iterable[bytes], *, pause: float = 0.0, timeout: float = 10.0) -> Answer:
    """Send the pieces on one connection, each in a TCP segment of its own, and read one answer.

    A server that has answered may close the connection before all is sent.
    """
    parts = urlsplit(url)
    begun = time.monotonic()
    with socket.create_connection((parts.hostname, parts.port), timeout=timeout) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                s.sendall(piece)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return _read(s, begun)


def _read(s: socket.socket, begun: float) -> Answer:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += _more(s)
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    length = int(headers["content-length"])
    while len(body) < length:
        body += _more(s)
    return Answer(int(first.split()[1]), headers, body, time.monotonic() - begun)


def _more(s: socket.socket) -> bytes:
    data = s.recv(65536)
    assert data, "the connection ended before the answer did"
    return data


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    """The head of a request with these header lines."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: gateway", *lines, "", ""]).encode("latin-1")


def chunked(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """The pieces as chunks of a chunked body, with its end."""
    for piece in pieces:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"
