"""Whether a search service is worth a call: after many failures in a row no request waits for it for a while.

Then the next call is let through and decides: while it is under way the others are refused, so that a service that
hangs holds up one request and not all of them. Only what says something about the service counts as a failure. What
one question brings about does not, or whoever sends such questions could shut the service off for everybody.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from backends.retrievers.base import RetrieverError

PATIENCE = 5
"""Calls in a row that may fail."""
DOWN_FOR = 5.0
"""Seconds for which no call is made then."""
BUSY_FOR = 1.0
"""Seconds to wait for a service that does not say how long."""
LONGEST_BUSY = 30.0
"""Seconds; a service that asks for more is asked again after these."""


class Health:
    """`what` is the service in words, such as "the search service"."""

    def __init__(self, what: str, mono: Callable[[], float]) -> None:
        self._what = what
        self._mono = mono
        self._failures = 0  # in a row
        self._why = ""
        self._down_until = 0.0
        self._busy_until = 0.0
        self._probing = False

    @property
    def down(self) -> str:
        """Why no call is made now; "" when calls are made."""
        resting = self._probing or self._mono() < self._down_until
        return self._why if self._failures >= PATIENCE and resting else ""

    def begin(self) -> bool:
        """Before a call; True: it is the one that decides, and `end` must follow. Raises RetrieverError."""
        if why := self.down:
            raise RetrieverError("unavailable", why)
        if self._mono() < self._busy_until:
            raise RetrieverError("busy", f"{self._what} has asked to wait")
        self._probing = self._failures >= PATIENCE
        return self._probing

    def end(self) -> None:
        """The call that decides is over, whatever came of it."""
        self._probing = False

    def answered(self) -> bool:
        """Whether it had been down."""
        was_down = self._failures >= PATIENCE
        self._failures = 0
        return was_down

    def failed(self, why: str) -> bool:
        """Whether this was one too many just now."""
        self._failures += 1
        self._why = why
        if self._failures >= PATIENCE:
            self._down_until = self._mono() + DOWN_FOR
        return self._failures == PATIENCE

    def busy(self, seconds: float) -> None:
        self._busy_until = self._mono() + seconds


def wait_for(retry_after: str | None, now: float) -> float:
    """Seconds that a `Retry-After` asks for, within reason; `now` is the time of day in seconds since the epoch."""
    if retry_after is None:
        return BUSY_FOR
    if retry_after.isascii() and retry_after.isdigit():
        return float(min(LONGEST_BUSY, int(retry_after[:9])))
    try:
        until = parsedate_to_datetime(retry_after)
        if until.tzinfo is None:  # "-0000": the time is UTC all the same
            until = until.replace(tzinfo=UTC)
        wait = (until - datetime.fromtimestamp(now, UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return BUSY_FOR
    return min(LONGEST_BUSY, max(0.0, wait))
