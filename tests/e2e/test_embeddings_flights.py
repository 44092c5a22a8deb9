"""Requests for embeddings that overlap while they are being answered: each element is asked for once, nobody breaks
what others wait for, and a call that fails is made again by those who wait."""

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.gateway import ALICE, BOB, EVE, Running
from tests.support.live import gate, gauge, settled
from tests.support.traffic import decision, error_of, outcome, until
from tests.support.upstream import Reply, Seen, Upstream, embedded
from tests.support.vectors import MODEL, embed, own, sent, vectors
from tests.support.wire import head

Json = dict[str, Any]
Answer = Future[httpx.Response]
Fails = Callable[[int], Reply | None]


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no call is under way, and the sums are in balance."""
    yield
    settled(gw)


class Room:
    """A gateway and an upstream that answers no call before it is told to."""

    def __init__(self, gw: Running, up: Upstream, pool: ThreadPoolExecutor) -> None:
        self.gw, self.up, self.pool = gw, up, pool
        self.seen: list[Seen] = []

    @contextmanager
    def holding(self, fails: Fails = lambda number: None) -> Iterator[None]:
        """The calls that are made inside are answered at the end of it: with vectors, unless `fails` says otherwise of
        their number. Those that are made because of that are answered at once."""
        with gate() as go:

            def script(seen: Seen, number: int) -> Reply:
                self.seen.append(seen)
                reply = fails(len(self.seen)) or embedded(seen, number)
                reply.gate = go
                return reply

            self.up.script = script
            yield

    def ask(self, asked: Any, **more: Any) -> Answer:
        """A request that waits for an answer, its own or another's."""
        before = waiting(self.gw)
        answer = self.pool.submit(embed, self.gw, asked, **more)
        until(lambda: waiting(self.gw) > before or answer.done())
        return answer

    def leaving(self, asked: Any) -> socket.socket:
        """The same, on a connection that may be closed."""
        before = waiting(self.gw)
        body = json.dumps({"model": MODEL, "input": asked}).encode()
        parts = urlsplit(self.gw.url)
        s = socket.create_connection((parts.hostname, parts.port), timeout=10)
        lines = [f"Authorization: Bearer {ALICE}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        s.sendall(head("/v1/embeddings", *lines) + body)
        until(lambda: waiting(self.gw) > before)
        return s


def waiting(gw: Running) -> int:
    return int(gauge(gw, "refrain_flight_listeners"))


@pytest.fixture
def room(gw: Running, up: Upstream, pool: ThreadPoolExecutor) -> Room:
    return Room(gw, up, pool)


def failing(status: int) -> Reply:
    return Reply([json.dumps({"error": {"message": "No."}}).encode()], status=status)


def told(response: httpx.Response) -> tuple[str, str]:
    return outcome(response), response.headers["cache-status"]


def test_two_batches_that_overlap_ask_for_each_element_once(room: Room, prompt: str) -> None:
    a, b, c, d = (f"{prompt} {x}" for x in "abcd")
    with room.holding():
        first = room.ask([a, b])
        second = room.ask([c, b, a, d, b], encoding_format="base64")
        third = room.ask([b, d])
    assert [vectors(x.result()) for x in (first, second, third)] == [own(a, b), own(c, b, a, d, b), own(b, d)]
    assert [call.body["input"] for call in room.seen] == [[a, b], [c, d]]
    assert told(first.result()) == ("miss", "exact; fwd=miss")
    assert told(second.result()) == ("miss", "exact; fwd=miss")
    assert told(third.result()) == ("joined", "exact; fwd=miss; collapsed")
    assert third.result().headers["x-refrain-saved"].startswith(f"tokens={2 * len(b)}; ")
    assert "age" in third.result().headers


def test_one_that_joins_pays_nothing_and_one_that_leads_pays_once(room: Room, prompt: str) -> None:
    with room.holding():
        leader, joiner = room.ask(prompt), room.ask([prompt, prompt], key=BOB)
    size = len(prompt)
    tokens = {"billable": 0, "estimated": 0, "output": 0}
    paid = decision(room.gw, leader.result())["tokens"]
    assert paid == {
        **tokens,
        **{"served": size, "consumed": size, "unserved": 0, "saved": 0, "input": size, "billable": size},
    }
    free = decision(room.gw, joiner.result())["tokens"]
    assert free == {
        **tokens,
        **{"served": 2 * size, "consumed": 0, "unserved": 0, "saved": 2 * size, "input": 2 * size},
    }


@pytest.mark.parametrize(
    "more",
    [
        {"key": EVE},
        {"path": "/twin/v1"},
        {"model": "other-model"},
        {"dimensions": 4},
        {"headers": {"cache-control": "no-cache"}},
        {"headers": {"cache-control": "no-store"}},
        {"headers": {"cache-control": "max-age=60"}},
        {"headers": {"x-refrain-ttl": "5s"}},
        {"headers": {"x-refrain-ttl": "0s"}},
        {"headers": {"x-refrain-tags": "a"}},
    ],
    ids=str,
)
def test_who_may_not_share_a_call_makes_another(room: Room, prompt: str, more: Json) -> None:
    with room.holding():
        leader = room.ask(prompt)
        other = room.pool.submit(embed, room.gw, prompt, **more)
        until(lambda: len(room.seen) == 2)
    assert [outcome(leader.result()), outcome(other.result()) in ("miss", "bypass")] == ["miss", True]


def test_who_wants_a_fresh_one_leaves_the_one_in_the_air_to_others(room: Room, prompt: str) -> None:
    with room.holding():
        answers = [room.ask(prompt), room.ask(prompt, headers={"cache-control": "no-cache"}), room.ask(prompt)]
    assert [outcome(a.result()) for a in answers] == ["miss", "miss", "joined"]
    assert len(room.seen) == 2


def test_one_who_asks_in_the_last_moment_asks_nobody(room: Room, prompt: str) -> None:
    """Many at once, while calls begin and end: whatever the order, there is one call for each element."""
    texts = [f"{prompt} {i}" for i in range(20)]
    before = room.up.calls
    answers = [room.pool.submit(embed, room.gw, texts[i : i + 8]) for i in range(12) for _ in range(4)]
    for number, answer in enumerate(answers):
        start = number // 4
        assert vectors(answer.result()) == own(*texts[start : start + 8])
    assert sorted(sent(room.up.seen[before:])) == sorted(texts[:19])


# Clients that leave


def test_when_the_first_leaves_the_others_get_their_answer(room: Room, prompt: str) -> None:
    a, b = f"{prompt} a", f"{prompt} b"
    with room.holding():
        first = room.leaving([a, b])
        second = room.ask([b])
        first.close()
        until(lambda: waiting(room.gw) == 1)
        assert room.up.open == 1
    assert vectors(second.result()) == own(b)
    assert outcome(second.result()) == "joined"
    assert told(embed(room.gw, [a, b]))[0] == "exact"  # the whole call has come to its end
    assert len(room.seen) == 1


def test_when_one_who_joined_leaves_nothing_happens_to_the_first(room: Room, prompt: str) -> None:
    a, b, c = (f"{prompt} {x}" for x in "abc")
    cancelled = room.up.cancelled
    with room.holding():
        first = room.ask([a, b])
        second = room.leaving([b, c])
        until(lambda: len(room.seen) == 2)
        second.close()
        until(lambda: room.up.cancelled == cancelled + 1)  # nobody wanted c any more
    assert vectors(first.result()) == own(a, b)
    assert [call.body["input"] for call in room.seen] == [[a, b], [c]]


def test_when_all_leave_the_backend_is_told_and_nothing_is_kept(room: Room, prompt: str) -> None:
    cancelled = room.up.cancelled
    with room.holding():
        clients = [room.leaving([prompt]), room.leaving([prompt])]
        for client in clients:
            client.close()
        until(lambda: room.up.cancelled == cancelled + 1)
    assert outcome(embed(room.gw, [prompt])) == "miss"


# Calls that fail


@pytest.mark.parametrize("status", [500, 503])
def test_after_the_first_one_s_failure_those_who_wait_ask_once_for_all_of_them(
    room: Room, prompt: str, status: int
) -> None:
    a, b = f"{prompt} a", f"{prompt} b"
    with room.holding(lambda number: failing(status) if number == 1 else None):
        first = room.ask([a, b])
        others = [room.ask([b]) for _ in range(3)]
    assert error_of(first.result(), status)["code"] == "backend_error"
    assert [vectors(x.result()) for x in others] == [own(b)] * 3
    assert sorted(outcome(x.result()) for x in others) == ["joined", "joined", "miss"]
    assert [call.body["input"] for call in room.seen] == [[a, b], [b]]


def test_a_second_failure_is_told_to_all(room: Room, prompt: str) -> None:
    with room.holding(lambda number: failing(500)):
        answers = [room.ask([prompt]) for _ in range(3)]
    assert [error_of(x.result(), 500)["code"] for x in answers] == ["backend_error"] * 3
    assert len(room.seen) == 2


def test_one_bad_element_spoils_nobody_else_s_request(room: Room, prompt: str) -> None:
    """The backend refuses what is too long; who shares the call, but not that element, has asked for nothing wrong."""
    bad, good = f"{prompt} bad", f"{prompt} good"
    with room.holding(lambda number: failing(400) if any("bad" in x for x in room.seen[-1].body["input"]) else None):
        first = room.ask([bad, good])
        sound = room.ask([good])
        spoilt = room.ask([good, bad])
    assert [error_of(x.result(), 400)["message"] for x in (first, spoilt)] == ["No."] * 2
    assert vectors(sound.result()) == own(good)


def test_one_who_shares_a_call_of_no_use_keeps_what_it_has_of_its_own(room: Room, prompt: str) -> None:
    a, b, c = (f"{prompt} {x}" for x in "abc")
    with room.holding(lambda number: failing(500) if number == 1 else None):
        first = room.ask([a])
        second = room.ask([a, b])
        until(lambda: len(room.seen) == 2)
    assert first.result().status_code == 500
    assert vectors(second.result()) == own(a, b)
    assert [call.body["input"] for call in room.seen] == [[a], [b], [a]]
    found = decision(room.gw, second.result())["tokens"]
    assert (found["served"], found["consumed"], found["saved"], found["unserved"]) == (2 * len(a), 2 * len(b), 0, 0)
    assert outcome(embed(room.gw, [c])) == "miss"


def test_a_backend_that_wants_to_be_left_alone_is(room: Room, prompt: str) -> None:
    with room.holding(lambda number: failing(429)):
        answers = [room.ask([prompt]) for _ in range(3)]
    assert [x.result().status_code for x in answers] == [429] * 3
    assert len(room.seen) == 1


# Purges


def test_what_a_purge_has_met_is_delivered_but_neither_kept_nor_joined(room: Room, prompt: str) -> None:
    with room.holding():
        first = room.ask([prompt])
        assert room.gw.admin("POST", "/admin/purge", json={"tenant": "acme"}).status_code == 200
        second = room.ask([prompt])
        assert len(room.seen) == 2
    assert [vectors(x.result()) for x in (first, second)] == [own(prompt)] * 2
    assert [outcome(x.result()) for x in (first, second)] == ["miss", "miss"]
    kept = [decision(room.gw, x.result()) for x in (first, second)]
    assert [d["not_stored"] for d in kept] == ["purged_meanwhile", None]
    assert outcome(embed(room.gw, [prompt])) == "exact"
