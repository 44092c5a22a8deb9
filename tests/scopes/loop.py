"""Time for gateways without sockets: an event loop, and a clock in our hand."""

import asyncio
from selectors import DefaultSelector, SelectorKey

SOON = 0.1
"""Seconds up to which a timer is one of those that tests and connections set. Longer ones are deadlines of work that is
being done in a thread."""


START = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


class _Selector(DefaultSelector):
    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = super().select(0 if timeout is not None and timeout <= SOON else timeout)
        if not ready and timeout is not None:
            self.passed += max(0.0, timeout)
        return ready


class HurriedLoop(asyncio.SelectorEventLoop):
    """Short waits take no time: their end has come as soon as nobody else has anything to do."""

    def __init__(self) -> None:
        self._hurry = _Selector()
        super().__init__(self._hurry)

    def time(self) -> float:
        return self._hurry.passed
