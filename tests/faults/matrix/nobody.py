"""Addresses at which an upstream cannot be reached, in ways that a test can time."""

import asyncio
import socket
import threading

from tests.support.upstream import free_port

LINE_END = b"\r\n"


class Door:
    """A TCP relay in front of the upstream that resets the connections of the next calls, once their `gate` is open.

    A reset and not a refusal, since others can join a call only while it has not failed yet, and a closed port fails
    it at once. The gateway sees a connection that dies before the first byte of an answer.
    """

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._server: asyncio.Server | None = None
        self._left = 0
        self._gate = threading.Event()
        self.port = 0
        self.calls = 0
        """Calls that were reset."""

    async def __aenter__(self) -> "Door":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()

    def reset_next(self, calls: int, gate: threading.Event) -> None:
        self._left, self._gate = calls, gate

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _request(reader)
            if self._left:
                self._left -= 1
                self.calls += 1
                await opened(self._gate)
                writer.transport.abort()
                return
            await self._relay(request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway has closed
        finally:
            writer.close()

    async def _relay(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        # With `connection: close`, so that no connection outlives its call, and the next call comes to this door.
        first, _, rest = request.partition(LINE_END)
        reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        upstream.write(first + LINE_END + b"connection: close" + LINE_END + rest)
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        upstream.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(LINE_END * 2)
    lines = head.lower().split(LINE_END)
    length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
    return head + await reader.readexactly(length)


class Shut:
    """A port where nobody listens, whose refusal can be made to wait until all clients are there.

    While `held`, a listener whose queue is full stands there: the kernel then drops what comes to open a connection,
    and the caller's repeats it after a second. By then the listener is gone, and the answer is a refusal.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._sockets: list[socket.socket] = []

    def hold(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(0)
        self._sockets = [listener]
        for _ in range(4):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", self.port))
            self._sockets.append(waiting)

    def let_go(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets = []


async def opened(gate: threading.Event) -> None:
    async with asyncio.timeout(10):
        while not gate.is_set():  # noqa: ASYNC110  set from another thread elsewhere
            await asyncio.sleep(0.002)
