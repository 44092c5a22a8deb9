"""One client's answer from a flight: what its head says, how its leaving is noticed, and what is left of it."""

import asyncio
import json
from typing import Any

import pytest

from gateway.deliver import WATCH_AFTER
from tests.contract.stores import START
from tests.gateway.flying import Client, Hub, code_of, crowd, ended, passes, pieces, settled
from tests.gateway.scripted import END, OPEN
from tests.gateway.timeless import timeless
from tests.support.live import FORMS, TOKENS
from tests.support.upstream import chat_answer

Json = dict[str, Any]
WHOLE = [OPEN, *pieces(), END]
PLAIN = (200, "application/json")


def record(hub: Hub, client: Client) -> Json:
    found = hub.recorder.ring.find(client.headers["x-request-id"])
    assert found is not None
    return found.as_dict()


# Heads and records


@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_the_head_of_a_joined_answer(form: str) -> None:
    hub = Hub()
    leader = hub.client("json")
    await passes()
    hub.clock.time = START + 2.9
    joiner = hub.client(form)
    await passes()
    hub.calls[0].put(*pieces(), END)
    await ended(leader, joiner)
    assert joiner.headers["x-refrain-cache"] == "joined"
    assert joiner.headers["cache-status"] == "exact; fwd=miss; collapsed"
    assert joiner.headers["age"] == "2"
    assert joiner.headers["x-refrain-upstream-id"] == "up-1"
    assert joiner.headers["cache-control"] == "private, no-store"
    # Before a stream's first byte it is not known what it will have saved.
    assert ("x-refrain-saved" in joiner.headers) == (form == "json")
    assert joiner.headers.get("x-refrain-saved", f"tokens={TOKENS};").startswith(f"tokens={TOKENS};")
    for name in ("age", "x-refrain-saved"):
        assert name not in leader.headers
    assert leader.headers["cache-status"] == "exact; fwd=miss"
    for client, consumed, saved in ((joiner, 0, TOKENS), (leader, TOKENS, 0)):
        sums = {"served": TOKENS, "consumed": consumed, "unserved": 0, "saved": saved, "input": 11, "output": 7}
        assert record(hub, client)["tokens"].items() >= sums.items()
    paid, free = record(hub, leader)["usd"], record(hub, joiner)["usd"]
    assert paid["billable"] == paid["consumed"] == free["saved"] > 0
    assert (free["consumed"], free["billable"]) == (None, None)
    assert record(hub, joiner)["phases"].keys() >= {"join"}
    assert record(hub, leader)["phases"].keys() >= {"first_byte", "upstream"}
    await settled(hub)


@timeless
async def test_the_age_of_what_an_heir_got_is_that_of_its_own_call() -> None:
    hub = Hub()
    hub.backend.script = lambda number: [] if number == 1 else WHOLE
    clients = await crowd(hub, ["sse", "sse", "sse"])
    hub.clock.time = START + 100
    hub.calls[0].put((500, "text/plain"), END)
    await ended(*clients)
    assert [client.headers.get("age") for client in clients] == [None, None, "0"]
    await settled(hub)


@timeless
async def test_a_whole_answer_is_streamed_to_whoever_wants_a_stream() -> None:
    hub = Hub()
    hub.backend.script = lambda number: []
    clients = await crowd(hub, ["json", "sse", "sse+usage", "sse"], endpoint="rr")
    hub.calls[0].put(PLAIN, json.dumps(chat_answer("one two")).encode(), END)
    await ended(*clients)
    assert [code_of(client) for client in clients] == ["ok"] * 4
    assert clients[1].content == clients[3].content
    assert (b"usage" in clients[1].content, b"usage" in clients[2].content) == (False, True)
    assert [client.headers["content-length"] for client in clients] == [str(len(c.content)) for c in clients]
    await settled(hub)


