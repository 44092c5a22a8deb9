"""Which context holds which rows, and what all of it is charged.

A small context is its row numbers packed into bytes: with two vectors that takes 41, and a search copies nothing. From
1,024 rows on it is a `Large`, and never small again until it is empty.

What is charged here is vectors and tables; layers are charged by the builder when they are put in place. A large
context's rows are freed step by step when it is dropped; until then they are in no context, but charged.
"""

import sys

from cache.semantic.index_arena import Arena, Rows
from cache.semantic.index_large import TAIL, Builder, Large, Packed, rows_of

ROW_OVERHEAD = 180
"""Bytes charged per vector beyond its components: its key, and tables of keys, rows, times and order."""

CONTEXT_OVERHEAD = 200
"""Bytes charged per context."""

Entry = Packed | Large


class Contexts:
    """All methods are to be called under the index's lock."""

    def __init__(self, arena: Arena, builder: Builder) -> None:
        self.charged = 0
        self._arena = arena
        self._builder = builder
        self._entries: dict[bytes, Entry] = {}
        self._price = row_price(arena.dimensions)
        self._dropped: dict[bytes, int] = {}  # being dropped: the time of that

    def get(self, context: bytes) -> Entry:
        return self._entries.get(context, b"")

    def size(self, context: bytes) -> int:
        entry = self.get(context)
        return entry.count if isinstance(entry, Large) else len(rows_of(entry))

    def enter(self, context: bytes, row: int) -> None:
        """The row is the context's from now on."""
        entry = self.get(context)
        added = row.to_bytes(4, sys.byteorder)
        self.charged += self._price
        if isinstance(entry, Large):
            entry.tail += added
            entry.count += 1
            self._builder.look_at(entry)
            return
        if not entry:
            self.charged += CONTEXT_OVERHEAD
        entry += added
        if len(entry) < TAIL * len(added):
            self._entries[context] = entry
        else:
            large = self._entries[context] = Large(entry)
            self._builder.look_at(large)

    def leave(self, row: int) -> None:
        """The row is in no context any more; it has not been freed yet."""
        context = self._arena.context(row)
        self.charged -= self._price
        if self._arena.stamps[row] <= self._dropped.get(context, 0):
            return
        entry = self._entries[context]
        if isinstance(entry, Large):
            entry.tail = _without(entry.tail, row)
            entry.count -= 1
            self._builder.look_at(entry)
        else:
            entry = self._entries[context] = _without(entry, row)
        if self.size(context) == 0:
            self._forget(context)

    def drop(self, context: bytes) -> Rows:
        """The rows of the context, which is empty from now on. Each has still to leave, then call `dropped`."""
        entry = self.get(context)
        if not entry:
            return rows_of(b"")
        self._dropped[context] = self._arena.now
        rows = entry.living(self._arena) if isinstance(entry, Large) else rows_of(entry)
        self._forget(context)
        return rows

    def dropped(self, context: bytes) -> None:
        self._dropped.pop(context, None)

    def _forget(self, context: bytes) -> None:
        entry = self._entries.pop(context)
        self.charged -= CONTEXT_OVERHEAD
        if isinstance(entry, Large):
            self._builder.forget(entry)


def row_price(dimensions: int) -> int:
    """Bytes charged for a vector beside its context and layers."""
    return 4 * dimensions + ROW_OVERHEAD


def _without(rows: Packed, row: int) -> Packed:
    numbers = rows_of(rows)
    kept: Packed = numbers[numbers != row].tobytes()
    return kept
