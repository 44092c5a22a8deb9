"""Fetching anew what is stale: beside those it serves, one at a time, and never for longer than it helps."""

from typing import Any

import pytest

from cache.match import Match
from gateway.errors import ApiError
from gateway.flights import MAX_REFRESHES, REFRESH_PAUSE, UNCACHEABLE_FOR
from tests.contract.stores import START
from tests.gateway.flying import Hub, code_of, ended, passes, pieces, settled
from tests.gateway.scripted import END, OPEN
from tests.gateway.timeless import timeless
from tests.support.live import FORMS, TOKENS
from tests.support.upstream import chat_answer

WHOLE = [OPEN, *pieces(), END]
CUT = [OPEN, *pieces(choices=[{**chat_answer("one two")["choices"][0], "finish_reason": "length"}]), END]


async def soft_entry(hub: Hub, **more: Any) -> None:
    """An answer that is stale, to be served while another is fetched."""
    hub.backend.script = lambda number: WHOLE if number == 1 else []
    await ended(hub.client("json", endpoint="soft", **more))
    await passes(1)
    hub.clock.time = START + 61


@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_one_refresh_at_a_time_beside_those_it_serves(form: str) -> None:
    hub = Hub()
    await soft_entry(hub)
    clients = [hub.client(form, endpoint="soft") for _ in range(5)]
    await ended(*clients)
    assert {client.headers["x-refrain-cache"] for client in clients} == {"stale"}
    await passes()
    assert len(hub.calls) == 2
    assert (hub.flights.count, hub.flights.listening) == (1, 0)
    hub.calls[1].put(*WHOLE)
    await passes(1)
    again = hub.client(form, endpoint="soft")
    await ended(again)
    assert (again.headers["x-refrain-cache"], again.headers["age"]) == ("exact", "0")
    books = await settled(hub)
    assert (books["consumed"], books["served"], books["unserved"]) == (2 * TOKENS, 7 * TOKENS, TOKENS)


@timeless
async def test_a_failed_refresh_is_not_tried_again_at_once() -> None:
    hub = Hub()
    await soft_entry(hub)
    await ended(hub.client("json", endpoint="soft"))
    await passes()
    hub.calls[1].put((500, "text/plain"), END)
    await passes()
    for after, calls in ((0.0, 2), (REFRESH_PAUSE - 0.001, 2), (REFRESH_PAUSE, 3)):
        hub.clock.time = START + 61 + after
        client = hub.client("json", endpoint="soft")
        await ended(client)
        assert client.headers["x-refrain-cache"] == "stale"
        await passes()
        assert len(hub.calls) == calls
    hub.calls[2].put(*WHOLE)
    await settled(hub)


@timeless
async def test_a_refresh_that_cannot_be_stored_is_not_repeated_for_a_while() -> None:
    hub = Hub()
    await soft_entry(hub)
    await ended(hub.client("json", endpoint="soft"))
    await passes()
    hub.calls[1].put(*CUT)
    await passes(1)
    hub.clock.time += UNCACHEABLE_FOR - 0.001
    await ended(hub.client("json", endpoint="soft"))
    assert len(hub.calls) == 2
    await settled(hub)


@timeless
async def test_a_refresh_that_outgrows_the_bound_is_not_repeated_for_a_while() -> None:
    """It is let go of, as nobody listens; and the next one would come to the same end, at the backend's cost."""
    hub = Hub(max_entry=3000)
    await soft_entry(hub)
    await ended(hub.client("json", endpoint="soft"))
    await passes()
    hub.calls[1].put(OPEN, *pieces("word " * 3000), END)
    await passes(1)
    assert hub.calls[1].closed
    hub.clock.time += UNCACHEABLE_FOR - 0.001
    await ended(hub.client("json", endpoint="soft"))
    await passes()
    assert len(hub.calls) == 2
    await settled(hub)


