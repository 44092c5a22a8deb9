"""One client's answer from a flight: streamed as it comes, or whole at its end, in the form that it asked for."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from gateway.asgi import Disconnected, Receive
from gateway.deadlines import exceeded
from gateway.fill import Filled, servable
from gateway.forms import streamed_form
from gateway.listener import Listener
from gateway.upstream import broken
from gateway.wire.sse import DONE_EVENT

WATCH_AFTER = 0.02
"""Seconds after which we begin to look whether the client is still there: the answer to most is sooner than that."""

T = TypeVar("T")


async def deliver(listener: Listener, receive: Receive) -> Filled:
    """Send the flight's answer to its listener; gives it back. Raises ApiError and Disconnected."""
    with _Watch(receive, listener.depart), _Due(listener.visit.deadline, partial(_give_up, listener)):
        try:
            if listener.ask.form != "json":
                await _stream(listener)
            while not listener.ended:
                await _news(listener)
            return await _end(listener)
        finally:
            listener.flight.leave(listener)


def _give_up(listener: Listener) -> None:
    """Its time is over; the flight goes on as if it had left."""
    if not (listener.visit.outlet.started or listener.ended):
        bill = listener.flight.fill.bill
        listener.error = exceeded(sent=bill is not None and not bill.waiting)
        listener.wake()


async def attended(receive: Receive, work: Coroutine[Any, Any, T], deadline: float | None = None) -> T:
    """What `work` gives, for a client that waits for it; it is cancelled when that one leaves, or at the deadline
    (perf_counter). Raises Disconnected, and ApiError 504."""
    task = asyncio.ensure_future(work)

    def leave() -> None:
        task.cancel()

    with _Watch(receive, leave), _Due(deadline, leave) as due:
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise  # it is we who are to end
            if due.over:
                raise exceeded(sent=True) from None
            raise Disconnected from None


async def _stream(listener: Listener) -> None:
    """What the flight has and will have, until it ends."""
    flight, visit, outlet = listener.flight, listener.visit, listener.visit.outlet
    while listener.error is None:
        if data := listener.take():
            if not outlet.started:
                _begin(listener)
                await outlet.start(200, visit.headers(listener.ask))
            listener.writing = True
            await outlet.write(data)
            listener.writing = False
            if listener.gone:
                raise Disconnected
        elif flight.ended:
            return
        else:
            await _news(listener)


async def _end(listener: Listener) -> Filled:
    flight, visit, ask, outlet = listener.flight, listener.visit, listener.ask, listener.visit.outlet
    filled = flight.filled
    if listener.error is not None:
        raise listener.error.fresh()
    if flight.error is not None:
        raise flight.error.fresh()
    if filled is None:
        raise Disconnected  # the flight was let go of, as nobody listened
    if filled.reuse is not None:
        body = filled.raw if ask.form == "json" else await streamed_form(ask, filled)
        if listener.gone:
            raise Disconnected
        flight.fill.sign(visit.decision)
        filled.reuse.book(visit)
        await outlet.whole(200, visit.headers(ask), body)
    elif ask.form == "json":
        _begin(listener)
        _served(listener)
        await outlet.whole(200, visit.headers(ask), filled.raw)
    elif outlet.started:
        _served(listener)
        await outlet.write(DONE_EVENT, last=True)
    elif not servable(ask, filled):
        raise broken("The backend's answer has no choices to stream.")
    else:
        body = await streamed_form(ask, filled)
        if listener.gone:
            raise Disconnected  # it left while a thread was at work for it
        _begin(listener)
        _served(listener)
        await outlet.whole(200, visit.headers(ask), body)
    return filled


def _begin(listener: Listener) -> None:
    """All that the head of the answer says."""
    d, flight = listener.visit.decision, listener.flight
    d.status = 200
    d.first_ms = (perf_counter() - listener.visit.incoming.started) * 1000
    d.upstream_id = flight.fill.upstream_id
    flight.fill.sign(d)
    if d.outcome == "joined":
        d.age = flight.fill.age()
        listener.visit.phase("join", listener.since)


def _served(listener: Listener) -> None:
    """Count the answer as served. Whoever joined has saved what the flight's leader pays for."""
    d, bill = listener.visit.decision, listener.flight.fill.bill
    if bill is None:
        return  # nobody was called
    d.input, d.output = bill.usage.input, bill.usage.output
    d.served = bill.usage.total
    if d.outcome != "joined":
        d.usd_used = bill.cost.usd or 0.0
    else:
        d.saved = bill.usage.total
        d.usd_saved = bill.cost.usd
        d.ms_saved = bill.cost.ms


async def _news(listener: Listener) -> None:
    await listener.news()
    if listener.gone:
        raise Disconnected


class _Due:
    """While it is open, calls `end` at the deadline (perf_counter), if there is one; `over` says that it has."""

    def __init__(self, deadline: float | None, end: Callable[[], None]) -> None:
        self._deadline = deadline
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self.over = False

    def __enter__(self) -> "_Due":
        if self._deadline is not None:
            left = max(0.0, self._deadline - perf_counter())
            self._timer = asyncio.get_running_loop().call_later(left, self._pass)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self) -> None:
        self.over = True
        self._end()


class _Watch:
    """While it is open, calls `left` when the client leaves."""

    def __init__(self, receive: Receive, left: Callable[[], None]) -> None:
        self._receive = receive
        self._left = left
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER, self._start)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            self._task = None  # it will hold the frames that it was cancelled in, and through them this

    def _start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()
