"""Who may call a backend now, who waits, and who is refused.

- So many calls run at once; a call of the batch class has only a share of that, and none while an interactive one
  waits. A place that becomes free is handed on at once, so as long as anybody waits there is none to be had.
- The calls of each class wait in a bounded queue, in which tenants take turns, and the users of each. Where it is full,
  a tenant that has fewer in it than another one displaces that one's last, and so does a user within its tenant; else
  it is refused. Those of the batch lane are neither counted nor refused: the lane keeps few of them waiting.
- How long a call would wait is told from the queue and from what the latest calls took. What cannot be in time is
  refused at once; what has run out of time while it waited is cancelled by whoever waits for it.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from backends.base import Call, CannotBeInTime, Overloaded, Priority
from gateway.fair import TenantQueue

PRIORITIES: tuple[Priority, ...] = ("interactive", "batch")
"""Whoever comes first here goes first."""
LATEST = 16
"""Calls, about, whose times make the usual one."""
MOST = 60.0
"""Seconds that we ask anybody to come back in, at most: beyond that official clients wait as they think best."""
UNKNOWN = 1.0
"""Seconds to come back in where no call has ended yet."""


class Limits(NamedTuple):
    """Calls at once (None: as many as come), those of the batch class among them, and calls of each class that
    wait."""

    running: int | None
    batch: int
    waiting: int


class _Waiter:
    """A call that waits; `turn` is done when it has its place, or was refused or cancelled."""

    __slots__ = ("party", "patient", "tenant", "turn")

    def __init__(self, call: Call) -> None:
        self.tenant, self.party = call.tenant, call.party
        self.patient = call.turn is not None and call.turn.patient
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _Line:
    """The calls of a class that wait: all of them, in the order of their turns, and those that may be refused."""

    def __init__(self) -> None:
        self._all: TenantQueue[_Waiter] = TenantQueue()
        self._bounded: TenantQueue[_Waiter] = TenantQueue()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def bounded(self) -> int:
        return len(self._bounded)

    def push(self, waiter: _Waiter) -> None:
        self._all.push(waiter.tenant, waiter.party, waiter)
        if not waiter.patient:
            self._bounded.push(waiter.tenant, waiter.party, waiter)

    def pop(self) -> _Waiter:
        waiter = self._all.pop()
        self._bounded.discard(waiter.tenant, waiter.party, waiter)
        return waiter

    def discard(self, waiter: _Waiter) -> None:
        self._all.discard(waiter.tenant, waiter.party, waiter)
        self._bounded.discard(waiter.tenant, waiter.party, waiter)

    def displace(self, waiter: _Waiter) -> _Waiter | None:
        """The one that makes room for this one, if any does."""
        displaced = self._bounded.displace(waiter.tenant, waiter.party)
        if displaced is not None:
            self._all.discard(displaced.tenant, displaced.party, displaced)
        return displaced

    def ahead(self, waiter: _Waiter) -> int:
        return self._all.ahead(waiter.tenant, waiter.party)


class Gate:
    """Of one backend. `refused` hears of the class and the reason of each refusal; `mono` gives seconds, by the clock
    of the deadlines."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        refused: Callable[[Priority, str], None] = lambda priority, reason: None,
        mono: Callable[[], float] = perf_counter,
    ) -> None:
        self._name = name
        self._limits = limits
        self._refused = refused
        self._mono = mono
        self._usual: dict[Priority, float] = {}  # seconds that a call has its place, where that is known
        self._queues: dict[Priority, _Line] = {p: _Line() for p in PRIORITIES}
        self.running: dict[Priority, int] = dict.fromkeys(PRIORITIES, 0)

    def __repr__(self) -> str:
        counts = ", ".join(f"{p}: {self.running[p]} running, {len(self._queues[p])} waiting" for p in PRIORITIES)
        return f"Gate({self._name}, {counts})"

    @property
    def waiting(self) -> dict[Priority, int]:
        return {priority: len(queue) for priority, queue in self._queues.items()}

    def limit(self, limits: Limits) -> None:
        """From now on. Who runs goes on, and who waits may, be there more of them than new ones could be."""
        self._limits = limits
        self._let_in()

    async def enter(self, call: Call) -> "Place":
        """A place for this call, when it is its turn. Raises Overloaded and CannotBeInTime."""
        if self._room(call.priority):
            self.running[call.priority] += 1
        else:
            await self._wait(call)
        return Place(self, call.priority, self._mono())

    def leave(self, priority: Priority, seconds: float) -> None:
        """A call that had its place for so long gives it back."""
        usual = self._usual.get(priority, seconds)
        self._usual[priority] = usual + (seconds - usual) / LATEST
        self._give_back(priority)

    def _give_back(self, priority: Priority) -> None:
        self.running[priority] -= 1
        self._let_in()

    def _room(self, priority: Priority) -> bool:
        """Is a place free for a call of this class? (While an interactive one waits there is none for anybody.)"""
        limits, running = self._limits, self.running
        if limits.running is not None and running["interactive"] + running["batch"] >= limits.running:
            return False
        return priority == "interactive" or running["batch"] < limits.batch

    def _let_in(self) -> None:
        for priority in PRIORITIES:
            queue = self._queues[priority]
            while queue and self._room(priority):
                turn = queue.pop().turn
                if not turn.done():  # else it was cancelled, and is about to leave
                    self.running[priority] += 1
                    turn.set_result(None)

    async def _wait(self, call: Call) -> None:
        """Whoever lets it in has counted it."""
        queue, waiter = self._queues[call.priority], _Waiter(call)
        if not waiter.patient:
            self._check(call, queue, waiter)
        turn = waiter.turn
        queue.push(waiter)
        if call.turn is not None:
            call.turn.waits()
        try:
            await turn
        except asyncio.CancelledError:
            queue.discard(waiter)
            if not turn.cancelled() and turn.exception() is None:
                self._give_back(call.priority)  # it was let in at that very moment
            raise
        if call.turn is not None:
            call.turn.begins()

    def _check(self, call: Call, queue: _Line, waiter: _Waiter) -> None:
        """Refuse what would come too late, or for which there is no room to wait; or make room."""
        wait = self._expected(call.priority, queue.ahead(waiter))
        deadline = None if call.turn is None else call.turn.deadline
        left = None if deadline is None else deadline - self._mono()
        if wait is not None and left is not None and wait > left:
            self._refused(call.priority, CannotBeInTime.code)
            text = f"It would take about {wait:.1f} s until backend '{self._name}' could begin with this request"
            raise CannotBeInTime(f"{text}, which has {max(0.0, left):.1f} s left.", min(MOST, wait - left))
        if queue.bounded < self._limits.waiting:
            return
        displaced = queue.displace(waiter)
        if displaced is None:
            raise self._overloaded(call.priority, wait)
        if not displaced.turn.done():
            error = self._overloaded(call.priority, self._expected(call.priority, len(queue)))
            displaced.turn.set_exception(error)

    def _expected(self, priority: Priority, ahead: int) -> float | None:
        """Seconds until a call with so many of its class before it has its turn, at the pace at which places become
        free; None where that is not known."""
        giving: tuple[Priority, ...] = PRIORITIES
        if priority == "batch":
            if self.running["batch"] >= self._limits.batch:
                giving = ("batch",)  # the share is used up: only its own make room
            else:
                ahead += len(self._queues["interactive"])
        giving = tuple(p for p in giving if self.running[p])
        if not giving or any(p not in self._usual for p in giving):
            return None
        pace = sum(self.running[p] / max(self._usual[p], 1e-9) for p in giving)
        return (ahead + 1) / pace

    def _overloaded(self, priority: Priority, wait: float | None) -> Overloaded:
        self._refused(priority, Overloaded.code)
        text = f"Too many requests wait for backend '{self._name}'. Try again later."
        return Overloaded(text, UNKNOWN if wait is None else min(MOST, wait))


class Place:
    """One of those that a gate has to give; `leave` gives it back, once."""

    __slots__ = ("_gate", "_priority", "_since")

    def __init__(self, gate: Gate, priority: Priority, since: float) -> None:
        self._gate: Gate | None = gate
        self._priority = priority
        self._since = since

    def leave(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(self._priority, gate._mono() - self._since)
