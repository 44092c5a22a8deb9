"""A server that speaks bytes, so that it can break HTTP in every way; it counts connections and keeps requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Script = Callable[["Connection"], Awaitable[None]]


class Connection:
    def __init__(self, server: "RawServer", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer

    async def request(self) -> bytes:
        """Head and body of the next request. Raises IncompleteReadError when the client has closed."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self._server.requests.append(head + await self._reader.readexactly(length))
        return self._server.requests[-1]

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, body: bytes, *headers: bytes, status: bytes = b"200 OK") -> None:
        """A whole answer with its length."""
        head = b"".join(h + b"\r\n" for h in (b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers))
        await self.send(head + b"\r\n" + body)

    async def gone(self) -> None:
        """Return when the client has closed the connection."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            pass


class RawServer:
    """`script` has each connection to itself; when it returns, the connection is closed."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.port = 0
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self._count(1)
        try:
            await self.script(Connection(self, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed
        finally:
            writer.close()
            await self._count(-1)

    async def until_open(self, number: int) -> None:
        """Wait until so many connections are open."""
        async with self._changed, asyncio.timeout(3):
            await self._changed.wait_for(lambda: self.open == number)

    async def _count(self, by: int) -> None:
        self.open += by
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def raw_server(script: Script) -> AsyncIterator[RawServer]:
    server = RawServer(script)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server
        listener.close()
        await server.until_open(0)  # a connection that a client leaves open makes its test fail here


async def echo(connection: Connection) -> None:
    """Answer every request with a small JSON object, on one connection after the other's fashion."""
    while True:
        await connection.request()
        await connection.answer(b'{"ok": true}', b"content-type: application/json")
