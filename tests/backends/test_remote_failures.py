"""The remote backend against servers that are not there, or misbehave in every way that HTTP over a socket has."""

import asyncio
import contextlib
import socket
import subprocess
import sys

import pytest

from backends.base import ConnectFailed, ReplyBroken
from backends.remote import DOWN_FOR, RemoteBackend
from tests.backends.calling import CALL, CHUNKED, backend, failure, piece, served, whole
from tests.backends.raw_server import Connection, RawServer, echo, raw_server


async def test_refused() -> None:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    async with backend(url) as remote:
        assert remote.state() == "ready"
        assert isinstance(await failure(remote), ConnectFailed)
        assert (remote.state(), remote.detail) == ("down", "cannot be reached")


async def test_a_name_that_does_not_exist() -> None:
    async with backend("http://no-such-host.invalid/v1") as remote:
        error = await failure(remote)
        assert isinstance(error, ConnectFailed)
        assert "no-such-host" not in str(error)


async def test_a_server_that_speaks_no_tls() -> None:
    async def plain(connection: Connection) -> None:
        await connection.answer(b"", status=b"400 Bad Request")

    async with raw_server(plain) as server, backend(server.url.replace("http:", "https:")) as remote:
        assert isinstance(await failure(remote), ConnectFailed)


BROKEN = {
    "closed before the head": b"",
    "closed in the head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "garbage": b"\x00\x01\x02\r\n\r\n",
    "a status that is none": b"HTTP/1.1 abc OK\r\n\r\n",
    "shorter than its length": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
    "closed between chunks": CHUNKED + piece(b"data: 1\n\n"),
    "closed in a chunk": CHUNKED + b"ff\r\nabc",
    "a chunk size that is none": CHUNKED + b"xyz\r\nabc\r\n0\r\n\r\n",
    "no last chunk's end": CHUNKED + piece(b"abc") + b"0\r\n",
    "a length that is none": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nabc",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "an endless head": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000,
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"".join(b"x%d: 1\r\n" % i for i in range(200_000)),
    "gzip that is none": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_reply_that_breaks_is_reported_as_one(name: str) -> None:
    async def breaking(connection: Connection) -> None:
        await connection.request()
        await connection.send(BROKEN[name])

    async with served(breaking) as (_, remote):
        assert isinstance(await failure(remote), ReplyBroken)
        assert remote.state() == "ready"


@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize("bad", [b"xyz\r\n", b"-1\r\n", b"\x00\x00", b"HTTP/1.1 200 OK\r\n"])
async def test_bytes_that_are_no_http_end_a_reply_at_once(bad: bytes, reading: bool) -> None:
    """Neither is the time between two chunks waited for, nor does the server have to close."""
    read = asyncio.Event()

    async def breaking(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"one"))
        await read.wait()
        await connection.send(bad)
        await connection.gone()

    async with served(breaking) as (server, remote):
        reply = await remote.send(CALL)
        chunks = reply.chunks()
        assert await anext(chunks) == b"one"
        read.set()
        if not reading:
            await server.until_open(0)
        with pytest.raises(ReplyBroken):
            await asyncio.wait_for(anext(chunks), 1)
        await reply.aclose()


FATED = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.recv(65536)
connection.sendall(sys.argv[1].encode())
connection.recv(1)
"""


@pytest.mark.parametrize(
    "head",
    [CHUNKED + piece(b"one"), b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\none"],
    ids=["chunked", "length"],
)
async def test_a_server_that_is_killed_ends_its_reply_at_once(head: bytes) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FATED, head.decode(), stdout=subprocess.PIPE)
    try:
        assert process.stdout
        async with backend(f"http://127.0.0.1:{int(await process.stdout.readline())}/v1") as remote:
            reply = await remote.send(CALL)
            chunks = reply.chunks()
            assert await anext(chunks) == b"one"
            reading = asyncio.ensure_future(anext(chunks))
            await asyncio.sleep(0.05)
            process.kill()
            with pytest.raises(ReplyBroken):
                await asyncio.wait_for(reading, 1)
            await reply.aclose()
            await process.wait()
            assert isinstance(await failure(remote), ConnectFailed)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_reset_in_the_body_is_a_broken_reply() -> None:
    async def resetting(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"x"))
        raw = connection._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    async with served(resetting) as (_, remote):
        assert isinstance(await failure(remote), ReplyBroken)


async def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    async def old(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.0 200 OK\r\n\r\nabc")

    async with served(old) as (_, remote):
        assert await whole(remote) == b"abc"


async def test_a_backend_that_comes_back_is_ready_again() -> None:
    async with raw_server(echo) as server, backend(server.url) as remote:
        await whole(remote)
    async with backend(server.url) as remote:
        assert isinstance(await failure(remote), ConnectFailed)
        again = RawServer(echo)
        async with await asyncio.start_server(again.serve, "127.0.0.1", server.port, reuse_address=True) as listener:
            await whole(remote)
            assert remote.state() == "ready"
            await remote.aclose()
            listener.close()


async def test_a_backend_that_came_back_is_not_down_for_ever() -> None:
    """Nobody may be calling it, least of all when a balancer has heard that it is down."""
    now = 0.0
    remote = RemoteBackend("fake", base_url="http://127.0.0.1:9/v1", mono=lambda: now)
    with pytest.raises(ConnectFailed):
        await remote.send(CALL)
    assert remote.state() == "down"
    now = DOWN_FOR
    assert remote.state() == "ready"
    await remote.aclose()
