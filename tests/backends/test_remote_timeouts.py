"""One limit per phase of a call, each for the waiting only."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from backends.base import BackendTimeout
from tests.backends.calling import CALL, CHUNKED, backend, failure, piece, served, whole
from tests.backends.raw_server import Connection


@contextmanager
def full_backlog() -> Iterator[int]:
    """A listening port whose queue is full: the kernel answers no further connection."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        time.sleep(0.05)
        try:
            yield listener.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


async def test_connect_timeout() -> None:
    with full_backlog() as port:
        async with backend(f"http://127.0.0.1:{port}/v1", connect_timeout=0.2, first_byte_timeout=5) as remote:
            begun = time.perf_counter()
            error = await failure(remote)
            assert isinstance(error, BackendTimeout)
            assert error.phase == "connect"
            assert time.perf_counter() - begun < 3


async def test_first_byte_timeout() -> None:
    async def silent(connection: Connection) -> None:
        await connection.request()
        await connection.gone()

    async with served(silent, first_byte_timeout=0.2) as (server, remote):
        error = await failure(remote)
        assert isinstance(error, BackendTimeout)
        assert error.phase == "first_byte"
        await server.until_open(0)


async def test_a_head_that_drips_is_a_first_byte_timeout() -> None:
    async def dripping(connection: Connection) -> None:
        await connection.request()
        for byte in CHUNKED * 100:
            await connection.send(bytes([byte]))
            await asyncio.sleep(0.02)

    async with served(dripping, first_byte_timeout=0.2) as (_, remote):
        error = await failure(remote)
        assert isinstance(error, BackendTimeout)
        assert error.phase == "first_byte"


async def test_between_chunks_timeout() -> None:
    async def stuck(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"x"))
        await connection.gone()

    async with served(stuck, between_chunks_timeout=0.2) as (server, remote):
        reply = await remote.send(CALL)
        chunks = reply.chunks()
        assert await anext(chunks) == b"x"
        with pytest.raises(BackendTimeout) as caught:
            await anext(chunks)
        assert caught.value.phase == "between_chunks"
        await reply.aclose()
        await server.until_open(0)


async def test_a_slow_reader_is_no_slow_server() -> None:
    """Only waiting for the backend counts, not what the gateway's client makes us wait between two pieces."""

    async def two(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"a"))
        await asyncio.sleep(0.05)
        await connection.send(piece(b"b") + b"0\r\n\r\n")
        await connection.gone()

    async with served(two, between_chunks_timeout=0.2) as (_, remote):
        reply = await remote.send(CALL)
        found = []
        async for chunk in reply.chunks():
            found.append(chunk)
            await asyncio.sleep(0.3)
        await reply.aclose()
        assert found == [b"a", b"b"]


async def test_a_reply_that_takes_long_but_never_pauses_is_fine() -> None:
    async def steady(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED)
        for _ in range(8):
            await connection.send(piece(b"x"))
            await asyncio.sleep(0.05)
        await connection.send(b"0\r\n\r\n")

    async with served(steady, first_byte_timeout=0.3, between_chunks_timeout=0.3) as (_, remote):
        assert await whole(remote) == b"x" * 8


async def test_every_wait_has_the_whole_limit() -> None:
    """Waits that ended take nothing from the one that follows, and it is not given more than its limit."""

    async def slower(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED)
        for _ in range(3):
            await connection.send(piece(b"x"))
            await asyncio.sleep(0.3)
        await connection.send(piece(b"last"))
        await connection.gone()

    async with served(slower, between_chunks_timeout=0.7) as (_, remote):
        reply = await remote.send(CALL)
        chunks = reply.chunks()
        assert [await anext(chunks) for _ in range(4)][-1] == b"last"
        begun = time.perf_counter()
        with pytest.raises(BackendTimeout):
            await anext(chunks)
        assert 0.69 < time.perf_counter() - begun < 1.2
        await reply.aclose()


async def test_a_wait_after_a_long_pause_of_the_reader_has_the_whole_limit() -> None:
    go = asyncio.Event()

    async def two(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"a"))
        await go.wait()
        await asyncio.sleep(0.1)
        await connection.send(piece(b"b"))
        await connection.gone()

    async with served(two, between_chunks_timeout=0.2) as (_, remote):
        reply = await remote.send(CALL)
        chunks = reply.chunks()
        assert await anext(chunks) == b"a"
        await asyncio.sleep(0.3)
        go.set()
        assert await anext(chunks) == b"b"
        await reply.aclose()


@pytest.mark.parametrize("phase", ["first_byte", "between_chunks"])
async def test_calls_that_wait_at_once_are_given_up_each_in_its_own_time(phase: str) -> None:
    async def stuck(connection: Connection) -> None:
        await connection.request()
        if phase == "between_chunks":
            await connection.send(CHUNKED)
        await connection.gone()

    async with served(stuck, **{f"{phase}_timeout": 0.2}) as (server, remote):

        async def one(after: float) -> float:
            await asyncio.sleep(after)
            begun = time.perf_counter()
            error = await failure(remote)
            assert isinstance(error, BackendTimeout)
            assert error.phase == phase
            return time.perf_counter() - begun

        times = await asyncio.gather(*(one(0.03 * n) for n in range(10)))
        assert 0.19 < min(times) < max(times) < 0.38
        await server.until_open(0)
