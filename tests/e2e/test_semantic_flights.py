"""Many at once: one look-up for all who would take anything, and nobody is given another question's answer who has not
agreed to it."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.support.embedders import Placed
from tests.support.gateway import ALICE, Running, config_text, running
from tests.support.live import FORMS, Caller, answer_of, gate, listening, settled
from tests.support.semantic import ASKED, OTHER, REWORDED, TWICE_REWORDED, Room, said, stats
from tests.support.traffic import decision, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, numbered

EXACT_ONLY = {"x-refrain-tier": "exact"}


class Held(Placed):
    """It answers when `go` is set."""

    def __init__(self) -> None:
        super().__init__(lambda text: ASKED if text in (REWORDED, TWICE_REWORDED) else text)
        self.go = threading.Event()
        self.calls = 0

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        self.calls += 1
        while not self.go.is_set():  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(0.001)
        return await super().embed(texts, deadline=deadline)


@pytest.fixture(scope="module")
def embedder() -> Held:
    return Held()


@pytest.fixture(scope="module")
def gw(up: Upstream, embedder: Held) -> Iterator[Running]:
    with running(config_text(up.url), embedders=lambda config: embedder) as gateway:
        yield gateway


@pytest.fixture
def room(gw: Running, embedder: Held) -> Iterator[Room]:
    embedder.go.set()
    yield Room(gw)
    embedder.go.set()
    settled(gw)


def start(room: Room, question: str, *, headers: dict[str, str] | None = None, **more: object) -> Caller:
    body = {"model": "test-model", "messages": room.messages(question), **more}
    head = {"authorization": f"Bearer {ALICE}", **(headers or {})}
    return Caller(room.gw.url, f"{room.path}/chat/completions", body, head)


def hold(embedder: Held, room: Room, question: str = REWORDED) -> Caller:
    """A request that waits in the semantic tier."""
    embedder.go.clear()
    calls = embedder.calls
    leader = start(room, question)
    until(lambda: embedder.calls > calls)
    return leader


def test_fifty_identical_requests_embed_once(room: Room, up: Upstream, embedder: Held) -> None:
    """In all forms, while the look-up is under way; each is told that it is another question's answer."""
    text = room.told(ASKED)
    embedded, lookups = len(embedder.embedded), stats(room.gw)["lookups"]
    with upstream_calls(up, 0):
        callers = [hold(embedder, room)]
        callers += [start(room, REWORDED, **FORMS[form]) for _, form in zip(range(49), list(FORMS) * 17, strict=False)]
        listening(room.gw, 50)
        embedder.go.set()
        answers = [caller.result() for caller in callers]
    assert sorted(embedder.embedded[embedded:]) == [
        REWORDED,
        ASKED,
    ]  # each once, the first question's vector among them
    assert stats(room.gw)["lookups"] == lookups + 1
    for answer in answers:
        assert outcome(answer) == "semantic"
        assert answer_of(answer)["choices"][0]["message"]["content"] == text
        assert answer.headers["cache-status"].startswith("semantic; hit; ttl=")
        assert "age" in answer.headers
        assert answer.headers["x-refrain-saved"].startswith("tokens=18;")
    records = [decision(room.gw, answer) for answer in answers]
    assert len({record["id"] for record in records}) == 50
    assert {(r["tokens"]["served"], r["tokens"]["saved"], r["tokens"]["consumed"]) for r in records} == {(18, 18, 0)}


def test_fifty_with_nothing_to_be_had_call_once(room: Room, up: Upstream, embedder: Held) -> None:
    room.told(OTHER)
    embedded = len(embedder.embedded)
    with upstream_calls(up, 1):
        callers = [hold(embedder, room), *(start(room, REWORDED) for _ in range(49))]
        listening(room.gw, 50)
        embedder.go.set()
        answers = [caller.result() for caller in callers]
    assert sorted(embedder.embedded[embedded:]) == [REWORDED, OTHER]
    assert sorted({outcome(answer) for answer in answers}) == ["joined", "miss"]
    assert len({text_of(answer) for answer in answers}) == 1


