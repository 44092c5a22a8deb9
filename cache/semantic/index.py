"""The index: which known questions of one context are nearest to a new one.

Rules:

- A context sees its own vectors only. It is a set of rows of one arena; a small one is those row numbers and nothing
  else, a large one (from 1,024 rows) has layers of its own, made in the background.
- Similarities are always computed from the stored vectors: what the layers hold is a coarser copy and only proposes.
- Adding, removing and searching may happen at once, from any threads. One lock guards the tables. It is held to copy
  row numbers and to look up the keys of what was found, never during a search; a row that changed hands during the
  search is left out of its result.
- At most `max_bytes`, as far as `bytes` counts: beyond it the keys go that were least recently added or found. It
  counts what lives and the layers in place. Memory of a freed row stays with the process until the row is used again,
  and while a layer is being made the former one is still there.
"""

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cache.semantic.index_arena import Arena, Rows, Vector
from cache.semantic.index_contexts import CONTEXT_OVERHEAD, Contexts, row_price
from cache.semantic.index_large import LARGE, Builder, Large, rows_of
from cache.semantic.index_layers import one_thread

SPARE = 16
"""Ranked beyond `k`, in place of those that go while they are being ranked."""

GONE_AT_ONCE = 200
"""Keys that may have to go for one: a new layer may take the room of thousands, and nobody is to wait for all that."""

DROPPED_AT_ONCE = 500
"""Rows freed before others get the lock: about a millisecond."""

Key = bytes


class Index:
    """Unit vectors of `dimensions` float32 components, by key and context."""

    def __init__(self, dimensions: int, *, max_bytes: int) -> None:
        if max_bytes < row_price(dimensions) + CONTEXT_OVERHEAD:
            raise ValueError(f"an index of {max_bytes} bytes has no room for a vector of {dimensions} dimensions")
        self._max_bytes = max_bytes
        self._arena = Arena(dimensions, max_bytes // row_price(dimensions) + 1)
        self._lock = threading.Lock()
        self._dropping = threading.Lock()
        self._builder = Builder(self._arena, self._lock)
        self._contexts = Contexts(self._arena, self._builder)

    def add(self, context: Key, key: Key, vector: Vector) -> list[Key]:
        """Put the vector in place of the key's former one, whatever context that was in.

        Gives the keys that had to go for it. ValueError for anything but a unit vector of the index's dimensions.
        """
        vector = self._checked(vector)
        gone: list[Key] = []
        with self._lock:
            self._remove(self._arena.keys.row(key))
            self._contexts.enter(context, self._arena.put(key, context, vector))
            while self.bytes > self._max_bytes and len(gone) < GONE_AT_ONCE:
                oldest = self._arena.least_recent()
                gone.append(self._arena.keys.key(oldest))
                self._remove(oldest)
        return gone

    def remove(self, key: Key) -> bool:
        """Whether it was there."""
        with self._lock:
            return self._remove(self._arena.keys.row(key))

    def drop(self, context: Key) -> int:
        """Remove all vectors of a context; their number. Takes two microseconds a vector."""
        with self._dropping:
            with self._lock:
                rows = self._contexts.drop(context)
                time = self._arena.now
            for start in range(0, len(rows), DROPPED_AT_ONCE):
                part = rows[start : start + DROPPED_AT_ONCE]
                with self._lock:
                    for row in part[self._arena.unchanged(part, time)].tolist():
                        self._remove(row)
            with self._lock:
                self._contexts.dropped(context)
        return len(rows)

    def search(self, context: Key, vector: Vector, k: int) -> list[tuple[Key, float]]:
        """The `k` nearest keys of the context with their cosines, nearest first; fewer when it has fewer.

        ValueError for anything but a unit vector of the index's dimensions.
        """
        vector = self._checked(vector)
        with self._lock:
            entry = self._contexts.get(context)
            tail, layers = (entry.tail, entry.layers()) if isinstance(entry, Large) else (entry, [])
            time = self._arena.now
        if not entry or k < 1:
            return []
        rows = rows_of(tail)
        times = np.full(len(rows), time, np.int64)
        with one_thread():
            for layer in layers:
                proposed = layer.nearest(self._arena, vector, k)
                rows = np.concatenate((rows, proposed))
                times = np.concatenate((times, np.full(len(proposed), layer.time, np.int64)))
            products = self._arena.products(vector, rows)
        best = _best(products, k + SPARE)
        return self._named(rows[best], times[best], products[best], k)

    def vector(self, key: Key) -> Vector | None:
        """A copy."""
        with self._lock:
            row = self._arena.keys.row(key)
            return self._arena.vectors[row].copy() if row else None

    def keys(self) -> Iterator[Key]:
        """Those of this moment."""
        with self._lock:
            return iter(self._arena.keys.all())

    def size(self, context: Key) -> int:
        """The number of the context's vectors."""
        with self._lock:
            return self._contexts.size(context)

    def is_large(self, context: Key) -> bool:
        """Whether a search in it may take over a millisecond: better in a thread, and so is `drop`."""
        return self.size(context) >= LARGE

    def __len__(self) -> int:
        return len(self._arena.keys)

    @property
    def bytes(self) -> int:
        """What all of it takes, layers and tables included."""
        return self._contexts.charged + self._builder.charged

    def settled(self) -> bool:
        """Whether nothing is being built in the background."""
        return self._builder.idle()

    def close(self) -> None:
        """Stop building; may take a tenth of a second. What has been built stays in use."""
        self._builder.close()

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    def _checked(self, vector: Vector) -> Vector:
        with np.errstate(over="ignore"):
            given = np.ascontiguousarray(vector, np.float32)
        if given.shape != (self._arena.dimensions,):
            raise ValueError(f"a vector of shape {given.shape} instead of ({self._arena.dimensions},)")
        length = float(np.linalg.norm(given.astype(np.float64)))
        if not abs(length - 1) < 1e-3:  # nor is NaN
            raise ValueError(f"a vector of length {length} instead of 1")
        return given

    def _remove(self, row: int) -> bool:
        if row == 0:
            return False
        self._contexts.leave(row)
        self._arena.free(row)
        return True

    def _named(self, rows: Rows, times: NDArray[np.int64], products: Vector, k: int) -> list[tuple[Key, float]]:
        """The first `k` that are still whose they were; that is a use of them."""
        found: list[tuple[Key, float]] = []
        with self._lock:
            still = self._arena.stamps[rows] <= times
            for row, product in zip(rows[still][:k].tolist(), products[still][:k].tolist(), strict=True):
                self._arena.touch(row)
                found.append((self._arena.keys.key(row), max(-1.0, min(1.0, product))))
        return found


def _best(products: Vector, count: int) -> NDArray[np.intp]:
    """The places of the greatest, the greatest first."""
    if len(products) <= count:
        return np.argsort(-products, kind="stable")
    some = np.argpartition(products, -count)[-count:]
    return some[np.argsort(-products[some], kind="stable")]
