"""What a call goes on for when all have left, and whom one takes on that was begun for a fresh answer."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import Running, config_text, running
from tests.support.live import (
    FORMS,
    call,
    first_byte_held,
    gate,
    holding,
    listening,
    not_kept,
    settled,
    streaming,
)
from tests.support.traffic import decision, fixed, outcome, text_of, until, upstream_calls
from tests.support.upstream import Upstream, chat_answer

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
EXTRA = """
  going_on: {mode: stream, finish: true}
  going_on_whole: {mode: request_response, finish: true}
  going_on_uncached: {mode: stream, finish: true, cache: {exact: off}}
  going_on_unsampled: {mode: request_response, finish: true, sampled: bypass}
"""
FINISHING = pytest.mark.parametrize("path", ["/going_on/v1", "/going_on_whole/v1"], ids=["stream", "request_response"])


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


# finish: true


def ends_with_its_client(gw: Running, up: Upstream, prompt: str, **more: Any) -> None:
    """When the only client leaves, the upstream is let go."""
    with gate() as go:
        up.script = holding(go)
        cancelled = up.cancelled
        caller = call(gw, prompt, **more)
        listening(gw, 1)
        until(lambda: up.open == 1)
        caller.leave()
        until(lambda: up.cancelled == cancelled + 1)
        assert not go.is_set()


NEVER_KEPT: dict[str, Json] = {
    "no-store": {"headers": {"cache-control": "no-store"}},
    "no-store in the body": {"cache": {"no-store": True}},
    "no life": {"headers": {"x-refrain-ttl": "0s"}},
    "store": {"store": True},
    "hosted tool": {"tools": [{"type": "web_search"}]},
    "another tier": {"headers": {"x-refrain-tier": "prefix"}},
}


@FINISHING
@pytest.mark.parametrize("form", ["json", "sse"])
@pytest.mark.parametrize("why", NEVER_KEPT)
def test_nothing_goes_on_for_an_answer_that_will_not_be_kept(
    gw: Running, up: Upstream, prompt: str, path: str, form: str, why: str
) -> None:
    ends_with_its_client(gw, up, prompt, path=path, **FORMS[form], **NEVER_KEPT[why])


@pytest.mark.parametrize("path", ["/going_on_uncached/v1", "/going_on_unsampled/v1"])
def test_nor_where_the_endpoint_keeps_none(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    ends_with_its_client(gw, up, prompt, path=path)


@pytest.mark.parametrize("first", ["the client leaves", "it grows"])
def test_nor_for_one_that_has_outgrown_the_cache(gw: Running, up: Upstream, prompt: str, first: str) -> None:
    """Whether its client leaves before or after it is known: there is no use in the rest."""
    answer = chat_answer("one " + "x" * 1_200_000 + " end")
    with gate() as grows, gate() as ends:
        up.script = fixed(streaming(answer, {2: grows, 3: ends}))
        cancelled = up.cancelled
        caller = call(gw, prompt, path="/going_on/v1").hears("one ")
        if first == "it grows":
            grows.set()
            until(lambda: len(caller.content) > 1_200_000)
        caller.leave()
        listening(gw, 0)
        if first == "the client leaves":
            assert up.cancelled == cancelled
            grows.set()
        until(lambda: up.cancelled == cancelled + 1)
        assert not ends.is_set()
    not_kept(gw, up, prompt, path="/going_on/v1")


# no-cache, beside a flight that a purge has met

FRESH: dict[str, Json] = {
    "no-cache": {"headers": {"cache-control": "no-cache"}},
    "max-age=0": {"headers": {"cache-control": "max-age=0"}},
    "no-cache in the body": {"cache": {"no-cache": True}},
}


@MODES
@pytest.mark.parametrize("fresh", FRESH)
def test_a_fresh_answer_beside_a_purged_one_is_joined(
    gw: Running, up: Upstream, prompt: str, path: str, fresh: str
) -> None:
    """Nobody may join the old flight any more, so the new one takes its place."""
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 2):
            old = call(gw, prompt, path=path)
            listening(gw, 1)
            until(lambda: up.open == 1)
            assert gw.admin("POST", "/admin/purge", json={"older_than": "0s"}).status_code == 200
            leader = call(gw, prompt, path=path, **FRESH[fresh])
            listening(gw, 2)
            until(lambda: up.open == 2)
            joiners = []
            for number, form in enumerate(FORMS.values(), 3):
                joiners.append(call(gw, prompt, path=path, **form))
                listening(gw, number)
            go.set()
            results = [c.result() for c in (old, leader, *joiners)]
            again = gw.chat(prompt, path=path)
    assert [outcome(r) for r in results] == ["miss", "miss", "joined", "joined", "joined"]
    first, *others = (text_of(r) for r in results)
    assert len(set(others)) == 1
    assert first not in others
    assert [decision(gw, r)["stored"] for r in results[:2]] == [False, True]
    assert (outcome(again), text_of(again)) == ("exact", others[0])


@MODES
def test_beside_a_sound_one_it_is_not(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """The one in the air goes on being joined."""
    with gate() as go:
        up.script = first_byte_held(go)
        with upstream_calls(up, 2):
            callers = [call(gw, prompt, path=path)]
            listening(gw, 1)
            until(lambda: up.open == 1)
            callers.append(call(gw, prompt, path=path, **FRESH["no-cache"]))
            listening(gw, 2)
            until(lambda: up.open == 2)
            callers.append(call(gw, prompt, path=path))
            listening(gw, 3)
            go.set()
            results = [c.result() for c in callers]
    assert [outcome(r) for r in results] == ["miss", "miss", "joined"]
    first, second, third = (text_of(r) for r in results)
    assert first == third != second
