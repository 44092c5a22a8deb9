"""Sums that add up: served + unserved = consumed + saved, in tokens and in money."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import ADMIN, ALICE, EVE, Running, config_text, running
from tests.support.traffic import fixed, outcome
from tests.support.upstream import Reply, Upstream, answer_with, chat_answer, chat_chunks, sse

Json = dict[str, Any]
SUMS = {"served", "unserved", "consumed", "billable", "saved"}
TOKENS = 18  # of the scripted answer: 11 in, 7 out
PRICE = 0.000025  # at 1 and 2 USD per million
SSE = "text/event-stream"


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    """A fresh one for each test: sums begin at its start."""
    extra = "prices: {test-model: {input: 1.0, output: 2.0}}\n"
    with running(config_text(up.url, extra=extra)) as gateway:
        yield gateway


def stats(gw: Running, *, key: str = ADMIN) -> Json:
    found = dict(gw.admin("GET", "/admin/stats", key=key).json())
    for unit, exact in (("tokens", 0), ("usd", 1e-12)):
        sums = found[unit]
        assert sums.keys() == SUMS
        assert abs(sums["served"] + sums["unserved"] - sums["consumed"] - sums["saved"]) <= exact, sums
        assert all(value >= 0 for value in sums.values())
    return found


def test_a_fresh_gateway_has_nothing_to_tell(gw: Running) -> None:
    found = stats(gw)
    assert found.keys() >= {"requests", "tokens", "usd", "tiers", "backends", "semantic"}
    assert sum(found["requests"].values()) == 0
    assert set(found["tokens"].values()) == {0}


def test_misses_and_hits_of_every_kind(gw: Running) -> None:
    for stream in (False, True):
        for path in ("/v1", "/rr/v1"):
            for user in ("a", "b", "b"):
                gw.chat(f"{stream}", path=path, stream=stream, user=user)
    found = stats(gw)  # 4 questions, each once missed and twice hit
    assert found["requests"] == {"miss": 4, "exact": 8}
    assert found["tokens"] == {
        "served": 12 * TOKENS,
        "unserved": 0,
        "consumed": 4 * TOKENS,
        "billable": 4 * TOKENS,
        "saved": 8 * TOKENS,
    }
    assert found["usd"]["consumed"] == pytest.approx(4 * PRICE)
    assert found["usd"]["saved"] == pytest.approx(8 * PRICE)


def test_a_mixed_sequence_adds_up(gw: Running, up: Upstream) -> None:
    """Bypasses, errors, refusals, cut streams and answers without usage among hits and misses."""
    script = up.script
    broken = sse(chat_chunks(chat_answer("a b"), include_usage=True)[:2], done=False)
    without_usage = {k: v for k, v in chat_answer("free").items() if k != "usage"}
    odd_usage = chat_answer("odd", usage={"prompt_tokens": -5, "completion_tokens": "7", "total_tokens": 1e400})
    storms: list[Any] = [
        script,
        fixed(Reply([b'{"error": {"message": "no"}}'], status=429)),
        fixed(Reply([b"no"], status=500)),
        fixed(Reply([broken], content_type=SSE)),
        fixed(Reply([broken], content_type=SSE, cut=True)),
        fixed(Reply([b'{"id": "x", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}'])),
        fixed(Reply([b'{"error": {"message": "no"}, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}'])),
        fixed(Reply([json.dumps(without_usage).encode()])),
        fixed(Reply([json.dumps(odd_usage).replace("Infinity", "1e400").encode()])),
        answer_with(chat_answer("long", choices=[{**chat_answer("long")["choices"][0], "finish_reason": "length"}])),
        script,
    ]
    for number, storm in enumerate(storms):
        up.script = storm
        for path in ("/v1", "/rr/v1", "/uncached/v1"):
            for stream in (False, True):
                gw.chat(f"mixed {number}", path=path, stream=stream)
                stats(gw)
        gw.chat(f"mixed {number}", headers={"cache-control": "only-if-cached"})
        gw.chat(f"mixed {number}", key="rf-wrong")
        gw.raw(b"{")
    found = stats(gw)
    assert found["tokens"]["saved"] > 0
    assert found["tokens"]["consumed"] > 0


@pytest.mark.parametrize("end", ["cut", "error event", "no finish_reason"])
def test_a_stream_that_breaks_after_its_usage_was_not_served(gw: Running, up: Upstream, end: str) -> None:
    """The upstream counted the tokens, but nobody has an answer for them."""
    pieces = chat_chunks(chat_answer("a b"), include_usage=True)
    if end == "no finish_reason":
        pieces = [p for p in pieces if not p["choices"] or not p["choices"][0]["finish_reason"]]
    tail = b'data: {"error": {"message": "no"}}\n\n' if end == "error event" else b""
    up.script = fixed(Reply([sse(pieces, done=False), tail], content_type=SSE, cut=end == "cut", pause=0.05))
    assert gw.chat("breaks").status_code >= 500
    assert stats(gw)["tokens"]["served"] == 0


def test_an_answer_that_the_client_never_got_was_not_served(gw: Running, up: Upstream) -> None:
    """A plain answer without choices cannot be streamed: the call was paid for, but served nobody."""
    up.script = fixed(Reply([b'{"id": "x", "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}']))
    assert gw.chat("shapeless", path="/rr/v1", stream=True).status_code >= 500
    tokens = stats(gw)["tokens"]
    assert (tokens["served"], tokens["unserved"], tokens["consumed"]) == (0, 7, 7)


def test_each_tenant_has_its_own_sums(gw: Running) -> None:
    for key in (ALICE, ALICE, ALICE, EVE):
        gw.chat("whose", key=key)
    assert stats(gw, key=EVE)["tokens"]["served"] == TOKENS
    assert stats(gw, key=EVE)["requests"] == {"miss": 1}
    assert stats(gw)["tokens"]["served"] == 4 * TOKENS
    assert "entries" not in json.dumps(stats(gw, key=EVE)["tiers"])


def test_metrics_tell_the_same(gw: Running) -> None:
    for _ in range(3):
        outcome(gw.chat("counted"))
    gw.chat("counted", headers={"cache-control": "no-store"})
    response = gw.admin("GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    lines = [line for line in response.text.splitlines() if line.startswith("refrain_requests_total{")]
    counted: dict[str, float] = {}
    for line in lines:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
        assert labels.keys() == {"endpoint", "tier", "outcome"}
        assert labels["endpoint"] == "default"
        counted[labels["outcome"]] = counted.get(labels["outcome"], 0) + float(line.rpartition(" ")[2])
    assert counted == {"miss": 1, "exact": 2, "bypass": 1}
    for line in response.text.splitlines():
        assert line.startswith(("refrain_", "# HELP refrain_", "# TYPE refrain_"))


def test_names_that_clients_make_up_do_not_grow_the_metrics(gw: Running) -> None:
    """Unknown endpoints and models are no labels, or anyone could fill the memory with them."""
    before = len(gw.admin("GET", "/metrics").text)
    for i in range(50):
        gw.chat("a", path=f"/made-up-{i}/v1")
        gw.chat("a", path=f"/made-up-{i}/v1", key="rf-wrong")
        gw.chat(f"{i}", model=f"made-up-{i}")
    text = gw.admin("GET", "/metrics").text
    assert "made-up" not in text
    assert len(text) < before + 10_000