@timeless
async def test_an_answer_without_choices_is_handed_on_but_not_streamed() -> None:
    """What it means is for the client to say; a stream of it cannot be made."""
    odd = b'{"object": "something else"}'
    hub = Hub()
    hub.backend.script = lambda number: []
    plain, stream = await crowd(hub, ["json", "sse"], endpoint="rr")
    hub.calls[0].put(PLAIN, odd, END)
    await ended(plain, stream)
    assert (plain.status, plain.content) == (200, odd)
    assert (stream.status, code_of(stream)) == (502, "backend_reply_broken")
    assert record(hub, stream)["tokens"]["served"] == 0
    await settled(hub)


# Leaving


@timeless
async def test_a_client_is_not_watched_while_its_answer_is_quick() -> None:
    """Asking the server for a disconnect costs a task, and most answers need none."""
    hub = Hub()
    hub.backend.script = lambda number: WHOLE
    quick = hub.client("sse")
    quick.left = True  # noticed by whoever asks, and nobody does
    await ended(quick)
    assert [d.error for d in hub.recorder.ring] == [None]
    await settled(hub)


@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_a_client_that_leaves_is_noticed_soon(form: str) -> None:
    hub = Hub()
    client = hub.client(form)
    await passes(0)
    client.leave()
    begun = asyncio.get_running_loop().time()
    await ended(client)
    assert asyncio.get_running_loop().time() - begun < WATCH_AFTER + 0.001
    await passes(0.01)
    assert hub.calls[0].closed
    (d,) = hub.recorder.ring
    assert (d.status, d.error, d.served) == (499, "client_disconnected", 0)
    await settled(hub)


@timeless
async def test_a_client_that_leaves_in_the_middle_is_noticed_whatever_comes() -> None:
    """Nothing has to arrive for it, and nothing that arrives keeps the gateway from noticing."""
    hub = Hub()
    client, other = await crowd(hub, ["sse", "json"])
    hub.calls[0].put(pieces()[0])
    await passes()
    client.leave()
    for piece in pieces()[1:3]:
        hub.calls[0].put(piece)
    await ended(client)
    assert client.content.count(b"data: ") <= 1
    hub.calls[0].put(*pieces()[3:], END)
    await ended(other)
    assert code_of(other) == "ok"
    books = await settled(hub)
    assert (books["served"], books["unserved"]) == (TOKENS, TOKENS)


# Cancellation: what a server does to requests that do not end in time


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("others", [False, True])
@timeless
async def test_a_request_that_is_cancelled_is_told_and_leaves_the_flight(form: str, others: bool) -> None:
    hub = Hub()
    clients = await crowd(hub, [form, "json"] if others else [form])
    hub.calls[0].put(*pieces()[:2])
    await passes()
    clients[0].task.cancel()
    await ended(clients[0])
    assert code_of(clients[0]) == "gateway_stopping"
    assert clients[0].status == (503 if form == "json" else 200)
    await passes()
    assert hub.calls[0].closed != others
    if others:
        hub.calls[0].put(*pieces()[2:], END)
        await ended(clients[1])
        assert code_of(clients[1]) == "ok"
    await settled(hub)


@timeless
async def test_one_that_does_not_read_can_be_cancelled_too() -> None:
    """The first cancellation tells it, which waits for it as any writing does; the second one, at the loop's end, does
    not."""
    hub = Hub()
    client = hub.client("sse", reads=False)
    await passes()
    hub.calls[0].put(*pieces()[:2])
    await passes()
    client.task.cancel()
    await passes()
    assert hub.calls[0].closed
    assert code_of(client) == "gateway_stopping"
    client.task.cancel()
    await passes()
    assert client.task.done()
    await settled(hub)


@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_nothing_is_said_after_the_end(form: str) -> None:
    """The answer is out, and its other form is just being prepared for later requests, when the server stops."""
    hub = Hub()
    client = hub.client(form)
    await passes()
    hub.calls[0].put(*pieces(("x" * 400 + " ") * 1500), END)
    while not client.complete:
        await passes(0)
    client.task.cancel()
    await asyncio.wait([client.task])
    assert client.task.cancelled() or client.task.exception() is None
    assert code_of(client) == "ok"
    await settled(hub)
