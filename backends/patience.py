"""A limit on how long a wait may last, at the price of one timer for all waits that have the same limit.

Nearly every wait for a piece of a reply ends after milliseconds, and its limit is a minute: a timer of its own would
cost as much as the piece. So a wait is only written down when it begins and crossed out when it ends. They stand in
the order in which they are due. The timer, when it fires, looks at the oldest, and sleeps until that one is due.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType

EXACT = 0.001
"""Seconds; the timers of an event loop are no better than this, so for less the timer does not sleep once more."""


class Patience:
    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: dict[Wait, float] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, give_up: Callable[[], None]) -> "Wait":
        return Wait(self, give_up)

    def begin(self, wait: "Wait") -> None:
        loop = asyncio.get_running_loop()
        self._since[wait] = now = loop.time()
        if self._timer is None:
            self._timer = loop.call_at(now + self._limit, self._look, loop)

    def end(self, wait: "Wait") -> None:
        self._since.pop(wait, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._since:
            oldest, since = next(iter(self._since.items()))
            due = since + self._limit
            if due - loop.time() >= EXACT:
                self._timer = loop.call_at(due, self._look, loop)
                return
            del self._since[oldest]
            oldest.give_up()


class Wait:
    """`with wait: await ...`, as often as needed, one at a time. `give_up` is called when it has lasted too long, and
    must make what is awaited fail."""

    __slots__ = ("_patience", "give_up")

    def __init__(self, patience: Patience, give_up: Callable[[], None]) -> None:
        self._patience = patience
        self.give_up = give_up

    def __enter__(self) -> None:
        self._patience.begin(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._patience.end(self)
