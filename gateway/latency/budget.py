"""What asking a tier has taken of late, and whether that still fits into a request's latency budget.

A prediction is the 95th percentile of the latest times. Times of more than a minute ago count no more, so a tier that
was skipped for being slow is tried again; and fewer than a handful say nothing, so it is asked.
"""

from collections import deque

LATEST = 64
"""Times that are kept."""
LEAST = 5
"""Times without which there is no prediction."""
FRESH_FOR = 60.0
"""Seconds for which a time counts."""
OVER_BUDGET = "over_budget"
"""Why a tier was skipped whose predicted time does not fit."""


class Durations:
    """Of one tier, for one kind of work. `now` is any clock in seconds that does not go back."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=LATEST)  # (when it ended, seconds)

    def add(self, seconds: float, now: float) -> None:
        self._latest.append((now, seconds))

    def p95(self, now: float) -> float | None:
        """The predicted 95th percentile, in seconds; None where too little is known."""
        fresh = sorted(seconds for at, seconds in self._latest if now - at <= FRESH_FOR)
        return fresh[-(len(fresh) // 20) - 1] if len(fresh) >= LEAST else None

    def fit(self, left: float | None, now: float) -> bool:
        """May the tier be asked by a request that has so many seconds left (None: as many as it takes)?"""
        if left is None:
            return True
        predicted = self.p95(now)
        return predicted is None or predicted <= left
