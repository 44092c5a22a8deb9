"""A flight: one upstream call in progress, and everybody who waits for its answer.

- Every client reads what has arrived at its own pace; one that comes late gets all of it at once, then the rest live.
- The flight goes on while anyone listens, whoever began it; with `lasting` also when nobody does. Else the backend is
  told at once that nobody listens any more.
- A failure before anything has arrived is its leader's alone: one waiter takes over, once. The second one goes to
  all, and so does an error that is the request's own fault (4xx), and any failure once something has arrived, since
  an answer cannot go on where another one broke off.
- The backend is read as fast as the fastest client takes it. A client that falls behind the others by more than
  MAX_BEHIND is let go with an error: it would have the gateway hold, for it alone, what all others are done with.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter

import structlog

from gateway.ask import Ask, Form
from gateway.errors import ApiError
from gateway.feed import Feed
from gateway.fill import Fill, Filled
from gateway.logs import where
from gateway.recorder import Recorder
from gateway.upstream import Event
from gateway.visit import Visit

MAX_BEHIND = 2**20
"""Bytes that a client may be behind the fastest one, beside what had arrived when it joined."""
ROOM = 256 * 1024
"""Bytes that may wait for the fastest client before the backend is made to wait."""
PIECE = 64 * 1024
"""Bytes that a client gets at once: what the socket does not take stays here, where it is shared."""
ATTEMPTS = 2

log = structlog.get_logger("refrain")


class Listener:
    """One client of a flight. `error` is an end that is its own, not the flight's."""

    __slots__ = ("_log", "_waits", "allowance", "ask", "error", "flight", "gone", "offset", "since", "visit")

    def __init__(self, flight: "Flight", visit: Visit, ask: Ask) -> None:
        self.flight = flight
        self.visit = visit
        self.ask = ask
        self.error: ApiError | None = None
        self.gone = False
        self._log = None if ask.form == "json" else flight.feed.log(ask.form)
        self.offset = 0
        self.allowance = MAX_BEHIND + self.behind
        self.since = perf_counter()
        self._waits: asyncio.Future[None] | None = None

    @property
    def behind(self) -> int:
        """Bytes that it has not taken yet."""
        return 0 if self._log is None else self._log.end - self.offset

    @property
    def ended(self) -> bool:
        """Nothing more will come."""
        return self.error is not None or self.flight.ended

    def take(self) -> bytes:
        """The next bytes, empty when there are none yet."""
        if self._log is None:
            return b""
        data = self._log.read(self.offset, PIECE)
        self.offset += len(data)
        return data

    async def news(self) -> None:
        """Wait until something has changed."""
        if self.gone:
            return
        self._waits = asyncio.get_running_loop().create_future()
        await self._waits

    def wake(self) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    def depart(self) -> None:
        """The client has left."""
        self.gone = True
        self.wake()


