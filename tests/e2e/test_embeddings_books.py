"""What the books and the headers say of requests for embeddings: what was served, forwarded and saved, in tokens, money
and time, and that for each of them served + unserved = consumed + saved."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import ALICE, Running, config_text, running
from tests.support.live import settled
from tests.support.traffic import decision, error_of, fixed, outcome
from tests.support.upstream import Reply, Seen, Upstream, embedded, embeddings_answer
from tests.support.vectors import embed

Json = dict[str, Any]
PRICED = "priced-model"
"""Costs one USD per million tokens; the upstream counts a token for each letter."""


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    yield
    settled(gw)


def books(gw: Running, asked: Any, **more: Any) -> Json:
    """Of one request, its decision; in balance."""
    found = decision(gw, embed(gw, asked, **more))
    tokens = found["tokens"]
    assert tokens["served"] + tokens["unserved"] == tokens["consumed"] + tokens["saved"]
    assert min(tokens.values()) >= 0
    return found


def brief(found: Json) -> tuple[int, int, int, int]:
    tokens = found["tokens"]
    return tokens["served"], tokens["consumed"], tokens["saved"], tokens["unserved"]


def usd(tokens: int) -> Any:
    return pytest.approx(tokens / 1e6)


def test_of_a_partly_cached_batch(gw: Running, up: Upstream, prompt: str) -> None:
    one, two = f"{prompt} one", f"{prompt} three"
    books(gw, [one], model=PRICED)
    answer = embed(gw, [two, one, one], model=PRICED)
    found = decision(gw, answer)
    assert brief(found) == (len(two) + 2 * len(one), len(two), 2 * len(one), 0)
    assert (found["tokens"]["input"], found["tokens"]["output"]) == (len(two) + 2 * len(one), 0)
    assert (found["usd"]["consumed"], found["usd"]["saved"]) == (usd(len(two)), usd(2 * len(one)))
    assert (found["usd"]["billable"], found["tokens"]["billable"]) == (usd(len(two)), len(two))
    assert (found["outcome"], found["api"], found["model"], found["backend"]) == ("miss", "embeddings", PRICED, "fake")
    assert found["tiers"] == [{"tier": "exact", "result": "miss", "hits": "2/3"}]
    assert {"auth", "parse", "exact", "upstream"} <= found["phases"].keys()
    assert (found["stored"], found["not_stored"], found["status"]) == (True, None, 200)
    saved = dict(part.split("=") for part in answer.headers["x-refrain-saved"].split("; "))
    assert (saved["tokens"], float(saved["usd"])) == (str(2 * len(one)), usd(2 * len(one)))
    assert answer.json()["usage"]["prompt_tokens"] == len(two) + 2 * len(one)


def test_of_one_that_is_all_cached(gw: Running, up: Upstream, prompt: str) -> None:
    texts = [f"{prompt} {i}" for i in range(3)]
    first = books(gw, texts, model=PRICED)
    size = sum(map(len, texts))
    assert brief(first) == (size, size, 0, 0)
    again = books(gw, texts[::-1], model=PRICED)
    assert brief(again) == (size, 0, size, 0)
    assert (again["outcome"], again["usd"]["saved"], again["usd"]["consumed"]) == ("exact", usd(size), None)
    assert again["ms_saved"] == pytest.approx(first["phases"]["upstream"], rel=0.1, abs=0.2)
    assert [tier["result"] for tier in again["tiers"]] == ["hit"]
    assert again["key"] != first["key"]  # of the whole request, in its order


def test_repeating_an_element_saves_what_it_would_have_cost(gw: Running, up: Upstream, prompt: str) -> None:
    found = books(gw, [prompt] * 5, model=PRICED)
    assert brief(found) == (5 * len(prompt), len(prompt), 4 * len(prompt), 0)
    assert (found["usd"]["consumed"], found["usd"]["saved"]) == (usd(len(prompt)), usd(4 * len(prompt)))


def test_of_one_that_no_cache_may_serve(gw: Running, up: Upstream, prompt: str) -> None:
    found = books(gw, [prompt, "b"], headers={"cache-control": "no-store"})
    assert brief(found) == (len(prompt) + 1, len(prompt) + 1, 0, 0)
    assert (found["outcome"], found["stored"], found["not_stored"]) == ("bypass", False, "no_store")
    assert found["tiers"] == [{"tier": "exact", "result": "skipped", "why": "no_store"}]


def test_one_reply_s_tokens_are_shared_by_length_and_add_up(gw: Running, up: Upstream, prompt: str) -> None:
    """Whatever the backend says: the parts of what it has counted make the whole."""
    texts = [f"{prompt} {x}" for x in ("a", "b", "c")]
    up.script = reporting({"prompt_tokens": 10, "total_tokens": 10})
    assert embed(gw, texts).json()["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    assert [embed(gw, text).json()["usage"]["prompt_tokens"] for text in texts] == [4, 3, 3]
    assert embed(gw, [texts[1], texts[0]]).json()["usage"]["total_tokens"] == 7


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": -5}, {"prompt_tokens": "9"}, [1], {"prompt_tokens": 0}], ids=str
)
def test_what_a_backend_does_not_count_is_counted_here(gw: Running, up: Upstream, prompt: str, usage: Any) -> None:
    up.script = reporting(usage)
    found = books(gw, [prompt, prompt + "!"])
    about = len(json.dumps({"model": "test-model", "input": [prompt, prompt + "!"]}, separators=(",", ":"))) // 4
    assert brief(found) == (about, about, 0, 0)
    assert found["tokens"]["estimated"] == about
    assert brief(books(gw, [prompt, prompt + "!"])) == (about, 0, about, 0)


def test_of_what_is_forwarded_only_that_is_estimated(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = reporting(None)
    long = f"{prompt} " * 200
    embed(gw, [long])
    assert books(gw, [long, prompt])["tokens"]["estimated"] < 40


def reporting(usage: Any) -> Any:
    def script(seen: Seen, number: int) -> Reply:
        return Reply([json.dumps({**embeddings_answer(seen), "usage": usage}).encode()])

    return script


def test_a_reply_that_is_none_was_paid_for_and_served_to_nobody(gw: Running, up: Upstream, prompt: str) -> None:
    broken = embeddings_answer(Seen("", "", {}, {"input": "a", "model": "m"}, b""))
    up.script = fixed(Reply([json.dumps({**broken, "data": []}).encode()]))
    found = books(gw, [prompt])
    assert found["error"] == "backend_reply_broken"
    served, consumed, saved, unserved = brief(found)
    assert (served, saved) == (0, 0)
    assert consumed == unserved > 0


def test_a_backend_that_refuses_costs_nothing(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = fixed(Reply([b"{}"], status=500))
    assert brief(books(gw, [prompt])) == (0, 0, 0, 0)


def test_the_age_is_that_of_the_oldest_that_is_reused(gw: Running, up: Upstream, prompt: str) -> None:
    texts = [f"{prompt} {i}" for i in range(3)]
    for text in texts[:2]:
        embed(gw, text)
        gw.clock.offset += 100
    assert embed(gw, texts[1]).headers["age"] == "100"
    answer = embed(gw, texts[::-1])
    assert (outcome(answer), answer.headers["age"]) == ("miss", "200")


def test_the_life_that_is_left_is_that_of_the_first_to_end(gw: Running, up: Upstream, prompt: str) -> None:
    gw.clock.frozen = 1_900_000_000.0
    embed(gw, f"{prompt} a", headers={"x-refrain-ttl": "60s"})
    embed(gw, f"{prompt} b")
    gw.clock.offset += 10
    assert embed(gw, [f"{prompt} b", f"{prompt} a"]).headers["cache-status"] == "exact; hit; ttl=50"


def test_the_provider_s_id_is_that_of_the_call(gw: Running, up: Upstream, prompt: str) -> None:
    def script(seen: Seen, number: int) -> Reply:
        reply = embedded(seen, number)
        reply.headers["x-request-id"] = f"call-{number}"
        return reply

    up.script = script
    a, b = f"{prompt} a", f"{prompt} b"
    first = embed(gw, [a]).headers["x-refrain-upstream-id"]
    assert embed(gw, [a]).headers["x-refrain-upstream-id"] == first
    second = embed(gw, [a, b]).headers["x-refrain-upstream-id"]
    assert first != second
    assert "x-refrain-upstream-id" not in embed(gw, [b, a]).headers  # they come from two


def test_tokens_count_against_the_limits_of_whoever_they_are_forwarded_for(up: Upstream) -> None:
    limited = "    - {key: rf-limited, tenant: acme, user: carl, limits: {tokens: 10/day}}\n"
    text = config_text(up.url).replace("  keys:\n", f"  keys:\n{limited}")
    assert limited in text
    with running(text) as gw:
        assert outcome(embed(gw, "ten letter")) == "miss"
        assert outcome(embed(gw, "ten letter", key="rf-limited")) == "exact"  # costs nothing
        assert outcome(embed(gw, "other ten!", key="rf-limited")) == "miss"
        assert error_of(embed(gw, "one more", key="rf-limited"), 429)
        assert outcome(embed(gw, "one more", key=ALICE)) == "miss"


def test_the_sums_of_all(up: Upstream) -> None:
    with running(config_text(up.url, extra=f"prices: {{{PRICED}: {{input: 1.0, output: 2.0}}}}\n")) as gw:
        for texts in (["aaaa"], ["aaaa", "bbb"], ["bbb", "bbb"]):
            embed(gw, texts, model=PRICED)
        found = gw.admin("GET", "/admin/stats").json()
        assert found["requests"] == {"miss": 2, "exact": 1}
        assert found["tokens"] == {"served": 17, "unserved": 0, "consumed": 7, "billable": 7, "saved": 10}
        assert found["usd"]["saved"] == usd(10)
        assert found["usd"]["unserved"] == 0
        assert found["tiers"]["exact"]["memory"]["entries"] == 2
