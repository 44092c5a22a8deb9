"""A flight: one upstream call in progress, and everybody who waits for its answer.

- Every client reads what has arrived at its own pace; one that comes late gets all of it at once, then the rest live.
- The flight goes on while anyone listens, whoever began it; with `lasting` also when nobody does. Else the backend is
  told at once that nobody listens any more.
- A failure before anything has arrived is its leader's alone: one waiter takes over, once. The second one goes to
  all, and so does an error that is the request's own fault (4xx), and any failure once something has arrived, since
  an answer cannot go on where another one broke off.
- The backend is read as fast as the fastest client takes it. A client that falls behind the others by more than
  MAX_BEHIND, and stays there, is let go with an error: it would have the gateway hold, for it alone, what all others
  are done with.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

import structlog

from gateway.ask import Ask, Form
from gateway.errors import ApiError
from gateway.feed import Feed
from gateway.fill import Fill, Filled
from gateway.listener import MAX_BEHIND, PIECE, Listener
from gateway.logs import where
from gateway.normalize import aside
from gateway.recorder import Recorder
from gateway.upstream import Event
from gateway.visit import Visit

ROOM = 256 * 1024
"""Bytes that may wait for the fastest client before the backend is made to wait."""
CLOCK = 0.001
"""Seconds: a timer may be early by so much."""
TURNS = 8
"""Turns of the event loop that clients get, at most, before the backend's next bytes are looked at."""
ATTEMPTS = 2

log = structlog.get_logger("refrain")


