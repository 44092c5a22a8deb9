"""The remote embedder against a real HTTP server, honest and hostile."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from backends.embeddings import PATIENCE, EmbeddingError, RemoteEmbedder
from tests.backends.raw_server import Connection, RawServer, raw_server

KEY = "sk-very-secret"
SOON = 10.0
JSON = b"content-type: application/json"

Answer = Callable[[Connection, list[str]], Any]


class Server:
    """Answers as `answer` says, which may be changed; honestly unless told."""

    def __init__(self) -> None:
        self.answer: Answer = honest
        self.raw: RawServer

    async def script(self, connection: Connection) -> None:
        while True:
            body = json.loads((await connection.request()).partition(b"\r\n\r\n")[2])
            await self.answer(connection, body["input"])


def item(index: int, *numbers: float) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": list(numbers)}


def says(*items: dict[str, Any]) -> Answer:
    async def answer(connection: Connection, texts: list[str]) -> None:
        await connection.answer(json.dumps({"object": "list", "data": items, "model": "m"}).encode(), JSON)

    return answer


def sends(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> Answer:
    async def answer(connection: Connection, texts: list[str]) -> None:
        await connection.answer(body, *headers, status=status)

    return answer


async def honest(connection: Connection, texts: list[str]) -> None:
    """A vector that tells the text's length, the last text's first."""
    items = [item(i, 3.0 * len(text), 4.0 * len(text), 0.0) for i, text in enumerate(texts)]
    await says(*reversed(items))(connection, texts)


async def hang(connection: Connection, texts: list[str]) -> None:
    await connection.gone()


@asynccontextmanager
async def served(first: Answer = honest, *, ready: bool = True) -> AsyncIterator[tuple[Server, RemoteEmbedder]]:
    server = Server()
    server.answer = first
    async with raw_server(server.script) as server.raw:
        embedder = RemoteEmbedder(server.raw.url, KEY, "m")
        assert (embedder.state, embedder.identity, embedder.dimensions) == ("starting", "", 0)
        await embedder.start()
        try:
            if ready:
                await until(embedder, "ready")
            yield server, embedder
        finally:
            await embedder.aclose()
            await embedder.aclose()
    assert embedder.state == "failed"


async def until(embedder: RemoteEmbedder, state: str) -> None:
    async with asyncio.timeout(SOON):
        while embedder.state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def failure(embedder: RemoteEmbedder, *texts: str, deadline: float = SOON) -> EmbeddingError:
    with pytest.raises(EmbeddingError) as caught:
        await embedder.embed(texts or ["hello"], deadline=deadline)
    assert KEY not in repr(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    return caught.value


async def test_vectors_are_of_unit_length_and_in_the_order_of_the_texts() -> None:
    async def different(connection: Connection, texts: list[str]) -> None:
        await says(item(1, 0, 0, 2), item(0, 1e100, 0, 0))(connection, texts)

    async with served() as (server, embedder):
        vectors = await embedder.embed(["a", "bb"], deadline=SOON)
        assert vectors.dtype == np.float32
        assert np.allclose(vectors, [[0.6, 0.8, 0], [0.6, 0.8, 0]])
        assert embedder.dimensions == 3
        assert embedder.identity == f"{server.raw.url}:m:3"
        server.answer = different
        assert (await embedder.embed(["a", "b"], deadline=SOON)).tolist() == [[1, 0, 0], [0, 0, 1]]
        assert (await embedder.embed([], deadline=SOON)).shape == (0, 3)
        head, _, body = server.raw.requests[-1].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/embeddings HTTP/1.1\r\n")
        assert f"authorization: Bearer {KEY}".lower().encode() in head.lower()
        assert json.loads(body) == {"model": "m", "input": ["a", "b"], "encoding_format": "float"}
        assert server.raw.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        says(),
        says(item(0, 1, 2, 3), item(1, 1, 2, 3)),
        says(item(1, 1, 2, 3)),
        says(item(-1, 1, 2, 3)),
        says(item(0, 1, 2)),
        says(item(0)),
        says(item(0, 0, 0, 0)),
        says(item(0, 1, math.nan, 1)),
        says(item(0, 1, math.inf, 1)),
        sends(b'{"data": [{"index": 0, "embedding": [1e999, 0, 1]}]}'),
        sends(b'{"data": [{"index": 0, "embedding": [1, null, 1]}]}'),
        sends(b'{"data": [{"index": 0, "embedding": "AACAPwAAAEAAAEBA"}]}'),
        sends(b'{"data": [{"embedding": [1, 2, 3]}]}'),
        sends(b'{"data": 5}'),
        sends(b"\xff\xfe"),
        sends(b""),
        sends(b'{"data": [' + b" " * 400_000),
    ],
)
async def test_what_is_no_vector_decides_nothing(answer: Answer) -> None:
    async with served() as (server, embedder):
        server.answer = answer
        assert (await failure(embedder)).reason == "bad_vector"
        server.answer = honest
        assert (await embedder.embed(["hello"], deadline=SOON)).shape == (1, 3)


async def test_sizes_that_differ_within_an_answer() -> None:
    async with served() as (server, embedder):
        server.answer = says(item(0, 1, 2, 3), item(1, 1, 2))
        assert (await failure(embedder, "a", "b")).reason == "bad_vector"


async def test_an_answer_without_end_is_not_read() -> None:
    sent = 0

    async def endless(connection: Connection, texts: list[str]) -> None:
        nonlocal sent
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        while sent < 1_000_000_000:
            await connection.send(b" " * 65536)
            sent += 65536

    async with served() as (server, embedder):
        server.answer = endless
        assert (await failure(embedder)).reason == "bad_vector"
    assert sent < 20_000_000  # what the sockets hold, too


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (b"401 No", "failed"),
        (b"403 No", "failed"),
        (b"404 No", "failed"),
        (b"400 No", "failed"),
        (b"204 No Content", "failed"),
        (b"413 No", "too_long"),
        (b"429 No", "busy"),
        (b"500 No", "unavailable"),
        (b"503 No", "unavailable"),
    ],
)
async def test_refusals(status: bytes, reason: str) -> None:
    async with served() as (server, embedder):
        server.answer = sends(b"" if status.startswith(b"204") else KEY.encode(), status=status)
        assert (await failure(embedder)).reason == reason


async def test_a_redirect_is_not_followed() -> None:
    async with served() as (server, embedder), served() as (other, _):
        before = len(other.raw.requests)
        server.answer = sends(b"", b"location: " + other.raw.url.encode() + b"/embeddings", status=b"307 Go")
        assert (await failure(embedder)).reason == "failed"
        assert len(other.raw.requests) == before


async def test_a_server_that_hangs_or_breaks_off() -> None:
    async def half(connection: Connection, texts: list[str]) -> None:
        await connection.send(b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"data"')
        raise ConnectionError

    async with served() as (server, embedder):
        server.answer = hang
        assert (await failure(embedder, deadline=0.1)).reason == "deadline"
        server.answer = half
        assert (await failure(embedder)).reason == "unavailable"
        assert (await failure(embedder, "\ud800")).reason == "failed"


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
