"""Which requests share a flight, and which must not."""

from typing import Any

import pytest

from cache.match import Match
from gateway.flight import Flight
from gateway.flights import PASSING, UNCACHEABLE_FOR
from gateway.listener import Listener
from tests.contract.stores import START
from tests.gateway.flying import BOB, Hub, code_of, crowd, ended, passes, pieces, settled
from tests.gateway.scripted import END, OPEN
from tests.gateway.timeless import timeless
from tests.support.upstream import chat_answer

Json = dict[str, Any]
WHOLE = [OPEN, *pieces(), END]
CUT = [OPEN, *pieces(choices=[{**chat_answer("one two")["choices"][0], "finish_reason": "length"}]), END]


def board(hub: Hub, *args: Any, **more: Any) -> Listener:
    return hub.flights.board(*hub.visit(*args, **more))


def flight_of(hub: Hub, **more: Any) -> Flight:
    return board(hub, **more).flight


async def over(hub: Hub) -> None:
    """Nobody waits any more; nothing is left over."""
    for flight in list(hub.flights._all):
        for listener in list(flight.listeners):
            flight.leave(listener)
    await passes()
    await settled(hub)


# Joining


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"key": BOB},
        {"form": "sse"},
        {"form": "sse+usage"},
        {"metadata": {"trace": "1"}, "user": "somebody"},
        {"temperature": 0},
        {"temperature": None},
        {"headers": {"x-refrain-tier": "exact"}},
        {"headers": {"cache-control": "max-stale=60"}},
        {"headers": {"cache-control": "max-age=60"}},
        {"cache": {"s-maxage": 60}},
    ],
    ids=str,
)
@timeless
async def test_what_would_be_one_entry_is_one_flight(more: Json) -> None:
    hub = Hub()
    same = {"temperature": 0} if more.get("temperature") == 0 else {}
    first, second = flight_of(hub, **same), flight_of(hub, **more)
    assert first is second
    assert first.shared
    assert (hub.flights.count, hub.flights.listening) == (1, 2)
    await over(hub)


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": "Another question?"},
        {"endpoint": "rr"},
        {"model": "other-model"},
        {"temperature": 0},
        {"n": 2},
        {"headers": {"x-refrain-ttl": "10s"}},
        {"headers": {"x-refrain-tags": "a"}},
        {"cache": {"ttl": 10}},
    ],
    ids=str,
)
@timeless
async def test_what_would_be_another_entry_or_be_stored_otherwise_is_another_flight(more: Json) -> None:
    hub = Hub()
    first = flight_of(hub)
    other = flight_of(hub, **more)
    assert other is not first
    assert other.shared
    assert flight_of(hub) is first
    assert flight_of(hub, **more) is other
    await over(hub)


@timeless
async def test_equal_lives_and_tags_share() -> None:
    hub = Hub()
    for one, other in (
        ({"x-refrain-ttl": "60s"}, {"x-refrain-ttl": "1m"}),
        ({"x-refrain-tags": "a,b"}, {"x-refrain-tags": "a, b, a"}),
    ):
        assert flight_of(hub, headers=one) is flight_of(hub, headers=other)
    assert flight_of(hub, headers={"x-refrain-ttl": "60s"}) is flight_of(hub, cache={"ttl": 60})
    assert hub.flights.count == 2
    await over(hub)


ALONE: list[Json] = [
    {"headers": {"cache-control": "no-store"}},
    {"headers": {"x-refrain-tier": "prefix"}},
    {"headers": {"x-refrain-ttl": "0s"}},
    {"cache": {"ttl": 0}},
    {"cache": {"no-store": True}},
    {"endpoint": "uncached"},
    {"temperature": 0.7},
    {"temperature": 1, "seed": None},
    {"tools": [{"type": "web_search"}]},
    {"store": True},
]


@pytest.mark.parametrize("more", ALONE, ids=str)
@timeless
async def test_these_are_always_alone(more: Json) -> None:
    hub = Hub()
    flights = [flight_of(hub, **more) for _ in range(3)]
    assert len(set(flights)) == 3
    assert not any(flight.shared for flight in flights)
    assert not hub.flights._open
    await over(hub)


@timeless
async def test_a_seed_makes_samples_alike() -> None:
    hub = Hub()
    assert flight_of(hub, temperature=0.7, seed=1) is flight_of(hub, temperature=0.7, seed=1)
    await over(hub)


FRESH: list[Json] = [
    {"headers": {"cache-control": "no-cache"}},
    {"headers": {"cache-control": "max-age=0"}},
    {"cache": {"no-cache": True}},
    {"cache": {"s-maxage": 0}},
]


@pytest.mark.parametrize("more", FRESH, ids=str)
@timeless
async def test_who_wants_a_fresh_answer_joins_none_but_may_be_joined(more: Json) -> None:
    hub = Hub()
    leads = flight_of(hub, **more)
    assert flight_of(hub) is leads
    assert flight_of(hub, **more) is not leads
    assert flight_of(hub) is leads  # the one in the air goes on being joined
    await over(hub)


