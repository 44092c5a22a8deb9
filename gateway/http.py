"""uvicorn's HTTP protocol, with the bounds that it leaves to a proxy in front."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 1024
"""Bytes of one request's target and headers together."""
HEAD_TIMEOUT = 30.0
"""Seconds that a new connection has to send the head of its first request; later ones have uvicorn's keep-alive."""


class HeadTooLarge(Exception):
    """Raised inside the parser, for which it is a malformed request: 400, and the connection is closed."""


class BoundedProtocol(HttpToolsProtocol):
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._first_head = self.loop.call_later(HEAD_TIMEOUT, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._first_head.cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._first_head.cancel()
        super().on_headers_complete()

    def _grow(self, size: int) -> None:
        self._head += size
        if self._head > MAX_HEAD:
            raise HeadTooLarge
