"""When the remote embedder is ready, and what it says of itself and of its server."""

import asyncio
import logging

import pytest

from backends.embeddings import PATIENCE, RemoteEmbedder
from tests.backends.embedding_server import (
    KEY,
    Server,
    failure,
    honest,
    item,
    says,
    sends,
    served,
    until,
)
from tests.backends.raw_server import Connection, raw_server


async def test_it_becomes_ready_when_the_server_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served(sends(b"no", status=b"401 No"), ready=False) as (server, embedder):
        assert (await failure(embedder)).reason == "starting"
        await until(embedder, "failed")
        assert "refused the API key" in embedder.detail
        assert (await failure(embedder)).reason == "failed"
        server.answer = honest
        await until(embedder, "ready")
    assert KEY not in caplog.text + repr(embedder) + repr(vars(embedder)["_detail"])
    assert "refused the API key" in caplog.text


async def test_a_server_that_has_gone_costs_no_more_waiting_until_it_is_back() -> None:
    async with served() as (server, embedder):
        server.answer = sends(b"", status=b"500 No")
        reasons = [(await failure(embedder)).reason for _ in range(PATIENCE + 1)]
        assert reasons == ["unavailable"] * PATIENCE + ["failed"]
        server.answer = honest
        await until(embedder, "ready")
        # Another size than before would be another model: it stays out.
        server.answer = says(item(0, 1, 2))
        for _ in range(PATIENCE):
            assert (await failure(embedder)).reason == "bad_vector"
        await until(embedder, "failed")
        await asyncio.sleep(0.1)
        assert (embedder.state, embedder.dimensions) == ("failed", 3)


async def test_nobody_there() -> None:
    async with raw_server(hang_up) as server:
        url = server.url
    embedder = RemoteEmbedder(url.replace("http://", "http://user:word@"), None, "m")
    await embedder.start()
    await until(embedder, "failed")
    assert embedder.detail == "the embedding server cannot be reached"
    assert "word" not in repr(embedder)
    await embedder.aclose()
    assert (await failure(embedder)).reason == "unavailable"


async def test_a_password_in_the_address_is_not_in_the_identity() -> None:
    server = Server()
    async with raw_server(server.script) as server.raw:
        embedder = RemoteEmbedder(server.raw.url.replace("http://", "http://user:word@"), None, "m")
        await embedder.start()
        await until(embedder, "ready")
        assert embedder.identity == f"{server.raw.url}:m:3"
        await embedder.aclose()


async def hang_up(connection: Connection) -> None:
    return
