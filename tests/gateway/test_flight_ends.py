"""Who leaves, and how flights end: whatever comes, the call is charged once, and nothing is left over."""

import asyncio
from collections.abc import Sequence

import pytest

from cache.entry import Entry
from cache.match import Match
from cache.stores.memory import MemoryStore
from gateway.errors import ApiError
from tests.contract.stores import Clock
from tests.gateway.flying import DONE, Client, Hub, code_of, crowd, ended, passes, pieces, settled
from tests.gateway.scripted import END, OPEN
from tests.gateway.timeless import timeless
from tests.support.live import FORMS, TOKENS

WHOLE = [OPEN, *pieces(), END]


def quiet() -> Hub:
    """Its backend does nothing of itself."""
    hub = Hub()
    hub.backend.script = lambda number: []
    return hub


def open_calls(hub: Hub) -> int:
    return sum(not call.closed for call in hub.calls)


# Leaving


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("events_before", [None, 0, 3])
@timeless
async def test_nobody_listening_ends_the_call_at_once(form: str, events_before: int | None) -> None:
    hub = quiet()
    clients = await crowd(hub, [form, "sse"])
    if events_before is not None:
        hub.calls[0].put(OPEN, *pieces()[:events_before])
        await passes()
    clients[0].leave()
    await passes()
    assert open_calls(hub) == 1
    clients[1].leave()
    await passes(0.02)
    assert open_calls(hub) == 0
    await settled(hub)
    assert {d.error for d in hub.recorder.ring} == {"client_disconnected"}


@timeless
async def test_a_client_may_leave_while_it_is_written_to() -> None:
    hub = quiet()
    clients = [hub.client("sse", reads=False) for _ in range(2)]
    await passes()
    hub.calls[0].put(OPEN, *pieces()[:3])
    await passes()
    for client in clients:
        client.leave()
    await ended(*clients)
    assert open_calls(hub) == 0
    await settled(hub)


@timeless
async def test_whoever_comes_when_all_have_left_begins_anew() -> None:
    hub = quiet()
    (client,) = await crowd(hub, ["sse"])
    client.leave()
    await passes()
    again = hub.client("sse")
    await passes()
    assert len(hub.calls) == 2
    hub.calls[1].put(*WHOLE)
    await ended(client, again)
    assert again.headers["x-refrain-cache"] == "miss"
    await settled(hub)


@timeless
async def test_leaving_in_the_moment_of_the_end_loses_nothing() -> None:
    hub = quiet()
    (client,) = await crowd(hub, ["json"])
    hub.calls[0].put(OPEN, *pieces()[:-1])
    await passes()
    hub.calls[0].put(DONE, END)
    client.leave()
    await ended(client)
    books = await settled(hub)
    stored = [d.stored for d in hub.recorder.ring]
    assert (books["consumed"], books["served"] + books["unserved"]) == ((TOKENS, TOKENS) if stored[0] else (0, 0))


@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_a_lasting_flight_goes_on_for_nobody_and_can_be_joined(form: str) -> None:
    hub = quiet()
    (client,) = await crowd(hub, [form], endpoint="lasting")
    client.leave()
    await passes()
    assert open_calls(hub) == 1
    joiner = hub.client("sse", endpoint="lasting")
    await passes()
    joiner.leave()
    await passes()
    hub.calls[0].put(*WHOLE)
    books = await settled(hub)
    assert (books["consumed"], books["unserved"], books["served"]) == (TOKENS, TOKENS, 0)
    hit = hub.client("json", endpoint="lasting")
    await ended(hit)
    assert hit.headers["x-refrain-cache"] == "exact"


@pytest.mark.parametrize("headers", [{"cache-control": "no-store"}, {"x-refrain-ttl": "0s"}])
@timeless
async def test_nothing_lasts_for_an_answer_that_will_not_be_kept(headers: dict[str, str]) -> None:
    """`finish` is there to fill the cache. This answer is for its client alone, and that one has left."""
    hub = quiet()
    (client,) = await crowd(hub, ["sse"], endpoint="lasting", headers=headers)
    client.leave()
    await passes()
    assert open_calls(hub) == 0
    await settled(hub)


