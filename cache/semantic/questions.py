"""The questions that are known: their texts, whose vectors are still to be made, and which of them have one answer.

Questions of one context whose answers are the same form a group. The verifier needs it: a near neighbour with the same
answer speaks for a match, one with another answer against it.
"""

import sys
from collections.abc import Hashable, Iterator
from struct import Struct

from cache.framing import digest

ROW_OVERHEAD = 620
"""Bytes charged for a question beyond its text: key, context, objects, places in two tables (measured: 520 to 600)."""

MAX_BARE = 64
"""Questions of one context that may wait for their vectors: while the embedder is down, later ones push out the
earliest."""


_time = Struct("<d").pack


def name_of(key: bytes, made: float) -> bytes:
    """32 bytes that name the answer of this key that was made then (wall-clock seconds)."""
    return digest("refrain.answer.1", [key, _time(made)])


class Group:
    """Questions with the same answer. Equal only to itself."""

    __slots__ = ("keys",)

    def __init__(self, keys: set[bytes]) -> None:
        self.keys = keys


class Row:
    """One question with one answer, which has a `name` of 32 bytes; another answer makes another row. `group` is None
    while no other question is known to have its answer."""

    __slots__ = ("context", "group", "key", "name", "text")

    def __init__(self, key: bytes, context: bytes, text: str, name: bytes = b"") -> None:
        self.key = key
        self.context = context
        self.text = text
        self.name = name
        self.group: Group | None = None

    @property
    def answer(self) -> Hashable:
        """Equal for questions with the same answer."""
        return self.group or self.key

    @property
    def size(self) -> int:
        return sys.getsizeof(self.text) + ROW_OVERHEAD


class Questions:
    """At most `max_bytes` of them, by key; the least recently used go first. All belong to the event loop's thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rows: dict[bytes, Row] = {}  # the least recently used first
        self._bare: dict[bytes, tuple[bytes, ...]] = {}  # context -> keys of those without a vector, the earliest first
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[bytes]:
        """All keys, as they are now."""
        return iter(list(self._rows))

    def get(self, key: bytes) -> Row | None:
        return self._rows.get(key)

    def use(self, key: bytes) -> None:
        """It has answered another question."""
        row = self._rows.pop(key, None)
        if row is not None:
            self._rows[key] = row

    def bare(self, context: bytes) -> list[Row]:
        """Those of this context that have no vector yet."""
        return [self._rows[key] for key in self._bare.get(context, ())]

    def waiting(self, context: bytes) -> int:
        """How many of this context have no vector yet."""
        return len(self._bare.get(context, ()))

    def fits(self, row: Row) -> bool:
        """Is there room for it without another one going?"""
        return self.bytes + row.size <= self._max_bytes

    def replace(self, row: Row) -> None:
        """The same question with another answer, which is not what the former one was."""
        self.leave(row.key)
        self._rows[row.key] = row

    def add(self, row: Row, *, bare: bool) -> list[bytes]:
        """Know this question, whose key must be new; `bare`: it has no vector. Gives the keys that had to go for it."""
        self._rows[row.key] = row
        self.bytes += row.size
        gone = []
        if bare:
            waiting = (*self._bare.get(row.context, ()), row.key)
            self._bare[row.context] = waiting
            if len(waiting) > MAX_BARE:
                gone.append(waiting[0])
                self.remove(waiting[0])
        while self.bytes > self._max_bytes and self._rows:
            oldest = next(iter(self._rows))
            gone.append(oldest)
            self.remove(oldest)
        return gone

    def embedded(self, key: bytes) -> None:
        """It has its vector now."""
        row = self._rows.get(key)
        if row is not None:
            self._no_longer_bare(row)

    def remove(self, key: bytes) -> bool:
        row = self._rows.pop(key, None)
        if row is None:
            return False
        self.bytes -= row.size
        if row.group is not None:
            row.group.keys.discard(key)
        self._no_longer_bare(row)
        return True

    def merge(self, one: bytes, other: bytes) -> None:
        """These two have the same answer; so have all that are known to share it with either."""
        a, b = self._rows.get(one), self._rows.get(other)
        if a is None or b is None:
            return
        small, large = sorted((a.group or Group({one}), b.group or Group({other})), key=lambda group: len(group.keys))
        if small is large:
            return
        large.keys |= small.keys
        for key in (*small.keys, one, other):
            self._rows[key].group = large

    def leave(self, key: bytes) -> None:
        """Its answer is not that of its group."""
        row = self._rows.get(key)
        if row is not None and row.group is not None:
            row.group.keys.discard(key)
            row.group = None

    def group_of(self, key: bytes) -> frozenset[bytes]:
        """All keys known to have the answer of this one, its own among them."""
        row = self._rows.get(key)
        return frozenset((key,)) if row is None or row.group is None else frozenset(row.group.keys)

    def _no_longer_bare(self, row: Row) -> None:
        waiting = self._bare.get(row.context, ())
        if row.key not in waiting:
            return
        left = tuple(key for key in waiting if key != row.key)
        if left:
            self._bare[row.context] = left
        else:
            del self._bare[row.context]
