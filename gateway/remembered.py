"""Keys remembered for a while."""

from collections.abc import Callable

LIMIT = 10_000


class Remembered:
    """Holds each key for `seconds` after it was added, by `clock`. At most LIMIT keys, the oldest go first."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[bytes, float] = {}  # all for the same time, so the oldest ends first

    def add(self, key: bytes) -> None:
        self._until.pop(key, None)
        now = self._clock()
        while self._until and (len(self._until) >= LIMIT or next(iter(self._until.values())) <= now):
            del self._until[next(iter(self._until))]
        self._until[key] = now + self._seconds

    def discard(self, key: bytes) -> None:
        self._until.pop(key, None)

    def __contains__(self, key: bytes) -> bool:
        until = self._until.get(key)
        return until is not None and self._clock() < until
