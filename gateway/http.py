"""uvicorn's HTTP protocol, with the bounds that it leaves to a proxy in front."""

import asyncio
import sys
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 1024
"""Bytes of one request's target and headers together."""
HEAD_TIMEOUT = 30.0
"""Seconds that a new connection has to send the head of its first request; later ones have uvicorn's keep-alive."""
STALL_TIMEOUT = 60.0
"""Seconds for which a client may take nothing of what waits for it. Then the connection is cut: closing it in good
order would wait for that client as well."""

ENDLESS = "refrain.endless"
"""Set in the scope of a request whose answer has no end of its own: a server that stops does not wait for it."""


class BoundedProtocol(HttpToolsProtocol):
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head = 0  # bytes since the last request whose head was complete
        self._in_body = False
        self._first_head = self.loop.call_later(HEAD_TIMEOUT, transport.close)
        self._stalled: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._first_head.cancel()
        self._moves()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self.cycle is not None and ENDLESS in self.cycle.scope:
            self.transport.abort()  # its client asks again, and may be one that takes nothing

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():
            self._watch()  # closing waits for what is left to be taken

    def _watch(self) -> None:
        self._moves()
        self._stalled = self.loop.call_later(STALL_TIMEOUT, self._look, self._waiting())

    def _look(self, before: int) -> None:
        if self._waiting() < before:
            self._watch()
        else:
            self.transport.abort()

    def _waiting(self) -> int:
        """Bytes that the client has not taken, those in the kernel's buffer included: that one is large, and has to be
        emptied by a third before we hear of it."""
        waiting: int = self.transport.get_write_buffer_size()
        try:
            queued = ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        except OSError:
            return waiting
        return waiting + int.from_bytes(queued, sys.byteorder)

    def resume_writing(self) -> None:
        self._moves()
        super().resume_writing()

    def _moves(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def on_headers_complete(self) -> None:
        self._in_body = True  # also when it was answered before it has come
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        # Once for every read, not once for every header: a hit feels the difference.
        was_in_body = self._in_body
        HttpToolsProtocol.data_received(self, data)
        if was_in_body or self._in_body or (self.cycle is not None and not self.cycle.response_complete):
            self._head = 0
            self._first_head.cancel()
            return
        self._head += len(data)
        if self._head > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")