@pytest.mark.parametrize("first", ["it leaves", "it outgrows"])
@timeless
async def test_nor_for_one_that_outgrows_the_bound(first: str) -> None:
    hub = Hub(max_entry=3000)
    (client,) = await crowd(hub, ["sse"], endpoint="lasting")
    for step in ("it leaves", "it outgrows") if first == "it leaves" else ("it outgrows", "it leaves"):
        assert open_calls(hub) == 1
        if step == "it leaves":
            client.leave()
        else:
            hub.calls[0].put(*pieces("word " * 1000)[:-1])
        await passes()
    assert open_calls(hub) == 0
    await settled(hub)


# The end of the gateway


@pytest.mark.parametrize("begun", [False, True])
@timeless
async def test_whoever_listens_when_the_gateway_stops_is_told(begun: bool) -> None:
    hub = quiet()
    clients = await crowd(hub, ["sse", "json"])
    if begun:
        hub.calls[0].put(OPEN, *pieces()[:2])
        await passes()
    await hub.flights.aclose()
    assert open_calls(hub) == 0
    await ended(*clients)
    assert {code_of(client) for client in clients} == {"gateway_stopping"}
    assert [client.status for client in clients] == [200 if begun else 503, 503]
    await settled(hub)
    late = hub.client("json")
    await ended(late)
    assert (late.status, code_of(late), len(hub.calls)) == (503, "gateway_stopping", 1)


@timeless
async def test_also_whoever_has_only_just_come() -> None:
    hub = quiet()
    listener = hub.flights.board(*hub.visit("json"))
    await hub.flights.aclose()
    assert listener.ended
    assert isinstance(listener.flight.error, ApiError)
    await settled(hub)


@timeless
async def test_a_call_is_charged_once_also_when_the_gateway_stops_right_after_it() -> None:
    """All have their answer; the backend only has not hung up yet."""
    hub = quiet()
    clients = await crowd(hub, ["sse", "json"])
    hub.calls[0].put(OPEN, *pieces())
    await ended(*clients)
    assert hub.flights.count == 1
    await hub.flights.aclose()
    books = await settled(hub)
    assert (books["consumed"], books["served"], books["unserved"]) == (TOKENS, 2 * TOKENS, 0)


# While the answer is stored


class SlowStore(MemoryStore):
    """A store that takes an answer once `go` is set."""

    def __init__(self) -> None:
        super().__init__(2**20, now=Clock())
        self.go = asyncio.Event()

    async def put(self, entry: Entry) -> None:
        await self.go.wait()
        await super().put(entry)


async def storing(monkeypatch: pytest.MonkeyPatch, forms: Sequence[str]) -> tuple[Hub, SlowStore, list[Client]]:
    """A flight whose answer is whole, and is just being stored."""
    store = SlowStore()

    async def open_slow(url: str, **settings: object) -> SlowStore:
        return store

    monkeypatch.setattr("cache.exact.open_store", open_slow)
    hub = quiet()
    await hub.cache.open("slow://", max_bytes=2**20, now=hub.clock)
    clients = await crowd(hub, forms)
    hub.calls[0].put(*WHOLE)
    await passes()
    assert not any(client.complete for client in clients)
    return hub, store, clients


@timeless
async def test_one_may_join_while_the_answer_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, store, clients = await storing(monkeypatch, ["sse"])
    late = [hub.client("sse"), hub.client("json", headers={"cache-control": "max-age=60"})]
    await passes()
    store.go.set()
    await ended(*clients, *late)
    assert len(hub.calls) == 1
    assert {code_of(client) for client in (*clients, *late)} == {"ok"}
    await settled(hub)


@timeless
async def test_a_purge_while_the_answer_is_stored_takes_it_along(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, store, clients = await storing(monkeypatch, ["json"])
    await hub.cache.purge(Match())
    store.go.set()
    await ended(*clients)
    assert code_of(clients[0]) == "ok"
    assert hub.cache.front.peek(next(iter(hub.recorder.ring)).key) is None
    await settled(hub)


@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_a_client_that_leaves_while_its_answer_is_stored_has_consumed_it(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The backend has made the answer to its end, so it is to be paid for, whoever is still there."""
    hub, store, clients = await storing(monkeypatch, [form])
    clients[0].leave()
    await ended(*clients)
    store.go.set()
    books = await settled(hub)
    assert (books["consumed"], books["unserved"], books["served"]) == (TOKENS, TOKENS, 0)