class Flight:
    """`begin_fill` makes the call for a request; `ended` is told to whoever keeps the flights. `shared`: others may
    join; `leader` is who the call is made for, and charged to."""

    def __init__(
        self,
        begin_fill: Callable[[Visit, Ask], Fill],
        recorder: Recorder,
        visit: Visit,
        ask: Ask,
        *,
        shared: bool,
        lasting: bool,
        on_end: Callable[["Flight"], None],
    ) -> None:
        self._begin_fill = begin_fill
        self._recorder = recorder
        self._on_end = on_end
        self.leader = visit
        self.ask = ask
        self.shared = shared
        self.listeners: list[Listener] = []
        self.filled: Filled | None = None
        self.error: ApiError | None = None
        self.ended = False
        self.attempt = 1
        first: Form = "sse" if ask.form == "sse" else "sse+usage"
        self.feed = Feed(first)
        self._lasting = lasting
        self._room: asyncio.Future[None] | None = None
        self.fill = begin_fill(visit, ask)
        self.task = asyncio.create_task(self._fly())

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"attempt {self.attempt}"
        return f"Flight({self.ask.key.hex()[:8]}, {state}, {len(self.listeners)} listening, {self.feed.end} bytes)"

    def join(self, visit: Visit, ask: Ask) -> Listener:
        listener = Listener(self, visit, ask)
        self.listeners.append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """The listener is done, or its client is gone."""
        if listener in self.listeners:
            self.listeners.remove(listener)
        if not self.listeners and not self._lasting and not self.ended and self.filled is None:
            self._finish()
            self.task.cancel()
        else:
            self._make_room()

    # What the call tells (gateway.fill.Hearers).

    async def hear(self, events: Sequence[Event]) -> None:
        self._let_go_of_the_slow()
        self.feed.add(events)
        if not self.shared:
            self._trim()
        for listener in self.listeners:
            listener.wake()
        while self._crowded():
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def too_large(self) -> None:
        self.shared = False

    def landed(self, filled: Filled) -> None:
        self.filled = filled
        d = self.leader.decision
        d.stored, d.not_stored = filled.not_stored is None, filled.not_stored
        self._settle()
        self._finish()

    def taken(self) -> None:
        """A listener has taken some bytes."""
        if self._room is not None:
            self._make_room()

    async def _fly(self) -> None:
        try:
            while True:
                try:
                    await self.fill.run(self)
                    return
                except ApiError as error:
                    if self.ended:
                        return  # what goes wrong after the end concerns nobody
                    self._settle()
                    if not self._pass_on(error):
                        raise
        except ApiError as error:
            self.error = error
        except asyncio.CancelledError:
            if not self.ended:
                self.error = stopping()
        except Exception as error:
            log.error(
                "unexpected error", request_id=self.leader.decision.id, kind=type(error).__name__, where=where(error)
            )
            self.error = ApiError(500, "The gateway failed on this request.", code="internal_error")
        finally:
            self._finish()

    def _pass_on(self, error: ApiError) -> bool:
        """After a failure: may one of those who wait try again?"""
        if error.status < 500 or self.attempt >= ATTEMPTS or self.feed.end:
            return False
        for listener in self.listeners:
            if listener.visit is self.leader:
                listener.error = error
                self.listeners.remove(listener)
                listener.wake()
                break
        if not self.listeners:
            return False
        self.attempt += 1
        heir = self.listeners[0]
        self.leader, self.ask = heir.visit, heir.ask
        heir.visit.decision.outcome = "miss"
        self.fill = self._begin_fill(heir.visit, heir.ask)
        return True

    def _settle(self) -> None:
        """Charge what the call took to whom it was made for."""
        fill = self.fill
        if fill.cost.ms:
            self._recorder.charge(self.leader.decision, fill.usage, fill.cost)

    def _finish(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._on_end(self)
        for listener in self.listeners:
            listener.wake()

    def _crowded(self) -> bool:
        """Does nobody take what is there?"""
        if self.feed.end <= ROOM or not self.listeners:
            return False
        return min(listener.behind for listener in self.listeners) > ROOM

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _let_go_of_the_slow(self) -> None:
        if self.feed.end <= MAX_BEHIND or len(self.listeners) < 2:
            return
        fastest = min(listener.behind for listener in self.listeners)
        for listener in [x for x in self.listeners if x.behind - fastest > x.allowance]:
            listener.error = too_slow()
            self.listeners.remove(listener)
            listener.wake()

    def _trim(self) -> None:
        read: dict[Form, int] = {}
        for listener in self.listeners:
            form = listener.ask.form
            if form != "json":
                read[form] = min(read.get(form, listener.offset), listener.offset)
        self.feed.let_go(read)


def too_slow() -> ApiError:
    text = f"This client took the stream too slowly: it was more than {MAX_BEHIND} bytes behind the others."
    return ApiError(503, text, code="client_too_slow", headers={"x-should-retry": "false"})


def stopping() -> ApiError:
    text = "The gateway is shutting down. Try again in a moment."
    return ApiError(503, text, code="gateway_stopping", headers={"retry-after": "1"})
