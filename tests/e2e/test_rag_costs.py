"""What the embedding of a search's query costs, and whose cost it is: that of the request that made the search run."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.embedders import embedder_of
from tests.support.embedding_server import EmbeddingServer, embedding_server
from tests.support.gateway import ALICE, BOB, Running, config_text, running
from tests.support.live import TOKENS, settled
from tests.support.traffic import decision, outcome, until
from tests.support.upstream import Upstream

Json = dict[str, Any]
PRICE, ANSWER = 5.0, 11 * 1.0 + 7 * 2.0  # USD: a million tokens of the embedder's, and a million scripted answers
SEARCH = "/v1/vector_stores/handbook/search"
TEXTS = {"leave.md": "thirty days of leave", "pay.md": "pay comes when it comes"}


def place(text: str) -> str:
    return next((word for word in ("leave", "pay") if word in text.lower()), text)


def reported(body: Json) -> bytes:
    """A hundred tokens for each text."""
    return json.dumps({**body, "usage": {"prompt_tokens": 100 * len(body["data"])}}).encode()


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as app:
        app.place, app.spoil = place, reported
        yield app


def text(up: Upstream, server: EmbeddingServer, folder: Path, more: str = "") -> str:
    docs = folder / "docs"
    docs.mkdir()
    for name, words in TEXTS.items():
        (docs / name).write_text(words)
    (folder / "acl.yaml").write_text('{default: [], rules: [{path: "pay.md", permissions: [hr]}]}')
    extra = (
        "  asked: {mode: request_response, share: tenant, cache: {semantic: off}, "
        "retrieval: {retriever: handbook, top_k: 1}}\n"
        "  alike: {mode: request_response, share: tenant, cache: {semantic: off}, "
        "retrieval: {retriever: handbook, top_k: 1, semantic: true}}\n"
        f"retrievers: {{handbook: {{kind: folder, path: {docs}, acl: {folder}/acl.yaml}}}}\n"
        f"prices: {{placed: {{input: {PRICE}, output: 0}}, test-model: {{input: 1.0, output: 2.0}}}}\n"
    )
    return config_text(up.url, extra=extra + server.config().replace("model: placed", f"model: placed{more}"))


@pytest.fixture
def gw(up: Upstream, server: EmbeddingServer, tmp_path: Path) -> Iterator[Running]:
    with running(text(up, server, tmp_path), embedders=embedder_of) as found:
        ready(found)
        server.seen.clear()
        yield found


def ready(gw: Running) -> None:
    until(lambda: gw.admin("GET", "/admin/stats").json()["tiers"]["retrieval"]["handbook"]["state"] == "ready")


def search(gw: Running, query: str | list[str]) -> Json:
    """The record of a search."""
    reply = gw.admin("POST", SEARCH, key=ALICE, json={"query": query})
    assert reply.status_code == 200, reply.text
    return decision(gw, reply)


def embedded(server: EmbeddingServer) -> list[str]:
    return [text for _, body in server.seen for text in body["input"]]


def test_a_search_is_paid_for_by_the_token_and_a_hit_is_free(gw: Running) -> None:
    record = search(gw, "Is there leave?")
    tokens, usd = record["tokens"], record["usd"]
    assert tokens["consumed"] == tokens["unserved"] == tokens["billable"] == 100
    assert usd["consumed"] == usd["billable"] == usd["overhead"] == pytest.approx(100 * PRICE / 1e6)
    again = search(gw, "Is there leave?")
    assert (again["outcome"], again["tokens"]["consumed"], again["usd"]["consumed"]) == ("exact", 0, None)
    several = search(gw, ["Is there leave?", "When is pay?", "How much pay?"])
    assert several["tokens"]["consumed"] == 200, "of the ones that were not kept"
    assert settled(gw)["unserved"] == 300


def test_an_answer_costs_its_call_and_its_search(gw: Running) -> None:
    first = gw.chat("Is there leave?", path="/asked/v1")
    record = decision(gw, first)
    assert (record["tokens"]["consumed"], record["tokens"]["served"]) == (TOKENS + 100, TOKENS)
    assert record["usd"]["overhead"] == pytest.approx(100 * PRICE / 1e6)
    assert record["usd"]["consumed"] == pytest.approx((ANSWER + 100 * PRICE) / 1e6)
    again = decision(gw, gw.chat("Is there leave?", path="/asked/v1"))
    assert (again["outcome"], again["tokens"]["consumed"]) == ("exact", 0)
    # Bob sees other documents, so it is another search, which finds what the answer was made from.
    shared = decision(gw, gw.chat("Is there leave?", path="/asked/v1", key=BOB))
    assert (shared["outcome"], shared["tokens"]["saved"]) == ("exact", TOKENS)
    assert shared["tokens"]["consumed"] == shared["tokens"]["unserved"] == 100
    assert settled(gw)["unserved"] == 200


def test_a_look_for_queries_of_the_same_meaning_is_paid_for_as_well(gw: Running, server: EmbeddingServer) -> None:
    """Every text that was embedded is in the books, once; whether the answer was a hit or not."""
    for question in ("Is there leave?", "When is pay?", "is there leave", "is there leave"):
        gw.chat(question, path="/alike/v1").raise_for_status()
    assert len(embedded(server)) > 2
    assert settled(gw)["unserved"] == 100 * len(embedded(server))


def test_what_no_request_has_asked_for_is_in_no_books(up: Upstream, server: EmbeddingServer, tmp_path: Path) -> None:
    with running(text(up, server, tmp_path), embedders=embedder_of) as gw:
        ready(gw)
        assert len(embedded(server)) > len(TEXTS)
        assert settled(gw)["consumed"] == 0
        # A document that is made anew is not the cost of the search that comes then.
        gw.admin("POST", "/admin/documents", json={"retriever": "handbook", "id": "leave.md"})
        assert search(gw, "Is there leave?")["tokens"]["consumed"] == 100


def test_who_joins_pays_nothing_and_who_began_it_does_even_when_gone(gw: Running, server: EmbeddingServer) -> None:
    server.hang = 60.0
    leader = sent(gw, "Is there leave?")
    until(lambda: embedded(server) == ["Is there leave?"])
    joins = sent(gw, "Is there leave?")
    for _ in range(20):  # until the gateway has read what lies in its socket
        gw.client.get("/healthz")
    leader.close()
    gone = until(lambda: [d for d in decisions(gw) if d["error"] == "client_disconnected"])
    assert gone[0]["tokens"]["consumed"] == 0, "nobody knows yet what it takes"
    server.hang = 0.0
    reply = joins.getresponse()
    assert (reply.status, reply.headers["x-refrain-cache"]) == (200, "joined")
    joins.close()
    records = {d["id"]: d for d in decisions(gw)}
    assert embedded(server) == ["Is there leave?"]
    assert records[reply.headers["x-request-id"]]["tokens"]["consumed"] == 0
    paid = records[gone[0]["id"]]
    assert paid["tokens"]["consumed"] == paid["tokens"]["unserved"] == 100
    assert paid["usd"]["overhead"] == pytest.approx(100 * PRICE / 1e6)
    assert settled(gw)["unserved"] == 100


def sent(gw: Running, query: str) -> http.client.HTTPConnection:
    """A search that nobody has read the answer of yet."""
    connection = http.client.HTTPConnection(gw.url.removeprefix("http://"), timeout=30)
    headers = {"content-type": "application/json", "authorization": f"Bearer {ALICE}"}
    connection.request("POST", SEARCH, json.dumps({"query": query}), headers)
    return connection


def decisions(gw: Running) -> list[Json]:
    return list(gw.admin("GET", "/admin/decisions").json()["decisions"])


def test_an_embedder_of_ones_own_is_paid_for_by_the_hour(up: Upstream, server: EmbeddingServer, tmp_path: Path) -> None:
    with running(text(up, server, tmp_path, ", hourly_cost: 3600"), embedders=embedder_of) as gw:
        ready(gw)
        record = search(gw, "Is there leave?")
        assert record["usd"]["billable"] is None
        assert 0 < record["usd"]["overhead"] <= record["phases"]["search"] / 1000
        assert record["usd"]["consumed"] == record["usd"]["overhead"]
        assert outcome(gw.chat("nothing is searched")) == "miss"
        assert settled(gw)["unserved"] == 100


def test_a_search_that_fails_is_paid_for_as_far_as_it_came(gw: Running, server: EmbeddingServer) -> None:
    def broken(body: Json) -> bytes:
        body["data"][0]["embedding"] = [0.0] * server.size
        return reported(body)

    server.spoil = broken
    reply = gw.admin("POST", SEARCH, key=ALICE, json={"query": "Is there leave?"})
    assert reply.status_code == 502
    assert decision(gw, reply)["tokens"]["unserved"] == 100
    assert settled(gw)["consumed"] == 100
