"""Calls of a remote backend to a server that speaks bytes, for its tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends.base import BackendError, Call
from backends.remote import RemoteBackend
from tests.backends.raw_server import RawServer, Script, raw_server

CALL = Call("chat/completions", b'{"model": "m"}')
KEY = "sk-canary-secret"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"


def piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def backend(url: str, **settings: Any) -> AsyncIterator[RemoteBackend]:
    remote = RemoteBackend("fake", base_url=url, api_key=KEY, **settings)
    try:
        yield remote
    finally:
        await remote.aclose()


@asynccontextmanager
async def served(script: Script, **settings: Any) -> AsyncIterator[tuple[RawServer, RemoteBackend]]:
    async with raw_server(script) as server, backend(server.url, **settings) as remote:
        yield server, remote


async def whole(remote: RemoteBackend, call: Call = CALL) -> bytes:
    reply = await remote.send(call)
    try:
        return await reply.read()
    finally:
        await reply.aclose()


async def failure(remote: RemoteBackend, call: Call = CALL) -> BackendError:
    """What a call that must fail fails with. Its text is for clients: no address, no key."""
    with pytest.raises(BackendError) as caught:
        await asyncio.wait_for(whole(remote, call), 10)
    assert "127.0.0.1" not in str(caught.value)
    assert KEY not in str(caught.value)
    assert "'fake'" in str(caught.value)
    return caught.value
