"""A flight's pace: everybody reads what has arrived as fast as they like, and none holds up another."""

import asyncio
import json
from typing import Any

import pytest

from gateway import flight, listener
from gateway.flight import ROOM
from gateway.listener import MAX_BEHIND, PIECE
from tests.gateway.flying import DONE, Client, Hub, ended, passes, pieces
from tests.gateway.scripted import END, UpstreamCall
from tests.gateway.timeless import timeless
from tests.support.live import FORMS, TOKENS
from tests.support.traffic import accumulated, essence, events
from tests.support.upstream import chat_answer, chat_chunks, sse

Json = dict[str, Any]
BLOCK = 16 * 1024


def blocks(count: int, size: int = BLOCK) -> list[bytes]:
    """The events of an answer of so many blocks, and its end."""
    text = " ".join(["x" * (size - 1)] * count)
    chunks = chat_chunks(chat_answer(text), include_usage=True)
    return [*(sse([chunk], done=False) for chunk in chunks), DONE]


def beginning(call: UpstreamCall, answer: list[bytes], count: int) -> list[bytes]:
    """Send the first `count` events; gives those that are left."""
    call.put(*answer[:count])
    return answer[count:]


def answer_of(client: Client) -> Json:
    assert client.status == 200
    assert client.complete
    text = client.content.decode()
    return essence(accumulated(text) if "data: " in text else json.loads(text))


def error_of(client: Client) -> Json:
    """The error that ends this one's stream."""
    assert client.complete
    *before, last = events(client.content.decode())
    assert all("choices" in json.loads(event) for event in before)
    return dict(json.loads(last)["error"])


# Together


@pytest.mark.parametrize("late", list(FORMS))
@pytest.mark.parametrize("first", list(FORMS))
@timeless
async def test_all_forms_get_one_answer_whenever_they_come(first: str, late: str) -> None:
    answer = pieces()
    for number in range(len(answer)):
        hub = Hub()
        one = hub.client(first)
        await passes()
        rest = beginning(hub.calls[0], answer, number)
        await passes()
        other = hub.client(late)
        await passes()
        hub.calls[0].put(*rest, END)
        await ended(one, other)
        assert len(hub.calls) == 1
        assert answer_of(one) == answer_of(other) == essence(chat_answer("one two three"))
        for client, form in ((one, first), (other, late)):
            assert (b'"total_tokens"' in client.content) == (form != "sse"), f"after {number} events"
        assert [c.headers["x-refrain-cache"] for c in (one, other)] == ["miss", "joined"]
        books = hub.books()
        assert (books["consumed"], books["served"], books["saved"]) == (TOKENS, 2 * TOKENS, TOKENS)


@timeless
async def test_a_hundred_get_the_same_bytes_from_one_call() -> None:
    hub = Hub()
    clients = [hub.client("sse") for _ in range(100)]
    await passes()
    assert hub.flights.listening == 100
    hub.calls[0].put(*pieces(), END)
    await ended(*clients)
    assert len(hub.calls) == 1
    assert len({client.content for client in clients}) == 1
    assert hub.books()["consumed"] == TOKENS
    await passes(1)
    assert (hub.flights.count, hub.flights.listening) == (0, 0)


@timeless
async def test_what_has_arrived_comes_at_once_and_the_rest_live() -> None:
    hub = Hub()
    leader = hub.client("sse")
    await passes()
    answer = pieces()
    rest = beginning(hub.calls[0], answer, 3)
    await passes()
    joiner = hub.client("sse")
    await passes()
    assert joiner.content == leader.content
    for piece in rest[:-1]:
        hub.calls[0].put(piece)
        await passes()
        assert joiner.content == leader.content
    assert joiner.content.count(b"data: ") == len(answer) - 2  # but for the usage and the end
    hub.calls[0].put(DONE, END)
    await ended(leader, joiner)


@timeless
async def test_events_are_not_cut_in_two_on_their_way() -> None:
    """What a client has got at any time is a number of whole events."""
    hub = Hub()
    clients = [hub.client(form) for form in ("sse", "sse+usage")]
    await passes()
    late = hub.client("sse", reads=False)
    await passes()
    for piece in blocks(8, 50_000):
        hub.calls[0].put(piece)
        await passes()
        for client in clients:
            assert client.content.endswith(b"\n\n")
    hub.calls[0].put(END)
    while not late.task.done():
        assert late.content.endswith(b"\n\n")
        late.read(1)
        await passes()
    await ended(*clients)