@pytest.mark.parametrize("headers", [EXACT_ONLY, {"cache-control": "max-age=50"}, {"cache-control": "no-cache"}])
def test_who_would_not_take_it_does_not_join(room: Room, up: Upstream, embedder: Held, headers: dict[str, str]) -> None:
    """While others wait for a look-up that will give them an answer of 100 seconds."""
    text = room.told(ASKED)
    room.gw.clock.offset = 100
    first = hold(embedder, room)
    second = start(room, REWORDED)
    listening(room.gw, 2)
    with upstream_calls(up, 1):
        strict = start(room, REWORDED, headers=headers)
        if "max-age=50" in headers.values():  # it may be served by meaning, by something younger
            listening(room.gw, 3)
            embedder.go.set()
        own = strict.result()
    embedder.go.set()
    assert outcome(own) == "miss"
    assert text_of(own) != text
    for answer in (first.result(), second.result()):
        assert (outcome(answer), text_of(answer)) == ("semantic", text)


def test_who_takes_a_young_one_has_it(room: Room, up: Upstream, embedder: Held) -> None:
    text = room.told(ASKED)
    first = hold(embedder, room)
    young = start(room, REWORDED, headers={"cache-control": "max-age=500"})
    listening(room.gw, 2)
    with upstream_calls(up, 0):
        embedder.go.set()
        assert (outcome(young.result()), text_of(young.result())) == ("semantic", text)
    assert outcome(first.result()) == "semantic"


@pytest.mark.parametrize("headers", [EXACT_ONLY, {"cache-control": "max-age=50"}], ids=["tier", "max-age"])
def test_who_joined_a_call_that_fails_is_not_given_it_either(room: Room, up: Upstream, headers: dict[str, str]) -> None:
    """The leader's call fails, another takes over and looks again, and by then there is something to be found. Those
    who joined a *call* have not agreed to that."""
    with gate() as go:

        def failing_once(seen: Seen, number: int) -> Reply:
            if seen.body["messages"][-1]["content"] != REWORDED or go.is_set():
                return numbered(seen, number)
            return Reply([json.dumps({"error": {"message": "no"}}).encode()], status=500, gate=go)

        up.script = failing_once
        room.told(OTHER)
        calls = up.calls
        leader = start(room, REWORDED)
        until(lambda: up.calls == calls + 1)
        heir = start(room, REWORDED)
        listening(room.gw, 2)
        strict = start(room, REWORDED, headers=headers)
        listening(room.gw, 3)
        text = room.told(ASKED)
        room.gw.clock.offset = 100
        go.set()
        answers = [caller.result() for caller in (leader, heir, strict)]
    assert answers[0].status_code >= 500
    assert outcome(answers[1]) in ("miss", "semantic")
    assert outcome(answers[2]) in ("joined", "miss")
    assert text_of(answers[2]) != text


def test_a_client_that_leaves_the_look_up_leaves_the_others_alone(room: Room, up: Upstream, embedder: Held) -> None:
    text = room.told(ASKED)
    with upstream_calls(up, 0):
        leader = hold(embedder, room)
        others = [start(room, REWORDED) for _ in range(3)]
        listening(room.gw, 4)
        leader.leave()
        listening(room.gw, 3)
        embedder.go.set()
        assert {(outcome(c.result()), text_of(c.result())) for c in others} == {("semantic", text)}


def test_what_is_purged_while_it_is_looked_for_is_not_served(room: Room, embedder: Held) -> None:
    first = room.ask(ASKED, headers={"x-refrain-tags": "gone"})
    waiting = hold(embedder, room)
    assert room.gw.admin("POST", "/admin/purge", json={"tags": ["gone"]}).json() == {"purged": 1}
    embedder.go.set()
    answer = waiting.result()
    assert (outcome(answer), said(room.gw, answer)["result"]) == ("miss", "miss")
    assert text_of(answer) != text_of(first)
