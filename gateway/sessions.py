"""Who is signed in to the dashboard: a cookie's random value leads to the key that was given for it.

A session is no more than its key. Whether that is still one, and what it may, is asked of the configuration in force on
every use, so a key that was revoked, removed or given another role takes its sessions with it. They are kept in the
process only: after a restart everybody signs in again.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from hashlib import sha256

from gateway.auth import Key

LIFE = 12 * 3600
"""Seconds after which one has to sign in again."""
MAX_SESSIONS = 1000
MAX_PER_KEY = 100
"""So that one key, which opens session after session, ends none but its own."""


class Session:
    """Of the key with this digest, until both clocks have had their say: the wall clock, which people see, and the
    monotonic one, which nobody sets back."""

    __slots__ = ("deadline", "key", "until")

    def __init__(self, key: bytes, until: float, deadline: float) -> None:
        self.key = key
        self.until = until
        self.deadline = deadline


class Sessions:
    """`clock` is wall-clock seconds, `mono` monotonic ones."""

    def __init__(self, clock: Callable[[], float], *, mono: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mono = mono
        self._open: dict[bytes, Session] = {}  # by the SHA-256 of the value, the oldest first

    def open(self, key: Key) -> str:
        """A new session of this key; gives the value by which it is found."""
        self._make_room(key.digest)
        value = secrets.token_urlsafe(32)
        self._open[_digest(value)] = Session(key.digest, self._clock() + LIFE, self._mono() + LIFE)
        return value

    def find(self, value: str, keys: Mapping[bytes, Key]) -> Key | None:
        """The key behind this value, as it stands among those of the configuration in force. None: it has ended, or
        there was none."""
        session = self._open.get(_digest(value))
        if session is None:
            return None
        key = keys.get(session.key)
        over = session.until <= self._clock() or session.deadline <= self._mono()
        if over or key is None or not key.good():
            self.close(value)
            return None
        return key

    def close(self, value: str) -> None:
        self._open.pop(_digest(value), None)

    def __len__(self) -> int:
        return len(self._open)

    def _make_room(self, key: bytes) -> None:
        mine = [digest for digest, session in self._open.items() if session.key == key]
        if len(mine) >= MAX_PER_KEY:
            del self._open[mine[0]]
        elif len(self._open) >= MAX_SESSIONS:
            del self._open[next(iter(self._open))]


def _digest(value: str) -> bytes:
    # The look-up goes by the digest, so its timing tells nothing about a value.
    return sha256(value.encode()).digest()
