"""A large context: three places for its rows, told apart by age, and the thread that moves them on.

New rows are searched one by one (the tail), older ones through a flat layer, the oldest through a scan, or a graph
where they are very many (the base). Rules:

- A row of the context that last changed hands by `base.time` is in the base, by `flat.time` in the flat layer, later
  in the tail. So each is in exactly one place, and a layer may be made while rows come and go: what came meanwhile
  is younger than its time and stays where it was.
- A layer is made in the background and put in place when it is whole; until then the former ones go on answering.
- One thread builds for all contexts, and only while there is something to build. Linking a graph takes minutes, so
  between batches it does whatever else is waiting.
- The thread ends early when the index is closed or the process ends.

The sizes follow from what searches cost (see `index_layers`), and a tail of 1,024 rows .16 ms, one of 4,000 1.2 ms.
"""

import logging
import threading
from collections import deque

import numpy as np

from cache.semantic.index_arena import Arena, Rows
from cache.semantic.index_layers import MAX_DEAD, Kind, Layer, build

TAIL = 1024
"""So many rows are searched one by one before a layer takes them; a context of fewer has no layer."""

BASE_STEP = 8192
"""So many rows of the flat layer become the base, or join it."""

GRAPH_FROM = 524_288
"""A base of so many rows is a graph: a scan of them should take over 3 ms (reckoned from 100,000, not measured)."""

LARGE = 65_536
"""From here a search may take a millisecond: reckoned as .4 in the base, .3 in the flat layer, .2 in the tail."""

_log = logging.getLogger(__name__)

Packed = bytes
"""Row numbers, four bytes each: what a search has of it does not change."""


def rows_of(packed: Packed) -> Rows:
    return np.frombuffer(packed, np.int32)


class Large:
    """`count` is the number of living rows; with none left the context is no longer the index's."""

    __slots__ = ("base", "count", "flat", "tail", "waiting")

    def __init__(self, tail: Packed) -> None:
        self.tail = tail
        self.count = len(rows_of(tail))
        self.flat: Layer | None = None
        self.base: Layer | None = None
        self.waiting = False

    def layers(self) -> list[Layer]:
        return [layer for layer in (self.flat, self.base) if layer is not None]

    def living(self, arena: Arena) -> Rows:
        return np.concatenate([rows_of(self.tail), *(layer.living(arena) for layer in self.layers())])

    def is_due(self) -> bool:
        """Whether the tail is too long or too much is dead."""
        tail = len(rows_of(self.tail))
        held = tail + sum(len(layer.rows) for layer in self.layers())
        return tail >= TAIL or held - self.count > MAX_DEAD * held


class Builder:
    """Makes the layers. `lock` is the index's; `charged` is the bytes of the layers in place."""

    def __init__(self, arena: Arena, lock: threading.Lock) -> None:
        self.charged = 0
        self._arena = arena
        self._lock = lock
        self._due: deque[Large] = deque()
        self._growing: deque[Large] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def look_at(self, large: Large) -> None:
        """Under the lock, after every change: have the context's layers made where that is due."""
        if large.waiting or self._closed or large.count == 0 or not large.is_due():
            return
        large.waiting = True
        self._due.append(large)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="refrain-index")
            self._thread.start()

    def forget(self, large: Large) -> None:
        """Under the lock: the context is gone."""
        large.count = 0
        self._place(large, None, None)

    def close(self) -> None:
        """Wait for the batch at hand; what was being built is given up."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def idle(self) -> bool:
        """Whether nothing is being built."""
        with self._lock:
            return self._thread is None

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._stopped() or not (self._due or self._growing):
                    self._thread = None
                    return
                work, queue = (self._seal, self._due) if self._due else (self._grow, self._growing)
                large = queue.popleft()
            try:
                work(large)
            except Exception:
                _log.exception("a layer of the semantic index was not built: searches stay right and become slower")

    def _stopped(self) -> bool:
        return self._closed or not threading.main_thread().is_alive()

    def _seal(self, large: Large) -> None:
        """Move the tail into the flat layer."""
        with self._lock:
            tail, flat, time = rows_of(large.tail), large.flat, self._arena.now
        if len(tail) >= TAIL or (flat is not None and flat.is_worn(self._arena)):
            flat = self._flat(flat, tail, time)
            with self._lock:
                now = rows_of(large.tail)
                large.tail = now[~self._arena.unchanged(now, time)].tobytes()
                self._place(large, flat, large.base)
        with self._lock:
            large.waiting = False  # where it fails it stays True: not tried again
            if len(rows_of(large.tail)) >= TAIL:
                self.look_at(large)
        if self._should_grow(large) and large not in self._growing:
            self._growing.append(large)

    def _should_grow(self, large: Large) -> bool:
        if large.flat is not None and len(large.flat.rows) >= BASE_STEP:
            return True
        return large.base is not None and large.base.is_worn(self._arena)

    def _grow(self, large: Large) -> None:
        """Move the flat layer into the base, or the base back into a flat layer where little of it is left."""
        if not self._should_grow(large):
            return
        flat, base, layers = large.flat, large.base, large.layers()
        living = np.concatenate([layer.living(self._arena) for layer in layers])
        time = max(layer.time for layer in layers)
        if len(living) < BASE_STEP // 2:
            self._settle(large, self._flat(None, living, time), None)
            return
        moved = living[:0] if flat is None else flat.living(self._arena)
        kind = Kind.SCAN if len(living) < GRAPH_FROM else Kind.GRAPH
        for made in build(self._arena, kind, base, moved, time):
            while self._due and not self._stopped():
                self._seal(self._due.popleft())
            if self._stopped() or large.count == 0:
                return
            base = made
        flat = large.flat
        if flat is not None:
            younger = flat.living(self._arena)
            younger = younger[~self._arena.unchanged(younger, time)]
            flat = self._flat(None, younger, flat.time)
        self._settle(large, flat, base)

    def _flat(self, old: Layer | None, rows: Rows, time: int) -> Layer | None:
        """A flat layer of these rows and what lives of the old one; None when there are none."""
        if len(rows) == 0 and (old is None or len(old.living(self._arena)) == 0):
            return None
        *_, made = build(self._arena, Kind.FLAT, old, rows, time)
        return made

    def _settle(self, large: Large, flat: Layer | None, base: Layer | None) -> None:
        with self._lock:
            self._place(large, flat, base)
            self.look_at(large)

    def _place(self, large: Large, flat: Layer | None, base: Layer | None) -> None:
        self.charged -= sum(layer.bytes() for layer in large.layers())
        large.flat, large.base = (flat, base) if large.count else (None, None)
        self.charged += sum(layer.bytes() for layer in large.layers())
