"""What the books say of a gateway on real sockets and real files: after a restart, beside a broken file, of embeddings,
of cached tokens, and of hardware that is paid for by the hour."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.embedders import embedder_of
from tests.support.embedding_server import EmbeddingServer, embedding_server
from tests.support.gateway import EVE, Running, config_text, running
from tests.support.live import TOKENS
from tests.support.semantic import ASKED, OTHER, REWORDED
from tests.support.traffic import decision, fixed, outcome, until
from tests.support.upstream import Reply, Upstream, answer_with, chat_answer, chat_chunks, sse

Json = dict[str, Any]
PRICES = "prices: {test-model: {input: 1.0, output: 2.0, cached_input: 0.5}}\n"
PRICE = 0.000025  # of the scripted answer: 11 in, 7 out
SSE = "text/event-stream"


def stats(gw: Running, **more: str) -> Json:
    found = dict(gw.admin("GET", "/admin/stats", **more).json())
    sides = [found, *(sums for view in found["by"].values() for sums in view.values())]
    for sums in sides:
        for unit, exact in (("tokens", 0), ("usd", 1e-12)):
            s = sums[unit]
            assert abs(s["served"] + s["unserved"] - s["consumed"] - s["saved"]) <= exact, sums
    return found


def at(folder: Path) -> str:
    return f"sqlite:///{folder}/cache.db"


# Files


def test_all_time_is_there_after_a_restart(up: Upstream, tmp_path: Path) -> None:
    text = config_text(up.url, store=at(tmp_path), extra=PRICES)
    with running(text) as gw:
        for key in (None, None, EVE):
            gw.chat("kept", **({"key": key} if key else {}))
        before = stats(gw)
    with running(text) as gw:
        after = stats(gw)
        for name in ("requests", "tokens", "usd", "by", "parts"):
            assert after[name] == before[name]
        gw.chat("kept")
        assert stats(gw)["requests"] == {"miss": 2, "exact": 2}
        assert stats(gw, key=EVE)["by"]["tenant"].keys() == {"globex"}
    assert (tmp_path / "cache.ledger.db").stat().st_mode & 0o777 == 0o600


def test_a_process_that_ends_at_once_has_lost_a_second_at_most(up: Upstream, tmp_path: Path) -> None:
    with running(config_text(up.url, store=at(tmp_path))) as gw:
        gw.chat("written")

        def written() -> bool:
            with closing(sqlite3.connect(tmp_path / "cache.ledger.db")) as db:
                return db.execute("SELECT SUM(served) FROM totals").fetchone() == (TOKENS,)

        until(written, timeout=3)


@pytest.mark.parametrize("how", ["damaged", "a folder in its place"])
def test_a_ledger_that_cannot_be_used_is_in_nobodys_way(up: Upstream, tmp_path: Path, how: str) -> None:
    file = tmp_path / "cache.ledger.db"
    if how == "damaged":
        file.write_bytes(b"not a database, but long enough to be looked at " * 100)
    else:
        file.mkdir()
    with running(config_text(up.url, store=at(tmp_path))) as gw:
        assert [outcome(gw.chat(f"served {how}")) for _ in range(2)] == ["miss", "exact"]
        assert stats(gw)["tokens"]["served"] == 2 * TOKENS
        assert gw.client.get("/readyz").status_code == 200
    assert (tmp_path / "cache.ledger.db.damaged-1").exists() == (how == "damaged")


# Prices


def test_a_changed_price_list_holds_for_the_next_call(up: Upstream, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("test-model: {input: 1.0, output: 2.0}\n")
    text = config_text(up.url, extra="prices: ./prices.yaml\n")
    with running(text, path=tmp_path / "refrain.yaml") as gw:
        assert decision(gw, gw.chat("first"))["usd"]["consumed"] == pytest.approx(PRICE)
        prices.write_text("test-model: {input: -1.0, output: 2.0}\n")
        time.sleep(3)
        assert decision(gw, gw.chat("second"))["usd"]["consumed"] == pytest.approx(PRICE)
        prices.write_text("test-model: {input: 10.0, output: 20.0}\n")
        number = iter(range(100))

        def dearer() -> bool:
            cost = decision(gw, gw.chat(f"third {next(number)}"))["usd"]["consumed"]
            return bool(cost == pytest.approx(10 * PRICE))

        until(dearer, timeout=10)


def test_tokens_that_the_provider_had_cached_cost_less(up: Upstream) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 8}}
    up.script = answer_with(chat_answer("cached", usage=usage))
    with running(config_text(up.url, extra=PRICES)) as gw:
        gw.chat("cached?")
        found = stats(gw)
        assert found["usd"]["billable"] == pytest.approx((3 * 1.0 + 8 * 0.5 + 7 * 2.0) / 1e6)
        assert found["parts"]["tokens"] == {"cached": 8, "estimated": 0}


def test_own_hardware_is_consumed_but_nobody_charges_for_it(up: Upstream) -> None:
    text = config_text(up.url).replace("kind: remote,", "kind: remote, hourly_cost: 36, utilization: 0.5,")
    up.script = fixed(Reply([sse(chat_chunks(chat_answer("slow"), include_usage=True))], content_type=SSE, pause=0.1))
    with running(text) as gw:
        record = decision(gw, gw.chat("by the hour"))
        ms = record["phases"]["upstream"]
        assert record["usd"]["consumed"] == pytest.approx(36 * ms / 3.6e6 / 0.5, rel=0.02)
        assert (record["usd"]["billable"], record["tokens"]["billable"]) == (None, 0)
        found = stats(gw)
        assert (found["tokens"]["billable"], found["tokens"]["consumed"], found["usd"]["billable"]) == (0, TOKENS, 0)
        backend = found["backends"]["fake"]
        assert backend["utilization"] == {"configured": 0.5, "measured": None, "used": 0.5}
        assert backend["models"]["test-model"]["samples"] == 1
        assert stats(gw, key=EVE)["backends"] == {"fake": {"state": "ready"}}


def test_what_a_backend_does_not_report_is_estimated_and_said_to_be(up: Upstream) -> None:
    answer = chat_answer("nothing is said of tokens")
    up.script = fixed(Reply([sse(chat_chunks(answer, include_usage=False))], content_type=SSE))
    with running(config_text(up.url, extra=PRICES)) as gw:
        record = decision(gw, gw.chat("unreported"))
        tokens = record["tokens"]
        assert tokens["served"] == tokens["consumed"] == tokens["estimated"] == tokens["billable"] > 0
        assert tokens["input"] + tokens["output"] == tokens["served"]
        up.script = fixed(Reply([sse(chat_chunks(answer, include_usage=False)[:3], done=False)], content_type=SSE))
        record = decision(gw, gw.chat("broken off"))
        tokens = record["tokens"]
        assert (tokens["served"], tokens["input"]) == (0, 0)
        assert tokens["unserved"] == tokens["consumed"] == tokens["estimated"] > 0
        stats(gw)


# Embeddings


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as app:
        app.spoil = reported
        yield app


def reported(body: Json) -> bytes:
    return json.dumps({**body, "usage": {"prompt_tokens": 100 * len(body["data"]), "total_tokens": 1}}).encode()


def asked(gw: Running, server: EmbeddingServer) -> list[Json]:
    """The records of a first question, of another, and of the first in other words."""
    until(lambda: stats(gw)["semantic"]["state"] == "ready")
    server.seen.clear()
    return [decision(gw, gw.chat(text)) for text in (ASKED, OTHER, REWORDED)]


def test_embeddings_of_a_provider_are_paid_for_by_the_token(up: Upstream, server: EmbeddingServer) -> None:
    prices = "prices: {placed: {input: 5.0, output: 0}, test-model: {input: 1.0, output: 2.0}}\n"
    with running(config_text(up.url, extra=server.config() + prices), embedders=embedder_of) as gw:
        first, other, again = asked(gw, server)
        assert first["usd"]["overhead"] is None
        assert (again["outcome"], again["tokens"]["saved"], again["tokens"]["served"]) == ("semantic", TOKENS, TOKENS)
        assert again["tokens"]["consumed"] == again["tokens"]["unserved"] == again["tokens"]["billable"] == 100
        assert other["tokens"]["consumed"] - TOKENS == other["tokens"]["unserved"] == 200  # the first one's, too
        found = stats(gw)
        embedded = sum(len(body["input"]) for _, body in server.seen)
        assert found["tokens"]["unserved"] == 100 * embedded == 300
        assert found["usd"]["unserved"] == pytest.approx(300 * 5e-6)
        assert found["parts"]["usd"]["overhead"] == pytest.approx(300 * 5e-6)
        assert found["usd"]["billable"] == pytest.approx(300 * 5e-6 + 2 * PRICE)


def test_a_search_for_a_cached_answer_only_is_paid_for_too(up: Upstream, server: EmbeddingServer) -> None:
    only = {"cache-control": "only-if-cached"}
    with running(config_text(up.url, extra=server.config()), embedders=embedder_of) as gw:
        asked(gw, server)
        found = decision(gw, gw.chat("How could I reset my password?", headers=only))
        assert (found["outcome"], found["tokens"]["consumed"], found["tokens"]["saved"]) == ("semantic", 100, TOKENS)
        nothing = decision(gw, gw.chat("Who was Ada Lovelace?", headers=only))
        assert (nothing["error"], nothing["tokens"]["unserved"]) == ("not_cached", 100)
        stats(gw)


def test_a_server_that_reports_nothing_is_estimated(up: Upstream, server: EmbeddingServer) -> None:
    server.reset()
    with running(config_text(up.url, extra=server.config()), embedders=embedder_of) as gw:
        *_, again = asked(gw, server)
        assert again["tokens"]["consumed"] == again["tokens"]["estimated"] == len(REWORDED) // 4


def test_an_embedder_of_ones_own_is_paid_for_by_the_hour(up: Upstream, server: EmbeddingServer) -> None:
    config = server.config().replace("model: placed", "model: placed, hourly_cost: 3600")
    with running(config_text(up.url, extra=config + PRICES), embedders=embedder_of) as gw:
        *_, again = asked(gw, server)
        assert again["usd"]["billable"] is None
        assert 0 < again["usd"]["overhead"] <= again["phases"]["semantic"] / 1000
        assert again["usd"]["consumed"] == again["usd"]["overhead"]
        found = stats(gw)
        assert found["usd"]["unserved"] == pytest.approx(found["parts"]["usd"]["overhead"])
        assert found["usd"]["billable"] == pytest.approx(2 * PRICE)
