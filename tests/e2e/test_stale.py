"""`stale_while_revalidate`: past its life an answer goes on serving for a while, and one new one is fetched."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import EVE, Running, config_text, running
from tests.support.live import FORMS, TOKENS, call, gate, gated, gauge, settled, together
from tests.support.traffic import byte_identical, decision, fixed, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Script, Upstream, chat_answer, reply_for

Json = dict[str, Any]
NOON = 1_750_000_000.0
SSE = "text/event-stream"
EXTRA = """
  soft: {mode: stream, cache: {exact: {ttl: 100s, stale_while_revalidate: 50s}}}
  soft_whole: {mode: request_response, cache: {exact: {ttl: 100s, stale_while_revalidate: 50s}}}
"""
SOFT = pytest.mark.parametrize("path", ["/soft/v1", "/soft_whole/v1"], ids=["stream", "request_response"])
BROKEN = Reply([b'{"error": {"message": "no"}}'], status=500)


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """Each test begins at noon; after it no flight is left, and the sums are in balance."""
    gw.clock.frozen = NOON
    yield
    settled(gw)


def naming_calls(seen: Any, number: int) -> Reply:
    return reply_for(seen, chat_answer(f"answer {number}"))


def refreshed(gw: Running, up: Upstream, prompt: str, path: str, text: str, **more: Any) -> None:
    """Wait until the stored answer is this one, without asking for a new one."""

    def found() -> bool:
        answer = gw.chat(prompt, path=path, headers={"cache-control": "only-if-cached"}, **more)
        return answer.status_code == 200 and text_of(answer) == text

    until(found)


@SOFT
@pytest.mark.parametrize("form", FORMS)
def test_everybody_is_served_stale_and_one_new_answer_is_fetched(
    gw: Running, up: Upstream, prompt: str, path: str, form: str
) -> None:
    """Thirty at once past the life: all have the old answer at once, while exactly one call is under way."""
    up.script = naming_calls
    old = text_of(gw.chat(prompt, path=path, **FORMS[form]))
    gw.clock.frozen = NOON + 120
    with gate() as go:
        up.script = lambda seen, number: gated(naming_calls(seen, number), go)
        with upstream_calls(up, 1):
            results = [c.result() for c in [call(gw, prompt, path=path, **FORMS[form]) for _ in range(30)]]
            until(lambda: up.open == 1)
            results += [gw.chat(prompt, path=path, **FORMS[form]) for _ in range(5)]
            go.set()
            settled(gw)
            new = gw.chat(prompt, path=path, **FORMS[form])
    assert [outcome(r) for r in results] == ["stale"] * 35
    assert {text_of(r) for r in results} == {old}
    assert {r.headers["age"] for r in results} == {"120"}
    assert all(r.headers["cache-status"].startswith("exact; hit; ttl=-20") for r in results)
    assert all(r.headers["x-refrain-saved"].startswith("tokens=18;") for r in results)
    assert outcome(new) == "exact"
    assert text_of(new) == f"answer {up.calls}" != old
    assert new.headers["age"] == "0"


def test_the_record_says_stale(gw: Running, up: Upstream, prompt: str) -> None:
    """Of a stale answer, of the sums, and that the refresh was paid for and served nobody."""
    gw.chat(prompt, path="/soft/v1")
    gw.clock.frozen = NOON + 120
    before = settled(gw)
    stale = gw.chat(prompt, path="/soft/v1")
    record = decision(gw, stale)
    assert (record["outcome"], record["age"], record["status"]) == ("stale", 120, 200)
    assert (record["tokens"]["served"], record["tokens"]["saved"]) == (TOKENS, TOKENS)
    refreshed(gw, up, prompt, "/soft/v1", f"This is answer number {up.calls}.")
    after = settled(gw)
    assert (after["consumed"] - before["consumed"], after["unserved"] - before["unserved"]) == (TOKENS, TOKENS)
    assert gw.admin("GET", "/admin/stats").json()["requests"]["stale"] >= 1


@SOFT
@pytest.mark.parametrize(
    ("after", "expected"), [(99.999, "exact"), (100.0, "stale"), (149.999, "stale"), (150.0, "miss"), (150.001, "miss")]
)
def test_both_ends_are_exact(gw: Running, up: Upstream, prompt: str, path: str, after: float, expected: str) -> None:
    """Fresh until just before the ttl, stale from then until just before the end of the grace."""
    for way in ("same bytes", "parsed"):
        gw.clock.frozen = NOON
        text = f"{prompt} {way}"
        first = gw.chat(text, path=path)
        assert outcome(gw.chat(text, path=path)) == "exact"
        gw.clock.frozen = NOON + after
        asked = gw.chat(text, path=path, **({"user": "another"} if way == "parsed" else {}))
        assert outcome(asked) == expected
        assert (text_of(asked) == text_of(first)) == (expected != "miss")
        settled(gw)


def test_the_short_way_does_not_hide_the_refresh(gw: Running, up: Upstream, prompt: str) -> None:
    """The same bytes over and over: still exact before the ttl, but by then a new answer is on its way."""
    up.script = naming_calls
    first = gw.chat(prompt, path="/soft/v1")
    assert byte_identical(gw, gw.chat(prompt, path="/soft/v1"))
    gw.clock.frozen = NOON + 99.999
    with upstream_calls(up, 1):
        hit = gw.chat(prompt, path="/soft/v1")
        assert outcome(hit) == "exact"
        assert text_of(hit) == text_of(first)
        until(lambda: text_of(gw.chat(prompt, path="/soft/v1")) != text_of(first))
    gw.clock.frozen = NOON + 140
    assert outcome(gw.chat(prompt, path="/soft/v1")) == "exact"  # made at 99.999


def test_refreshes_of_a_batch_are_spread(gw: Running, up: Upstream, prompt: str) -> None:
    """Thirty answers of one moment: none is refreshed before nine tenths of its life, some by 95 %, all by the end."""
    prompts = [f"{prompt} {number}" for number in range(30)]
    for text in prompts:
        gw.chat(text, path="/soft/v1")
    with gate() as go:
        up.script = lambda seen, number: gated(naming_calls(seen, number), go)
        base = up.calls

        def asked_at(seconds: float) -> int:
            gw.clock.frozen = NOON + seconds
            assert {outcome(gw.chat(text, path="/soft/v1")) for text in prompts} == {"exact"}
            # A refresh that begins is a flight before its request is answered.
            until(lambda: up.calls - base == gauge(gw, "refrain_flights"))
            return up.calls - base

        assert asked_at(89.999) == 0
        early = asked_at(95)
        assert 0 < early < 30
        asked_at(99.999)
        until(lambda: up.calls - base == 30)
        go.set()


def test_one_refresh_for_each_key(gw: Running, up: Upstream, prompt: str) -> None:
    """Two prompts and two tenants are three keys."""
    asks: list[Json] = [{"content": f"{prompt} a"}, {"content": f"{prompt} b"}, {"content": f"{prompt} a", "key": EVE}]
    for ask in asks:
        gw.chat(**ask, path="/soft/v1")
    gw.clock.frozen = NOON + 101
    with gate() as go:
        up.script = lambda seen, number: gated(naming_calls(seen, number), go)
        with upstream_calls(up, 3):
            for _ in range(3):
                assert {outcome(gw.chat(**ask, path="/soft/v1")) for ask in asks} == {"stale"}
            until(lambda: up.open == 3)
            go.set()
            settled(gw)


@pytest.mark.parametrize(
    "ways",
    [
        [{"temperature": 0.7}],
        [{}, {"headers": {"x-refrain-ttl": "90s"}}, {"headers": {"x-refrain-tags": "a"}}, {"cache": {"ttl": 0}}],
    ],
    ids=["samples", "several ways to store it"],
)
def test_one_refresh_however_it_is_asked_for(gw: Running, up: Upstream, prompt: str, ways: list[Json]) -> None:
    """Requests that would share no flight share a refresh, and it is the entry's own: its life is the endpoint's."""
    gw.chat(prompt, path="/soft/v1", **ways[0])
    gw.clock.frozen = NOON + 120
    with gate() as go:
        up.script = lambda seen, number: gated(naming_calls(seen, number), go)
        with upstream_calls(up, 1):
            for more in ways[::-1] * 5:
                assert outcome(gw.chat(prompt, path="/soft/v1", **more)) == "stale"
            until(lambda: up.open == 1)
            go.set()
            settled(gw)
    gw.clock.frozen = NOON + 120 + 99.999
    assert outcome(gw.chat(prompt, path="/soft/v1", **ways[0])) == "exact"


CUT_SHORT = {**chat_answer("one"), "choices": [{**chat_answer("one")["choices"][0], "finish_reason": "length"}]}
FAILURES: dict[str, Script] = {
    "500": fixed(BROKEN),
    "429": fixed(Reply([b'{"error": {"message": "slow down"}}'], status=429)),
    "cut": fixed(Reply([], cut=True)),
    "garbage": fixed(Reply([b"<html>"])),
    "an end that cannot be stored": lambda seen, number: reply_for(seen, CUT_SHORT),
}


@SOFT
@pytest.mark.parametrize("failure", FAILURES)
def test_a_refresh_that_fails_leaves_the_old_answer(
    gw: Running, up: Upstream, prompt: str, path: str, failure: str
) -> None:
    """Nobody notices until the grace is over; then the backend is asked in earnest."""
    old = text_of(gw.chat(prompt, path=path))
    up.script, calls = FAILURES[failure], up.calls
    for seconds in (100, 120, 149.999):
        gw.clock.frozen = NOON + seconds
        answer = gw.chat(prompt, path=path)
        assert (outcome(answer), text_of(answer)) == ("stale", old)
        settled(gw)
    assert up.calls > calls
    gw.clock.frozen = NOON + 150
    up.script = naming_calls
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path=path)) == "miss"


@SOFT
@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"cache-control": "no-cache"}},
        {"headers": {"cache-control": "max-age=0"}},
        {"headers": {"cache-control": "max-age=110"}},
        {"cache": {"no-cache": True}},
        {"cache": {"s-maxage": 10}},
    ],
    ids=str,
)
def test_who_asks_for_a_younger_answer_gets_no_stale_one(
    gw: Running, up: Upstream, prompt: str, path: str, more: Json
) -> None:
    old = text_of(gw.chat(prompt, path=path))
    gw.clock.frozen = NOON + 120
    with upstream_calls(up, 1):
        new = gw.chat(prompt, path=path, **more)
        assert outcome(new) == "miss"
        assert text_of(new) != old
        again = gw.chat(prompt, path=path)
    assert (outcome(again), text_of(again)) == ("exact", text_of(new))


def test_no_store_gets_none_and_starts_no_refresh(gw: Running, up: Upstream, prompt: str) -> None:
    gw.chat(prompt, path="/soft/v1")
    gw.clock.frozen = NOON + 120
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path="/soft/v1", headers={"cache-control": "no-store"})) == "bypass"
        settled(gw)


def test_a_request_during_the_refresh_that_wants_it_fresh(gw: Running, up: Upstream, prompt: str) -> None:
    """`no-cache` does not wait for a refresh that began before it; the stale ones do not wait for either."""
    up.script = naming_calls
    gw.chat(prompt, path="/soft/v1")
    gw.clock.frozen = NOON + 120
    with gate() as go:
        up.script = lambda seen, number: gated(naming_calls(seen, number), go)
        with upstream_calls(up, 2):
            assert outcome(gw.chat(prompt, path="/soft/v1")) == "stale"
            until(lambda: up.open == 1)
            fresh = call(gw, prompt, path="/soft/v1", headers={"cache-control": "no-cache"})
            until(lambda: up.open == 2)
            assert outcome(gw.chat(prompt, path="/soft/v1")) == "stale"
            go.set()
            assert outcome(fresh.result()) == "miss"


@SOFT
@pytest.mark.parametrize("fails", [False, True], ids=["well", "fails once"])
def test_who_comes_after_the_grace_joins_the_refresh(
    gw: Running, up: Upstream, prompt: str, path: str, fails: bool
) -> None:
    """The old answer may no longer serve, and the new one is on its way: no second call, unless that one fails."""
    gw.chat(prompt, path=path)
    gw.clock.frozen = NOON + 149
    with gate() as go:
        base = up.calls
        up.script = lambda seen, number: (
            Reply(BROKEN.pieces, status=500, gate=go)
            if fails and number == base + 1
            else gated(naming_calls(seen, number), go)
        )
        with upstream_calls(up, 2 if fails else 1):
            assert outcome(gw.chat(prompt, path=path)) == "stale"
            until(lambda: up.calls == base + 1)
            gw.clock.frozen = NOON + 151
            callers = together(gw, prompt, ["sse", "json"], path=path)
            go.set()
            results = [c.result() for c in callers]
    assert [outcome(r) for r in results] == (["miss", "joined"] if fails else ["joined", "joined"])
    assert {text_of(r) for r in results} == {f"answer {up.calls}"}
    assert outcome(gw.chat(prompt, path=path)) == "exact"


def test_a_purge_during_the_refresh(gw: Running, up: Upstream, prompt: str) -> None:
    """The old answer is gone, and the new one, made of what was there before, is not stored."""
    gw.chat(prompt, path="/soft/v1")
    gw.clock.frozen = NOON + 120
    with gate() as go:
        up.script = lambda seen, number: gated(naming_calls(seen, number), go)
        assert outcome(gw.chat(prompt, path="/soft/v1")) == "stale"
        until(lambda: up.open == 1)
        assert gw.admin("POST", "/admin/purge", json={"endpoint": "soft"}).json()["purged"] >= 1
        go.set()
        settled(gw)
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path="/soft/v1")) == "miss"


def test_without_the_setting_nothing_is_refreshed_or_served_stale(gw: Running, up: Upstream, prompt: str) -> None:
    gw.chat(prompt, path="/short/v1")
    gw.clock.frozen = NOON + 59.999
    with upstream_calls(up, 0):
        assert outcome(gw.chat(prompt, path="/short/v1")) == "exact"
        settled(gw)
    gw.clock.frozen = NOON + 60
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, path="/short/v1")) == "miss"
