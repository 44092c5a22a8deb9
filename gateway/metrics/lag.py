"""How late the event loop is: a timer that is due four times a second, and how much later than that it runs. Whatever
holds up the loop holds up every request by as much."""

import asyncio
from collections import deque
from time import perf_counter

from gateway.metrics.histogram import Histogram

EVERY = 0.25
"""Seconds between two measurements."""
RECENT = 4
"""Measurements of which `ms` is the worst."""
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Lag:
    """`seconds` are all measurements since the start."""

    def __init__(self) -> None:
        self.seconds = Histogram(BOUNDS)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ms(self) -> float:
        """The most that the loop was late within the last second, in milliseconds."""
        return max(self._recent, default=0.0) * 1000

    def start(self) -> None:
        """Measure the running loop from now on."""
        due = perf_counter() + EVERY
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._measure, due)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _measure(self, due: float) -> None:
        late = max(0.0, perf_counter() - due)  # a loop's clock is coarse: it may be early, too
        self.seconds.add(late)
        self._recent.append(late)
        self.start()
