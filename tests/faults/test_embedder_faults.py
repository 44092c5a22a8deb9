"""Embedders that lie, hang, die or are not there: the semantic tier steps aside with a reason, exact reuse goes on, no
request waits for longer than the tier's deadline, and it comes back by itself."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.embedders import embedder_of
from tests.support.embedding_server import EmbeddingServer, embedding_server
from tests.support.gateway import Running, config_text, running
from tests.support.semantic import (
    ASKED,
    DEADLINE,
    OTHER,
    REWORDED,
    Json,
    Room,
    comes_back,
    quick,
    sample,
    stats,
    steps_aside,
)
from tests.support.traffic import outcome, until
from tests.support.upstream import Upstream, free_port, upstream


@pytest.fixture(scope="module")
def up() -> Iterator[Upstream]:
    with upstream() as app:
        yield app


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as app:
        yield app


@pytest.fixture(scope="module")
def gw(up: Upstream, server: EmbeddingServer) -> Iterator[Running]:
    with running(config_text(up.url, extra=server.config()), embedders=embedder_of) as gateway:
        until(lambda: stats(gateway)["state"] == "ready")
        yield gateway


@pytest.fixture(autouse=True)
def _well(server: EmbeddingServer) -> Iterator[None]:
    """Each test begins and ends with one that is well."""
    server.reset()
    yield
    server.reset()


def vectors(change: Callable[[list[float]], Any]) -> Callable[[Json], bytes]:
    """What is sent when each vector is changed so."""

    def spoil(body: Json) -> bytes:
        data = [{**item, "embedding": change(item["embedding"])} for item in body["data"]]
        return json.dumps({**body, "data": data}).encode()

    return spoil


def items(change: Callable[[list[Json]], Any]) -> Callable[[Json], bytes]:
    return lambda body: json.dumps({**body, "data": change(body["data"])}).encode()


LIES: dict[str, Callable[[Json], bytes]] = {
    "NaN": vectors(lambda vector: [math.nan, *vector[1:]]),
    "infinite": vectors(lambda vector: [math.inf, *vector[1:]]),
    "beyond a float": vectors(lambda vector: [1e308] * len(vector)),
    "null": vectors(lambda vector: [None, *vector[1:]]),
    "zero": vectors(lambda vector: [0.0] * len(vector)),
    "too short": vectors(lambda vector: vector[1:]),
    "too long": vectors(lambda vector: [*vector, 0.0]),
    "empty": vectors(lambda vector: []),
    "text": vectors(lambda vector: "AAAA"),
    "one too few": items(lambda data: data[1:]),
    "one too many": items(lambda data: [*data, data[0]]),
    "another index": items(lambda data: [{**item, "index": item["index"] + 1} for item in data]),
    "no list": items(lambda data: None),
    "no JSON": lambda body: b"<html>",
    "nothing": lambda body: b"",
    "endless": lambda body: b'{"data": [' + b" " * 5_000_000,
}


def test_a_remote_embedder_that_is_well(gw: Running, server: EmbeddingServer) -> None:
    comes_back(gw)
    authorizations, bodies = zip(*server.seen, strict=True)
    assert set(authorizations) == {"Bearer sk-embedder-secret"}
    assert {body["model"] for body in bodies} == {"placed"}
    texts = [text for body in bodies for text in body["input"]]
    assert (texts.count(ASKED), OTHER in texts) == (1, False)
    assert "sk-embedder-secret" not in json.dumps(stats(gw))


@pytest.mark.parametrize("lie", LIES)
def test_vectors_that_are_none(gw: Running, up: Upstream, server: EmbeddingServer, lie: str) -> None:
    """While it lies, and for as long as nobody has seen that it no longer does; nothing of a lie is kept."""
    kept = stats(gw)["vectors"]
    server.spoil = LIES[lie]
    for _ in range(2):
        steps_aside(gw, up, "bad_vector")
    assert stats(gw)["vectors"] == kept
    server.reset()
    comes_back(gw)


STATUSES = [
    (500, "unavailable"),
    (503, "unavailable"),
    (429, "busy"),
    (401, "failed"),
    (404, "failed"),
    (400, "failed"),
    (301, "failed"),
]


@pytest.mark.parametrize(("status", "why"), STATUSES)
def test_statuses(gw: Running, up: Upstream, server: EmbeddingServer, status: int, why: str) -> None:
    server.status, server.spoil = status, lambda body: b'{"error": {"message": "sk-embedder-secret"}}'
    steps_aside(gw, up, why)
    server.reset()
    comes_back(gw)


def test_one_that_hangs_is_waited_for_until_the_deadline_and_soon_no_more(
    gw: Running, up: Upstream, server: EmbeddingServer
) -> None:
    server.hang = 5.0
    room = Room(gw)
    room.told(ASKED)
    steps_aside(gw, up, "deadline", "failed")
    for number in range(12):
        quick(room, f"{REWORDED} ({number})")
    later = [quick(room, f"{OTHER} ({number})") for number in range(5)]
    assert {outcome(answer) for answer in later} == {"miss"}
    assert min(a.elapsed.total_seconds() for a in later) < DEADLINE, "every request goes on waiting for it"
    assert stats(gw)["state"] == "failed"
    assert gw.client.get("/readyz").json() == {"status": "degraded"}
    assert sample(gw, "refrain_semantic_ready") == 0
    assert stats(gw)["misses"]["embedder_deadline"] >= 2
    server.reset()
    comes_back(gw)


def test_one_that_is_down_at_the_start_and_comes_later(up: Upstream) -> None:
    port = free_port()
    server = EmbeddingServer()
    with running(config_text(up.url, extra=server.config(port=port)), embedders=embedder_of) as gw:
        until(lambda: stats(gw)["state"] == "failed")
        assert "reached" in stats(gw)["detail"]
        steps_aside(gw, up, "failed", "starting")
        assert gw.client.get("/readyz").json() == {"status": "degraded"}
        assert stats(gw)["vectors"] == 0
        with embedding_server(port) as other:
            comes_back(gw)
            assert other.seen


def test_what_was_answered_before_it_came_is_found_afterwards(up: Upstream) -> None:
    """A model takes long to load, and those are the first questions that a gateway is asked."""
    port = free_port()
    with running(config_text(up.url, extra=EmbeddingServer().config(port=port)), embedders=embedder_of) as gw:
        room = Room(gw)
        text = room.told(ASKED)
        with embedding_server(port):
            until(lambda: stats(gw)["state"] == "ready")
            room.serves(REWORDED, text)


def test_one_that_goes_down_in_between(up: Upstream) -> None:
    port = free_port()
    with running(config_text(up.url, extra=EmbeddingServer().config(port=port)), embedders=embedder_of) as gw:
        with embedding_server(port):
            comes_back(gw)
            room = Room(gw)
            text = room.told(ASKED)
            room.serves(REWORDED, text)
        steps_aside(gw, up, "unavailable", "deadline", "failed")
        room.serves(REWORDED, text)  # an alias needs no vector
        with embedding_server(port):
            comes_back(gw)
