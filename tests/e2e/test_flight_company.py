"""Who flies alone: requests that share no flight with others, though their bodies are the same."""

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.support.gateway import Running
from tests.support.live import call, first_byte_held, gate, gated, holding, listening, settled, together
from tests.support.traffic import error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Script, Upstream, chat_answer, reply_for

pytestmark = pytest.mark.slow

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


def numbered(go: threading.Event) -> Script:
    """Every call has an answer of its own, held before its first byte."""
    return lambda seen, number: gated(reply_for(seen, chat_answer(f"one two {number}")), go)


def at_work(up: Upstream, calls: int) -> bool:
    return up.open == calls


def alone(gw: Running, up: Upstream, prompt: str, first: Json, *others: Json) -> list[Any]:
    """All at the same time, and each of them a call of its own; gives the outcomes."""
    with gate() as go:
        up.script = first_byte_held(go)
        base = up.open
        with upstream_calls(up, 1 + len(others)):
            callers = []
            for number, more in enumerate([first, *others], 1):
                callers.append(call(gw, prompt, **more))
                until(partial(at_work, up, base + number))
            go.set()
            results = [c.result() for c in callers]
    assert len({text_of(r) for r in results}) == len(results)
    return [outcome(r) for r in results]


# Requests that are each client's own

SEARCH = {"tools": [{"type": "web_search"}]}
BYPASSING: dict[str, Json] = {
    "store": {"store": True},
    "hosted tool": SEARCH,
    "conversation": {"conversation": "c"},
    "no-store": {"headers": {"cache-control": "no-store"}},
    "no-store in the body": {"cache": {"no-store": True}},
    "tier off": {"path": "/uncached/v1"},
    "sampled: bypass": {"path": "/careful/v1"},
    "another tier": {"headers": {"x-refrain-tier": "prefix"}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("more", BYPASSING.values(), ids=BYPASSING)
def test_requests_that_pass_the_cache_by(gw: Running, up: Upstream, prompt: str, stream: bool, more: Json) -> None:
    more = {"stream": stream, **more}
    assert alone(gw, up, prompt, more, more) == ["bypass"] * 2


@pytest.mark.parametrize("more", [BYPASSING["no-store"], BYPASSING["store"], BYPASSING["another tier"]], ids=str)
def test_nor_do_they_join_those_who_share(gw: Running, up: Upstream, prompt: str, more: Json) -> None:
    """The same key is in the air; whoever wants no cache does not get that answer."""
    assert alone(gw, up, prompt, {}, more) == ["miss", "bypass"]


FRESH: dict[str, Json] = {
    "no-cache": {"headers": {"cache-control": "no-cache"}},
    "max-age=0": {"headers": {"cache-control": "max-age=0"}},
    "no-cache in the body": {"cache": {"no-cache": True}},
    "s-maxage in the body": {"cache": {"s-maxage": 0}},
}


@MODES
@pytest.mark.parametrize("more", FRESH.values(), ids=FRESH)
def test_who_wants_a_fresh_answer_joins_none(gw: Running, up: Upstream, prompt: str, path: str, more: Json) -> None:
    """A flight that began before the request is not fresh; nor is that of another who wanted a fresh one."""
    assert alone(gw, up, prompt, {"path": path}, {"path": path, **more}) == ["miss"] * 2
    assert alone(gw, up, f"{prompt} b", {"path": path, **more}, {"path": path, **more}) == ["miss"] * 2


@MODES
@pytest.mark.parametrize("more", FRESH.values(), ids=FRESH)
def test_but_leads_others(gw: Running, up: Upstream, prompt: str, path: str, more: Json) -> None:
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 1):
            leader = call(gw, prompt, path=path, **more)
            listening(gw, 1)
            joiner = call(gw, prompt, path=path)
            listening(gw, 2)
            go.set()
            assert [outcome(leader.result()), outcome(joiner.result())] == ["miss", "joined"]
            assert outcome(gw.chat(prompt, path=path)) == "exact"


@MODES
@pytest.mark.parametrize("temperature", [0.0001, 0.7, 1, 2])
def test_asking_five_times_for_samples_gives_five(
    gw: Running, up: Upstream, prompt: str, path: str, temperature: float
) -> None:
    """An explicit temperature above 0 without a seed: each wants a draw of its own."""
    more = {"temperature": temperature, "path": path}
    assert alone(gw, up, prompt, more, more, more, more, more) == ["miss"] * 5


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": None},
        {"temperature": 0},
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 1},
        {"temperature": 1, "seed": 0},
        {"top_p": 0.9},
        {"temperature": 0, "path": "/careful/v1"},
    ],
    ids=str,
)
def test_all_others_join(gw: Running, up: Upstream, prompt: str, more: Json) -> None:
    """No temperature, a temperature of 0, or a seed: one call."""
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 1):
            callers = together(gw, prompt, ["json", "sse"], **more)
            go.set()
            assert [outcome(c.result()) for c in callers] == ["miss", "joined"]


@pytest.mark.parametrize("more", [{"headers": {"x-refrain-ttl": "0s"}}, {"cache": {"ttl": 0}}], ids=str)
def test_an_answer_that_is_not_to_be_kept_is_not_shared(gw: Running, up: Upstream, prompt: str, more: Json) -> None:
    assert alone(gw, up, prompt, more, more) == ["miss"] * 2
    assert alone(gw, up, f"{prompt} b", {}, more) == ["miss"] * 2


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("x-refrain-ttl", "10s", "20s"),
        ("x-refrain-ttl", "10s", ""),
        ("x-refrain-tags", "a", "a,b"),
        ("x-refrain-tags", "a", ""),
    ],
)
def test_who_wants_the_answer_stored_otherwise_flies_alone(
    gw: Running, up: Upstream, prompt: str, name: str, one: str, other: str
) -> None:
    """A flight stores one entry, with one life and one set of tags."""
    first, second = ({"headers": {name: value} if value else {}} for value in (one, other))
    assert alone(gw, up, prompt, first, second) == ["miss"] * 2
    with gate() as go:
        up.script = first_byte_held(go)
        callers = together(gw, f"{prompt} b", ["json", "sse"], **first)
        go.set()
        assert [outcome(c.result()) for c in callers] == ["miss", "joined"]


def test_only_if_cached_waits_for_nobody(gw: Running, up: Upstream, prompt: str) -> None:
    """What is in the air is not in the cache."""
    with gate() as go:
        up.script = holding(go)
        leader = call(gw, prompt).hears("one two ")
        with upstream_calls(up, 0):
            error_of(gw.chat(prompt, headers={"cache-control": "only-if-cached"}), 504)
        go.set()
        leader.result()


def test_endpoints_and_models_share_no_flight(gw: Running, up: Upstream, prompt: str) -> None:
    assert alone(gw, up, prompt, {"path": "/rr/v1"}, {"path": "/twin/v1"}, {"model": "other-model"}) == ["miss"] * 3