@timeless
async def test_a_flight_may_be_too_old_for_a_request() -> None:
    """Which leads another, and that is the one to be joined from then on."""
    hub = Hub()
    first = flight_of(hub)
    hub.clock.time = START + 10
    assert flight_of(hub, headers={"cache-control": "max-age=10"}) is first
    asked = {"headers": {"cache-control": "max-age=9"}}
    younger = flight_of(hub, **asked)
    assert younger is not first
    assert flight_of(hub, **asked) is younger
    assert flight_of(hub) is younger
    await over(hub)


@timeless
async def test_a_new_configuration_is_a_new_flight() -> None:
    hub = Hub()
    visit, ask = hub.visit()
    first = hub.flights.board(visit, ask).flight
    hub.generation += 1
    other = flight_of(hub)
    assert other is not first
    # A request that began under the old one does not join what is outdated, either.
    assert hub.flights.board(visit, ask).flight not in (first, other)
    await over(hub)


@pytest.mark.parametrize(
    ("match", "meets"),
    [
        (Match(), True),
        (Match(tenant="acme"), True),
        (Match(user="alice"), True),
        (Match(tags=frozenset({"a"})), True),
        (Match(endpoint="default"), True),
        (Match(model="test-model"), True),
        (Match(tenant="globex"), False),
        (Match(user="bob"), False),
        (Match(tags=frozenset({"z"})), False),
        (Match(older_than=START), False),
        (Match(older_than=START + 1), True),
    ],
)
@timeless
async def test_a_purge_ends_the_joining_of_what_it_meets(match: Match, meets: bool) -> None:
    hub = Hub()
    tagged = {"headers": {"x-refrain-tags": "a"}}
    first = flight_of(hub, **tagged)
    await hub.cache.purge(match, dry_run=True)
    assert flight_of(hub, **tagged) is first
    await hub.cache.purge(match)
    second = flight_of(hub, **tagged)
    assert (second is not first) == meets
    assert flight_of(hub, **tagged) is second
    await over(hub)


@timeless
async def test_the_end_of_an_older_flight_leaves_the_younger_one_open() -> None:
    hub = Hub()
    old = board(hub)
    await passes()
    await hub.cache.purge(Match())
    young = flight_of(hub)
    old.flight.leave(old)
    await passes()
    assert hub.calls[0].closed
    assert flight_of(hub) is young
    await over(hub)


# What is remembered


@timeless
async def test_an_answer_that_could_not_be_stored_lets_later_ones_run_alone() -> None:
    hub = Hub()
    hub.backend.script = lambda number: CUT if number == 1 else [OPEN]
    client = hub.client("json")
    await ended(client)
    assert not flight_of(hub).shared
    assert flight_of(hub, prompt="Another?").shared
    hub.clock.time = START + UNCACHEABLE_FOR - 0.001
    assert not flight_of(hub).shared
    hub.clock.time = START + UNCACHEABLE_FOR
    assert flight_of(hub).shared
    await over(hub)


@timeless
async def test_a_stored_answer_ends_that() -> None:
    hub = Hub()
    scripts: list[list[Any]] = [CUT, WHOLE, [OPEN]]
    hub.backend.script = lambda number: scripts[number - 1]
    await ended(hub.client("json"))
    await ended(hub.client("json"))
    assert flight_of(hub).shared
    await over(hub)


@pytest.mark.parametrize("script", [[(500, "text/plain"), END], [(429, "text/plain"), END], [OPEN, END]])
@timeless
async def test_a_failure_says_nothing_about_the_next_answer(script: Any) -> None:
    hub = Hub()
    hub.backend.script = lambda number: script if number == 1 else [OPEN]
    await ended(hub.client("json"))
    assert flight_of(hub).shared
    await over(hub)


@timeless
async def test_nor_does_what_came_in_between() -> None:
    """A purge, or a new configuration: the answer was not stored, the next one may be."""
    assert {"purged_meanwhile", "policy_changed"} <= PASSING
    for number in range(2):
        hub = Hub()
        client = hub.client("json")
        await passes()
        if number:
            hub.generation += 1
        else:
            await hub.cache.purge(Match())
        hub.calls[0].put(*WHOLE[1:])
        await ended(client)
        assert code_of(client) == "ok"
        assert [d.not_stored for d in hub.recorder.ring] == ["policy_changed" if number else "purged_meanwhile"]
        assert flight_of(hub).shared
        await over(hub)


@timeless
async def test_nor_does_an_answer_that_nobody_asked_to_keep() -> None:
    hub = Hub()
    hub.backend.script = lambda number: CUT if number == 1 else [OPEN]
    await ended(hub.client("json", headers={"cache-control": "no-store"}))
    assert flight_of(hub).shared
    await over(hub)


@timeless
async def test_a_flight_says_what_it_is() -> None:
    hub = Hub()
    leader, _ = await crowd(hub, ["sse", "json"])
    (flight,) = hub.flights._all
    assert repr(flight).endswith(", attempt 1, 2 listening, 0 bytes)")
    hub.calls[0].put(*pieces())
    await passes()
    assert repr(flight).endswith(f", ended, 0 listening, {len(leader.content) - len(pieces()[-1])} bytes)")
    await settled(hub)