@timeless
async def test_refreshes_are_bounded_all_in_all() -> None:
    """Nobody waits for them, so nothing else keeps their number down; a later request will see to the rest."""
    hub = Hub()
    prompts = [f"Question {number}?" for number in range(MAX_REFRESHES + 3)]
    hub.backend.script = lambda number: WHOLE if number <= len(prompts) else []
    await ended(*(hub.client("json", prompt, endpoint="soft") for prompt in prompts))
    await passes(1)
    hub.clock.time = START + 61
    for rounds in range(2):
        clients = [hub.client("json", prompt, endpoint="soft") for prompt in prompts]
        await ended(*clients)
        served = {client.headers["x-refrain-cache"] for client in clients}
        assert served == ({"stale", "exact"} if rounds else {"stale"})
        await passes()
        assert len(hub.calls) == len(prompts) + (len(prompts) if rounds else MAX_REFRESHES)
        for call in hub.calls[len(prompts) :]:
            if not call.closed:
                call.put(*WHOLE)
        await passes(1)
    await settled(hub)


@timeless
async def test_a_refresh_is_joined_by_whoever_cannot_take_the_stale_answer() -> None:
    hub = Hub()
    await soft_entry(hub)
    await ended(hub.client("json", endpoint="soft"))
    await passes()
    waits = hub.client("sse", endpoint="soft", headers={"cache-control": "max-age=30"})
    await passes()
    assert len(hub.calls) == 2
    hub.calls[1].put(*WHOLE)
    await ended(waits)
    assert waits.headers["x-refrain-cache"] == "joined"
    await settled(hub)


@timeless
async def test_who_joined_a_refresh_that_fails_tries_again_itself() -> None:
    hub = Hub()
    await soft_entry(hub)
    await ended(hub.client("json", endpoint="soft"))
    await passes()
    waits = hub.client("sse", endpoint="soft", headers={"cache-control": "max-age=30"})
    await passes()
    hub.calls[1].put((500, "text/plain"), END)
    await passes()
    hub.calls[2].put(*WHOLE)
    await ended(waits)
    assert (code_of(waits), waits.headers["x-refrain-cache"]) == ("ok", "miss")
    await settled(hub)


@timeless
async def test_a_refresh_keeps_the_tags_and_the_life_of_all_not_of_the_request() -> None:
    hub = Hub()
    await soft_entry(hub, headers={"x-refrain-tags": "a,b"})
    await ended(hub.client("json", endpoint="soft", headers={"x-refrain-tags": "c", "x-refrain-ttl": "1s"}))
    await passes()
    hub.calls[1].put(*WHOLE)
    await passes(1)
    (entry,) = await hub.cache.entries(Match(), limit=5)
    assert entry.tags == ("a", "b")
    assert entry.expires == entry.created + 60
    await settled(hub)


@timeless
async def test_a_flight_in_the_air_is_refresh_enough() -> None:
    hub = Hub()
    await soft_entry(hub)
    fresh = hub.client("json", endpoint="soft", headers={"cache-control": "no-cache"})
    await passes()
    await ended(hub.client("json", endpoint="soft"))
    assert len(hub.calls) == 2
    hub.calls[1].put(*WHOLE)
    await ended(fresh)
    await settled(hub)


@timeless
async def test_after_the_end_nobody_boards_and_nothing_is_refreshed() -> None:
    hub = Hub()
    await soft_entry(hub)
    visit, ask = hub.visit(endpoint="soft")
    slot = await hub.cache.get(ask.key)
    assert slot is not None
    await hub.flights.aclose()
    hub.flights.refresh(visit, ask, slot.entry)
    with pytest.raises(ApiError) as caught:
        hub.flights.board(visit, ask)
    assert caught.value.code == "gateway_stopping"
    assert len(hub.calls) == 1
    await settled(hub)


@timeless
async def test_refreshes_end_with_the_gateway() -> None:
    hub = Hub()
    await soft_entry(hub)
    await ended(hub.client("json", endpoint="soft"))
    await passes()
    await hub.flights.aclose()
    assert hub.calls[1].closed
    await settled(hub)
