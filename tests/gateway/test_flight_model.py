"""Any crowd at any pace: clients of all forms join a flight, read, stop reading and leave, in any order, while its
backend sends in any split, fails, or ends."""

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from backends.base import BackendTimeout, ReplyBroken
from gateway import flight, listener
from tests.gateway.flying import DONE, Client, Hub, ended, passes, pieces
from tests.gateway.scripted import END, OPEN, UpstreamCall
from tests.gateway.timeless import Loop
from tests.support.live import FORMS, TOKENS
from tests.support.traffic import accumulated, essence, events
from tests.support.upstream import chat_answer

Json = dict[str, Any]
SMALL = {"MAX_BEHIND": 1500, "ROOM": 400, "PIECE": 300, "PATIENCE": 0.01}
"""The bounds, so that a short answer is over them."""
FAILURES: dict[str, Any] = {
    "cut": ReplyBroken("It broke off."),
    "silent": BackendTimeout("It stopped.", "between_chunks"),
    "error event": b'data: {"error": {"message": "overloaded", "code": "overloaded"}}\n\n',
    "garbage": b"data: <html>\n\n",
    "end": END,
}
ENDPOINTS = ["default", "default", "lasting", "rr"]
words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=12, max_size=20)


class Told:
    """What one call has been told to bring: `sent` of the bytes of its answer."""

    def __init__(self, call: UpstreamCall, answer: Json, wire: bytes) -> None:
        self.call = call
        self.answer = answer
        self.wire = wire
        self.sent = 0
        self.head: int | None = None
        self.failed = False

    @property
    def begun(self) -> bool:
        """An event of the answer has arrived."""
        return b"\n\n" in self.wire[: self.sent]

    @property
    def complete(self) -> bool:
        return self.whole or b'"finish_reason": "stop"}]' in self.wire[: self.sent]

    @property
    def whole(self) -> bool:
        return self.sent == len(self.wire)


