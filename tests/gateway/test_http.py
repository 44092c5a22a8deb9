"""The bounds of the HTTP server: how long a client may leave what waits for it where it is."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
import uvicorn

from gateway import http
from gateway.http import BoundedProtocol
from tests.support.traffic import until

STALL = 0.4
MANY = 400
PIECE = bytes(64 * 1024)
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


class Server:
    """An application that sends `pieces` of zeros, each after a pause; or, `brimful`, as much as makes the last few
    bytes wait for the client. It runs under the server that `refrain serve` uses."""

    def __init__(self) -> None:
        self.pieces = [PIECE] * MANY
        self.pause = 0.0
        self.brimful = False
        self.sent = 0
        self.ended = 0
        self._server: uvicorn.Server | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            self.sent += 1
            await asyncio.sleep(self.pause)
            if self.brimful and self.waiting():
                break
        await send({"type": "http.response.body", "body": b""})
        self.ended += 1

    def connections(self) -> int:
        assert self._server is not None
        return len(self._server.server_state.connections)

    def waiting(self) -> int:
        """Bytes that the client has not taken from us."""
        assert self._server is not None
        protocols: list[Any] = list(self._server.server_state.connections)
        return sum(protocol.transport.get_write_buffer_size() for protocol in protocols)

    @contextmanager
    def serve(self, loop: Literal["asyncio", "uvloop"]) -> Iterator[int]:
        config = uvicorn.Config(
            self,
            host="127.0.0.1",
            port=0,
            http=BoundedProtocol,
            loop=loop,
            log_level="critical",
            lifespan="off",
            timeout_keep_alive=1,
        )
        server = self._server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield int(server.servers[0].sockets[0].getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(timeout=15)
            assert not thread.is_alive()


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(http, "STALL_TIMEOUT", STALL)
    return Server()


@contextmanager
def client(port: int) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", port))
        sock.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        yield sock


def read(sock: socket.socket, size: int) -> int:
    """Take so many bytes, or all there are to come; gives how many came."""
    got = 0
    try:
        while got < size and (piece := sock.recv(min(64 * 1024, size - got))):
            got += len(piece)
    except ConnectionResetError:
        pass
    return got


@LOOPS
def test_a_client_that_takes_nothing_is_cut(app: Server, loop: Any) -> None:
    with app.serve(loop) as port, client(port) as sock:
        until(lambda: app.sent)
        begun = time.monotonic()
        until(lambda: not app.connections())
        assert time.monotonic() - begun < STALL + 3
        until(lambda: app.ended)  # the application is not left waiting for it
        assert read(sock, MANY * len(PIECE)) < MANY * len(PIECE)


@pytest.mark.slow
@LOOPS
def test_also_when_only_little_is_left_to_take(app: Server, loop: Any) -> None:
    """Too little, maybe, to make the application wait; but the connection would stay as long as the client likes."""
    app.pieces, app.brimful = [bytes(4096)] * 10_000, True
    with app.serve(loop) as port, client(port):
        until(lambda: app.ended)
        assert app.sent < len(app.pieces)
        until(lambda: not app.connections(), timeout=5)


@pytest.mark.slow
@LOOPS
def test_a_client_that_waits_for_the_application_is_not(app: Server, loop: Any) -> None:
    """It has taken everything there was; nothing more has come."""
    app.pieces, app.pause = [PIECE] * 2, 2 * STALL
    with app.serve(loop) as port, client(port) as sock:
        assert read(sock, 2 * len(PIECE)) == 2 * len(PIECE)
        until(lambda: app.ended)
        assert app.connections()


@LOOPS
def test_a_client_that_stops_for_less_than_that_gets_everything(app: Server, loop: Any) -> None:
    with app.serve(loop) as port, client(port) as sock:
        got = 0
        for _ in range(4):
            time.sleep(STALL / 2)  # the client's own pause, not a wait for something
            got += read(sock, 6 * 2**20)
        got += read(sock, MANY * len(PIECE) - got)
        assert got >= MANY * len(PIECE)
        until(lambda: app.ended)
        assert app.connections()


@pytest.mark.slow
@LOOPS
def test_a_client_that_takes_little_but_always_something_is_not_cut(app: Server, loop: Any) -> None:
    """It reads all the time, but what it takes within the limit makes no room in the kernel's buffers: those are large,
    and a third of them has to be free before the server hears of it."""
    with app.serve(loop) as port, client(port) as sock:
        until(lambda: app.sent > 10)
        begun = time.monotonic()
        while time.monotonic() - begun < 4 * STALL:
            assert read(sock, 16 * 1024)
            assert app.connections(), f"cut after {time.monotonic() - begun:.2f} s"
            time.sleep(0.05)
