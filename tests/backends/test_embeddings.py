"""What the remote embedder makes of the answers of a real HTTP server, honest and hostile."""

import json
import math

import numpy as np
import pytest

from backends.embeddings import RemoteEmbedder
from tests.backends.embedding_server import (
    KEY,
    SOON,
    Answer,
    failure,
    hang,
    honest,
    item,
    says,
    sends,
    served,
    until,
)
from tests.backends.raw_server import Connection


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
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "total_tokens": 7}, 7),
        ({"prompt_tokens": 0}, 0),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": 1.5}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": 10**12}, None),
        ({}, None),
        ([1], None),
        (None, None),
    ],
)
async def test_what_the_server_reports_is_told_with_what_it_was_sent(usage: object, tokens: int | None) -> None:
    body = json.dumps({"data": [item(0, 1, 2, 3), item(1, 1, 2, 3)], "usage": usage}).encode()
    told: list[tuple[int | None, int]] = []
    async with served() as (server, _):
        listening = RemoteEmbedder(server.raw.url, KEY, "m", made=lambda *heard: told.append(heard))
        await listening.start()
        await until(listening, "ready")
        told.clear()  # of the first question, which nobody has asked
        server.answer = sends(body)
        await listening.embed(["four", "letters"], deadline=SOON)
        server.answer = sends(b"{}")
        await failure(listening)
        await listening.aclose()
    assert told == [(tokens, 11)]


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