# Slow readers


@timeless
async def test_a_slow_reader_alone_makes_the_backend_wait() -> None:
    """What it does not take is not fetched, but for a little; and it gets everything in the end."""
    hub = Hub()
    slow = hub.client("sse", reads=False)
    await passes()
    answer = blocks(200)
    call = hub.calls[0]
    number = 0
    while call.taken():
        call.put(answer[number])
        number += 1
        await passes()
    assert sum(map(len, answer[:number])) - len(slow.content) < ROOM + PIECE + 3 * BLOCK
    await passes(3600)
    assert not slow.task.done()
    call.put(*answer[number:], END)
    slow.read()
    await ended(slow)
    assert answer_of(slow)["choices"] == essence(chat_answer(" ".join(["x" * (BLOCK - 1)] * 200)))["choices"]


@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_whoever_joins_a_slow_reader_is_not_held_up_by_it(form: str) -> None:
    """The backend has been made to wait for the slow one; the other wants the answer now."""
    hub = Hub()
    slow = hub.client("sse", reads=False)
    await passes()
    call = hub.calls[0]
    call.put(*blocks(60), END)
    await passes()
    assert not call.taken()
    other = hub.client(form)
    await ended(other)  # Stuck, if it waits for the slow one
    assert other.headers["x-refrain-cache"] == "joined"
    slow.read()
    await ended(slow)
    assert answer_of(other) == answer_of(slow)


@pytest.mark.parametrize("quick", list(FORMS))
@timeless
async def test_one_that_falls_behind_the_others_is_let_go_and_told(quick: str) -> None:
    hub = Hub()
    slow = hub.client("sse", reads=False)
    await passes()
    other = hub.client(quick)
    await passes()
    count = MAX_BEHIND // BLOCK + 20
    for piece in [*blocks(count), END]:
        hub.calls[0].put(piece)
        await passes(0.03)
    await ended(other)
    assert len(answer_of(other)["choices"][0]["message"]["content"]) == count * BLOCK - 1
    slow.read()
    await ended(slow)
    assert error_of(slow)["code"] == "client_too_slow"
    assert len(slow.content) < MAX_BEHIND
    books = hub.books()
    assert (books["consumed"], books["served"], books["unserved"], books["saved"]) == (TOKENS, TOKENS, TOKENS, TOKENS)