class Crowd(RuleBasedStateMachine):
    @initialize(endpoint=st.sampled_from(ENDPOINTS), text=words, form=st.sampled_from(list(FORMS)), reads=st.booleans())
    def begin(self, endpoint: str, text: list[str], form: str, reads: bool) -> None:
        self.bounds = pytest.MonkeyPatch()
        self.loop = Loop()
        self.bounds.setattr(flight, "monotonic", self.loop.time)
        for name, value in SMALL.items():
            for module in (flight, listener):
                if hasattr(module, name):
                    self.bounds.setattr(module, name, value)
        self.endpoint, self.text = endpoint, text
        self.clients: list[Client] = []
        self.forms: dict[Client, str] = {}
        self.paused: list[Client] = []
        self.told: list[Told] = []
        self.over = False

        async def make() -> Hub:
            return Hub()

        self.hub = self.loop.run_until_complete(make())
        self.hub.backend.script = lambda number: []
        self.join(form, reads)

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            self.loop.clear()
            self.loop.close()
            self.bounds.undo()

    # What happens

    @rule(form=st.sampled_from(list(FORMS)), reads=st.booleans())
    def join(self, form: str, reads: bool) -> None:
        if self.over:
            return

        async def come() -> Client:
            return self.hub.client(form, endpoint=self.endpoint, reads=reads)

        client = self.loop.run_until_complete(come())
        self.clients.append(client)
        self.forms[client] = form
        if not reads:
            self.paused.append(client)
        self._pass()

    @rule(data=st.data(), messages=st.none() | st.integers(1, 3))
    def read(self, data: st.DataObject, messages: int | None) -> None:
        if client := self._one(data, self.paused):
            client.read(messages)
            self._pass()

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if client := self._one(data, [c for c in self.clients if not c.task.done()]):
            client.leave()
            self._pass()

    @rule(size=st.integers(1, 400), times=st.integers(1, 5))
    def send(self, size: int, times: int) -> None:
        if told := self._current():
            self._open(told, 200)
            for _ in range(times):
                piece = told.wire[told.sent : told.sent + size]
                if piece:
                    told.call.put(piece)
                    told.sent += len(piece)
            self._pass()

    @rule()
    def send_all_but_the_end_marker(self) -> None:
        if (told := self._current()) and self.endpoint != "rr":
            self._open(told, 200)
            rest = told.wire[told.sent : -len(DONE)]
            told.call.put(*(event + b"\n\n" for event in rest.split(b"\n\n")[:-1]))
            told.sent = max(told.sent, len(told.wire) - len(DONE))
            self._pass()

    @rule(how=st.sampled_from([*FAILURES, "500", "429"]))
    def fail(self, how: str) -> None:
        if (told := self._current()) and not told.whole:
            told.failed = True
            if how.isdigit() and told.head is None:
                self._open(told, int(how))
                told.call.put(END)
            else:
                self._open(told, 200)
                told.call.put(FAILURES.get(how, END), END)
            self._pass()

    @precondition(lambda self: self.told and self.told[-1].whole)
    @rule()
    def finish(self) -> None:
        if told := self._current():
            told.call.put(END)
            told.failed = True
            self._pass(1)

    # What must be so at any time

    @invariant()
    def at_most_two_calls_and_none_after_the_first_event(self) -> None:
        assert len(self.told) <= 2
        for told in self.told[:-1]:
            assert told.failed
            assert told.head != 429
            assert not (told.begun and self.endpoint != "rr"), "a second call after the first event"
            assert told.call.closed

    @invariant()
    def nobody_listening_ends_the_call(self) -> None:
        if self.endpoint != "lasting" and all(c.task.done() for c in self.clients) and not self.told[-1].whole:
            assert self.told[-1].call.closed
            assert self.hub.flights.count == 0

    @invariant()
    def who_reads_is_held_up_by_nobody(self) -> None:
        told = self.told[-1]
        reading = [c for c in self.clients if c not in self.paused and not c.task.done()]
        if not reading or told.call.closed:
            return
        assert told.call.taken(), "the backend is made to wait although somebody reads"
        if self.endpoint != "rr":
            whole = told.wire[: told.sent].rpartition(b"\n\n")[0].count(b"data: ") - told.whole
            for client in reading:
                if self.forms[client] == "sse+usage":
                    assert client.content.count(b"data: ") == max(0, whole)

    @invariant()
    def the_books_balance(self) -> None:
        self.hub.books()

    @invariant()
    def nothing_is_stored_that_is_not_whole(self) -> None:
        if not self.told[-1].whole:
            assert not self._stored()

    # At the end

    def _end(self) -> None:
        for client in self.paused:
            client.read()
        self._pass()
        while (told := self._current()) is not None:
            self._open(told, 200)
            told.call.put(told.wire[told.sent :], END)
            told.sent, told.failed = len(told.wire), True
            self._pass(1)
        self.loop.run_until_complete(ended(*self.clients))  # Stuck, if somebody waits for ever
        self._pass(1)
        for told in self.told:
            assert told.call.closed
        assert (self.hub.flights.count, self.hub.flights.listening) == (0, 0)
        assert not self.loop.failures, self.loop.failures
        self._check_answers()

    def _check_answers(self) -> None:
        last = self.told[-1]
        ends = {client: self._end_of(client, essence(last.answer)) for client in self.clients if not client.left}
        served = sum(end is None for end in ends.values())
        # Without its end marker an answer is delivered, if it is complete; but it is not kept.
        assert last.complete or not served
        assert last.whole or not self._stored()
        if last.whole:
            # All have it, but for the leader of a first call that failed, and for who was too slow.
            failed = {client for client, end in ends.items() if end is not None}
            slow = {client for client in failed if ends[client] == "client_too_slow"}
            assert slow <= set(self.paused)
            assert len(failed - slow) <= len(self.told) - 1
        books = self.hub.books()
        if self._stored():
            estimated = self.hub.recorder.ledger.stats()["parts"]["tokens"]["estimated"]
            # Who has left may have had all but the end of its answer.
            assert books["served"] >= served * TOKENS
            # What is estimated is of a first call that broke off.
            assert (books["consumed"] - estimated, books["saved"] % TOKENS) == (TOKENS, 0)
            assert not estimated or len(self.told) == 2

    def _end_of(self, client: Client, answer: Json) -> str | None:
        """The code of the error that this one got; None if it got the answer. There is no third."""
        assert client.complete
        text = client.content.decode()
        if client.status != 200:
            return str(json.loads(text)["error"]["code"])
        if self.forms[client] == "json":
            assert essence(json.loads(text)) == answer
            return None
        found = events(text)
        if found[-1] == "[DONE]":
            assert essence(accumulated(text)) == answer
            assert ("usage" in accumulated(text)) == (self.forms[client] == "sse+usage")
            return None
        for event in found[:-1]:
            assert "choices" in json.loads(event)
        return str(json.loads(found[-1])["error"]["code"])

    def _stored(self) -> bool:
        return any(d.stored for d in self.hub.recorder.ring)

    # Helpers

    def _pass(self, seconds: float = 0.05) -> None:
        self.loop.run_until_complete(passes(seconds))
        for call in self.hub.calls[len(self.told) :]:
            answer = chat_answer(" ".join([f"answer {len(self.told)}", *self.text]))
            streamed = b"".join(pieces(answer["choices"][0]["message"]["content"]))
            wire = json.dumps(answer).encode() if self.endpoint == "rr" else streamed
            self.told.append(Told(call, answer, wire))
        self.over = self.hub.flights.count == 0 or self.told[-1].whole

    def _open(self, told: Told, status: int) -> None:
        if told.head is None:
            told.head = status
            kind = "application/json" if self.endpoint == "rr" or status != 200 else OPEN[1]
            told.call.put((status, kind))

    def _current(self) -> Told | None:
        told = self.told[-1]
        return None if told.failed or told.call.closed else told

    @staticmethod
    def _one(data: st.DataObject, among: Any) -> Client | None:
        found: list[Client] = list(among)
        return data.draw(st.sampled_from(found)) if found else None


@pytest.mark.slow
def test_any_crowd() -> None:
    run_state_machine_as_test(Crowd, settings=settings(max_examples=120, stateful_step_count=25, deadline=None))