class Flight:
    """`begin_fill` makes the call for a request, given the one before that failed; `on_end` tells whoever keeps the
    flights. `shared`: others may join; `lasting`: go on when nobody listens. `leader` is who the call is made for, and
    charged to."""

    def __init__(
        self,
        begin_fill: Callable[[Visit, Ask, Fill | None], Fill],
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
        self.heard = False  # has anything of an answer arrived?
        self.outgrown = False
        self.attempt = 1
        first: Form = "sse" if ask.form == "sse" else "sse+usage"
        self.feed = Feed(first)
        self._lasting = lasting
        self._room: asyncio.Future[None] | None = None
        self.fill = begin_fill(visit, ask, None)
        self.task = asyncio.create_task(self._fly())

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"attempt {self.attempt}"
        return f"Flight({self.ask.key.hex()[:8]}, {state}, {len(self.listeners)} listening, {self.feed.end} bytes)"

    def join(self, visit: Visit, ask: Ask) -> Listener:
        listener = Listener(self, visit, ask)
        self.listeners.append(listener)
        self.make_room()
        return listener

    def leave(self, listener: Listener) -> None:
        """The listener is done, or its client is gone."""
        if listener in self.listeners:
            self.listeners.remove(listener)
        self._go_on()
        self.make_room()

    def make_room(self) -> None:
        """Who listens, or how far they are, has changed."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _go_on(self) -> None:
        """Is there anybody left to go on for? An answer that is whole is kept in any case."""
        if not self.listeners and not self._lasting and not self.ended and not self.fill.whole:
            self._finish()
            self.task.cancel()

    def stop(self) -> None:
        """The gateway is shutting down."""
        if not self.ended:
            self.error = stopping()
            self._finish()
        self.task.cancel()

    # What the call tells (gateway.fill.Hearers).

    def asks(self) -> Iterable[Ask]:
        return (listener.ask for listener in self.listeners)

    def hear(self, events: Sequence[Event]) -> None:
        self.heard = self.heard or bool(events)
        self.feed.add(events)
        if not self.shared:
            self.feed.let_go((x.ask.form, x.reader) for x in self.listeners if x.reader is not None)
        for listener in self.listeners:
            if listener.reader is not None:
                listener.wake()

    async def room(self) -> None:
        turns = TURNS
        while self.feed.end > PIECE:
            if self._crowded():
                await self._progress(None)
            elif turns and any(listener.behind > PIECE and not listener.writing for listener in self.listeners):
                turns -= 1
                await asyncio.sleep(0)  # they are not slow, they have just not had their turn
            elif late := self._late():
                # A burst may be too much for anybody. So they get a moment to catch up, but only one.
                waited = await self._progress(min(listener.patience for listener in late))
                for listener in late:
                    listener.patience -= waited
                    if listener.patience < CLOCK and listener in self.listeners:
                        self._part(listener, too_slow())
            else:
                return

    def too_large(self) -> None:
        self.outgrown = True
        self.shared = self._lasting = False  # it will not be kept, so there is no use in it but for who listens
        self._go_on()

    def landed(self, filled: Filled) -> None:
        self.filled = filled
        if filled.reuse is None:
            d = self.leader.decision
            d.stored, d.not_stored = filled.not_stored is None, filled.not_stored
        self._settle()
        self._finish()

    async def _fly(self) -> None:
        try:
            while True:
                try:
                    await self.fill.run(self)
                    return
                except ApiError as error:
                    if self.ended:
                        if self.filled is None:
                            self._settle()
                        return  # what goes wrong after the end concerns nobody
                    following = error.fresh() if self.heard else await self.fill.instead(error)
                    self._recorder.observed.failed(self.fill.backend, error.word)
                    self._settle()
                    if isinstance(following, Fill):
                        self._recorder.observed.fell_back(self.fill.backend, following.backend)
                        self.fill = following
                    elif not self._pass_on(following):
                        self.error = following
                        return
        except asyncio.CancelledError:
            if self.filled is None:
                self._settle()  # whoever has cancelled it has told the listeners
        except Exception as error:
            log.error(
                "unexpected error", request_id=self.leader.decision.id, kind=type(error).__name__, where=where(error)
            )
            if self.filled is None:
                self._settle()
            self.error = ApiError(500, "The gateway failed on this request.", code="internal_error")
        finally:
            self._finish()

    def _pass_on(self, error: ApiError) -> bool:
        """After a failure: may one of those who wait try again?"""
        if self.attempt >= ATTEMPTS or self.heard:
            return False
        if error.final:
            # The fault may lie in a field that the key leaves out; then it is nobody's who has sent another.
            sent = aside(self.ask.body)
            concerned = [x for x in self.listeners if aside(x.ask.body) == sent]
        else:
            concerned = [x for x in self.listeners if x.visit is self.leader]
        if len(concerned) == len(self.listeners):
            return False
        for listener in concerned:
            self._part(listener, error.fresh())
        self.attempt += 1
        heir = self.listeners[0]
        self.leader, self.ask = heir.visit, heir.ask
        heir.visit.decision.outcome = "miss"
        heir.visit.phase("join", heir.since)
        self.fill = self._begin_fill(heir.visit, heir.ask, self.fill)
        return True

    def _part(self, listener: Listener, error: ApiError) -> None:
        """For this one it ends here."""
        listener.error = error
        self.listeners.remove(listener)
        listener.wake()

    def _settle(self) -> None:
        """Charge what the call took, and the search before it, to whom it was made for."""
        bill, visit = self.fill.bill, self.leader
        if (searched := visit.take_spent()) is not None:
            self._recorder.charge(visit.decision, searched)
        if bill is not None and bill.settled:
            self._recorder.charge(visit.decision, bill.charge())
            visit.charge(bill.usage.total, bill.cost.usd or 0.0)

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

    def _late(self) -> list[Listener]:
        """Those who are further behind the fastest than they may be."""
        if self.feed.end <= MAX_BEHIND or len(self.listeners) < 2:
            return []
        fastest = min(listener.behind for listener in self.listeners)
        return [listener for listener in self.listeners if listener.behind - fastest > listener.allowance]

    async def _progress(self, seconds: float | None) -> float:
        """Wait until somebody has taken something, but not for longer than so many seconds; gives the seconds."""
        begun = monotonic()
        self._room = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._room], timeout=seconds)
        return monotonic() - begun


def too_slow() -> ApiError:
    text = f"This client took the stream too slowly: it was more than {MAX_BEHIND} bytes behind the others."
    return ApiError(503, text, code="client_too_slow", headers={"x-should-retry": "false"})


def stopping() -> ApiError:
    text = "The gateway is shutting down. Try again in a moment."
    return ApiError(503, text, code="gateway_stopping", headers={"retry-after": "1"})