@pytest.mark.parametrize("piece", [1, 100, 300, 1000])
@pytest.mark.parametrize("messages", [0, 1, 2])
@timeless
async def test_the_error_of_one_let_go_is_an_event_of_its_own(
    piece: int, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever its reading has got to: an error that begins in the middle of an event can be read by no client."""
    for name, value in {"MAX_BEHIND": 2000, "ROOM": 400, "PIECE": piece}.items():
        for module in (flight, listener):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    hub = Hub()
    quick, slow = hub.client("sse"), hub.client("sse+usage", reads=False)
    await passes()
    slow.read(messages)
    rest = beginning(hub.calls[0], pieces("word " * 30), 5)
    for event in [*rest, END]:
        await passes()
        hub.calls[0].put(event)
    await ended(quick)
    slow.read()
    await ended(slow)
    assert error_of(slow)["code"] == "client_too_slow"
    assert answer_of(quick) == essence(chat_answer("word " * 30))


@pytest.mark.parametrize("others", [[], ["json"], ["sse"]])
@timeless
async def test_waiting_for_a_full_connection_costs_nothing(others: list[str]) -> None:
    """Its client has still to read an earlier answer, so not even the head of this one goes out. Whoever waits for it
    waits at rest: Stuck, if the loop goes round and round."""
    hub = Hub()
    full = hub.client("sse", reads=False, full=True)
    await passes()
    clients = await asyncio.gather(*(joined(hub, form) for form in others))
    for piece in [*blocks(30), END]:
        hub.calls[0].put(piece)
        await passes()
    await ended(*clients)
    full.read()
    await ended(full)
    for client in clients:
        assert answer_of(client) == answer_of(full)


async def joined(hub: Hub, form: str) -> Client:
    client = hub.client(form)
    await passes()
    return client


@pytest.mark.parametrize("form", ["sse", "sse+usage"])
@timeless
async def test_nobody_is_slow_who_has_had_no_turn(form: str) -> None:
    """One event larger than the bound, and the next right behind it: the one that reads could not have read it yet."""
    hub = Hub(max_entry=8 * MAX_BEHIND)
    reads, waits = hub.client(form), hub.client("json")
    await passes()
    hub.calls[0].hurried = True
    hub.calls[0].put(*blocks(3, 2 * MAX_BEHIND), END)
    await ended(reads, waits)
    assert answer_of(reads) == answer_of(waits)


@timeless
async def test_to_be_behind_by_what_had_come_before_is_not_to_be_slow() -> None:
    hub = Hub(max_entry=4 * MAX_BEHIND)
    quick = hub.client("sse")
    await passes()
    count = 2 * MAX_BEHIND // BLOCK
    answer = blocks(count + 10)
    rest = beginning(hub.calls[0], answer, count)
    await passes()
    late = hub.client("sse", reads=False)
    await passes()
    for piece in [*rest, END]:
        hub.calls[0].put(piece)
        await passes()
    await ended(quick)
    late.read()
    await ended(late)
    assert late.content == quick.content


@timeless
async def test_all_equally_slow_are_not_let_go() -> None:
    """Nobody is ahead whom they could be behind."""
    hub = Hub()
    clients = [hub.client(form, reads=False) for form in ("sse", "sse", "sse")]
    await passes()
    hub.calls[0].put(*blocks(MAX_BEHIND // BLOCK * 3), END)
    await passes()
    while not all(client.task.done() for client in clients):
        for client in clients:
            client.read(1)
        await passes()
    assert len({client.content for client in clients}) == 1
    assert clients[0].content.endswith(DONE)


@pytest.mark.parametrize("how", ["reads", "leaves"])
@timeless
async def test_the_backend_goes_on_once_the_slow_one_takes_some_or_leaves(how: str) -> None:
    hub = Hub()
    slow = hub.client("sse", endpoint="lasting", reads=False)
    await passes()
    call = hub.calls[0]
    call.put(*blocks(60), END)
    await passes()
    assert not call.taken()
    slow.read() if how == "reads" else slow.leave()
    await passes()
    assert call.taken()
    await ended(slow)
    await passes(1)
    assert [d.stored for d in hub.recorder.ring] == [True]


# Memory


@pytest.mark.parametrize("form", list(FORMS))
@timeless
async def test_what_nobody_can_join_is_kept_no_longer_than_it_is_read(form: str) -> None:
    hub = Hub()
    client = hub.client(form, headers={"cache-control": "no-store"})
    await passes()
    for piece in blocks(100):
        hub.calls[0].put(piece)
        await passes()
        assert held(hub) < 3 * BLOCK
    hub.calls[0].put(END)
    await ended(client)
    assert client.headers["x-refrain-cache"] == "bypass"


@timeless
async def test_an_answer_over_the_bound_of_the_cache_takes_no_one_on_and_is_let_go_of() -> None:
    hub = Hub(max_entry=10 * BLOCK)
    one, two = hub.client("sse"), hub.client("sse+usage")
    await passes()
    answer = blocks(100)
    rest = beginning(hub.calls[0], answer, 60)
    await passes()
    alone = hub.client("sse")
    await passes()
    assert len(hub.calls) == 2
    for piece in [*rest, END]:
        hub.calls[0].put(piece)
        await passes()
        assert hub.calls[0].closed or held(hub) < 6 * BLOCK
    hub.calls[1].put(*answer, END)
    await ended(one, two, alone)
    assert answer_of(one) == answer_of(two) == answer_of(alone)
    assert {d.not_stored for d in hub.recorder.ring if d.consumed} == {"too_large"}


def held(hub: Hub) -> int:
    """Bytes of streams that are kept for readers."""
    return sum(len(log._bytes) for f in hub.flights._all for log in f.feed._logs.values())
