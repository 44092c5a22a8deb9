"""Closing in the middle: the server sees its client leave within 100 ms, and stops to work for nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import pytest

from backends.base import BackendError, ReplyBroken
from tests.backends.calling import CALL, CHUNKED, piece, served, whole
from tests.backends.raw_server import Connection, RawServer, Script, echo


async def mute(connection: Connection) -> None:
    """Takes a request and never answers."""
    await connection.request()
    await connection.gone()


async def quiet(connection: Connection) -> None:
    """Begins its answer and then thinks."""
    await connection.request()
    await connection.send(CHUNKED + piece(b"one"))
    await connection.gone()


async def busy(connection: Connection) -> None:
    """Has always more to say than is read."""
    await connection.request()
    await connection.send(CHUNKED)
    while True:
        await connection.send(piece(b"x" * 100_000))


@asynccontextmanager
async def seen(server: RawServer) -> AsyncIterator[None]:
    """The server sees within 100 ms that what happens in here closes its one connection."""
    await server.until_open(1)
    begun = perf_counter()
    yield
    await server.until_open(0)
    assert perf_counter() - begun < 0.1


@pytest.mark.parametrize("script", [quiet, busy])
@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_reply_that_is_closed_early(script: Script, pieces: int) -> None:
    async with served(script) as (server, remote):
        reply = await remote.send(CALL)
        chunks = reply.chunks()
        for _ in range(pieces):
            assert await anext(chunks)
        async with seen(server):
            await chunks.aclose()
            await reply.aclose()
        await reply.aclose()


@pytest.mark.parametrize("script", [mute, quiet, busy])
async def test_a_call_that_is_cancelled(script: Script) -> None:
    async with served(script, max_reply=2**40) as (server, remote):
        task = asyncio.create_task(whole(remote))
        await server.until_open(1)
        await asyncio.sleep(0.05)
        async with seen(server):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert remote.state() == "ready"


async def test_a_reply_that_is_closed_while_it_is_read() -> None:
    async with served(quiet) as (server, remote):
        reply = await remote.send(CALL)
        reading = asyncio.create_task(reply.read())
        await asyncio.sleep(0.01)
        async with seen(server):
            await reply.aclose()
            with pytest.raises(ReplyBroken):
                await reading


@pytest.mark.parametrize("script", [mute, quiet])
async def test_a_backend_that_is_closed_in_the_middle_of_a_call(script: Script) -> None:
    """Its calls end at once: they do not wait for their time to be up."""
    async with served(script) as (server, remote):
        task = asyncio.create_task(whole(remote))
        await server.until_open(1)
        await asyncio.sleep(0.05)
        async with seen(server):
            await remote.aclose()
            with pytest.raises(BackendError):
                await task


async def test_a_call_that_is_given_up_for_its_time() -> None:
    async with served(quiet, between_chunks_timeout=0.1) as (server, remote):
        reply = await remote.send(CALL)
        with pytest.raises(BackendError):
            await reply.read()
        async with seen(server):
            await reply.aclose()


async def test_a_reply_that_has_arrived_to_its_end_needs_no_reading() -> None:
    """Its connection is as good as one whose reply was read."""
    async with served(echo) as (server, remote):
        for _ in range(3):
            reply = await remote.send(CALL)
            await asyncio.sleep(0.01)
            await reply.aclose()
        assert (server.connections, len(server.requests)) == (1, 3)


async def test_closing_closes_idle_connections_and_may_happen_twice() -> None:
    async with served(echo) as (server, remote):
        await whole(remote)
        async with seen(server):
            await remote.aclose()
        await remote.aclose()
