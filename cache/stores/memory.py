"""The in-process store: answers by key, and aliases by which a known request finds its answer without being parsed.

It stands in front of other stores and is asked for every request, so besides the contract's methods it has
synchronous ones. None of them waits, so between two awaits a caller sees one consistent state; all belong to
the event loop's thread.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from heapq import nlargest
from typing import Any

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from cache.stores.base import StoreStats
from cache.stores.slot import STEP, Slot

__all__ = ["MAX_ALIASES", "STEP", "MemoryStore", "Slot"]

MAX_ALIASES = 32
"""Aliases per entry: clients that spell one request in ever new ways must not push other answers out."""

FORM_OVERHEAD = 160
"""Bytes charged per rendered form beyond its bytes (measured: about 150)."""

ALIAS_OVERHEAD = 400
"""Bytes charged per alias beyond its payload: digest, pair, places in two tables (measured: 250 to 390)."""

SCAN_CHUNK = 1000
"""Entries looked at before the event loop gets a turn: about a millisecond."""


class MemoryStore:
    """At most `max_bytes` of answers, their rendered forms and their aliases; `now` is the wall clock in seconds,
    `mono` a monotonic one."""

    def __init__(
        self, max_bytes: int, *, now: Callable[[], float] = time.time, mono: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._now = now
        self._mono = mono
        self._slots: OrderedDict[bytes, Slot] = OrderedDict()  # the least recently used first
        self._aliases: dict[bytes, tuple[Any, Slot]] = {}
        self._bytes = 0
        self._reserved = 0
        self._evicted = 0
        self._corrupt = 0

    # The hot path.

    def by_alias(self, alias_digest: bytes, now: float | None = None) -> tuple[Any, Slot] | None:
        """The payload given to `alias` and the slot it leads to. Whoever has the time at hand passes it as `now`."""
        found = self._aliases.get(alias_digest)
        if found is None:
            return None
        entry = found[1].entry
        if entry.keep_until <= (self._now() if now is None else now):
            self.discard(entry.key)
            return None
        self._slots.move_to_end(entry.key)
        return found

    def peek(self, key: bytes, now: float | None = None) -> Slot | None:
        """The slot of `key` while it may be kept; counts as a use."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        entry = slot.entry
        if entry.key != key:
            self._corrupt += 1
            self.discard(key)
            return None
        if entry.keep_until <= (self._time_of(slot) if now is None else now):
            self.discard(key)
            return None
        self._slots.move_to_end(key)
        return slot

    def slot(self, entry: Entry) -> Slot:
        """A slot of its own for this entry, outside the store."""
        return Slot(entry, self._now(), self._mono())

    # Changes.

    def keep(self, entry: Entry) -> Slot | None:
        """Put the entry in place of whatever its key held, forms and aliases of the former answer included.

        None when it alone is larger than the bound.
        """
        self.discard(entry.key)
        slot = self.slot(entry)
        if slot.size > self._room:
            return None
        self._slots[entry.key] = slot
        self._bytes += slot.size
        self._evict()
        return slot

    def attach(self, slot: Slot, form: str, data: bytes) -> None:
        """Keep `data`, the slot's answer in another wire form.

        Ignored where it does not fit, or the slot is no longer in the store: evicted, purged or replaced.
        """
        if self._slots.get(slot.entry.key) is not slot:
            return
        former = slot.rendered.get(form)
        grown = len(data) - len(former) if former is not None else len(data) + FORM_OVERHEAD
        if self._grow(slot, grown):
            slot.rendered[form] = data
            self._evict()

    def alias(self, alias_digest: bytes, slot: Slot, payload: object, size: int) -> None:
        """Let `alias_digest` lead to `slot` and to `payload`, which takes `size` bytes.

        Ignored where it does not fit, or the slot is no longer in the store: evicted, purged or replaced.
        """
        if self._slots.get(slot.entry.key) is not slot:
            return
        self.forget_alias(alias_digest)
        if len(slot.aliases) >= MAX_ALIASES:
            self.forget_alias(next(iter(slot.aliases)))
        charged = size + ALIAS_OVERHEAD
        if self._grow(slot, charged):
            slot.aliases[alias_digest] = charged
            self._aliases[alias_digest] = (payload, slot)
            self._evict()

    def forget_alias(self, alias_digest: bytes) -> None:
        """Let it lead nowhere."""
        found = self._aliases.pop(alias_digest, None)
        if found is not None:
            slot = found[1]
            charged = slot.aliases.pop(alias_digest)
            slot.size -= charged
            self._bytes -= charged

    def reserve(self, size: int) -> None:
        """So many of its bytes are taken by something else that belongs to the cache."""
        self._reserved = size
        self._evict()

    def discard(self, key: bytes) -> None:
        """Forget the key with its forms and aliases, if it is there."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._release(slot)

    # The contract of every store.

    async def get(self, key: bytes) -> Entry | None:
        slot = self.peek(key)
        return None if slot is None else slot.entry

    async def put(self, entry: Entry) -> None:
        self.keep(entry)

    async def purge(self, match: Match, *, soft: bool = False, dry_run: bool = False) -> int:
        purged = 0
        async for slot in self._matching(match):
            now = self._time_of(slot)
            if soft and slot.entry.expires <= now:
                continue
            purged += 1
            if not dry_run and soft:
                self._stale(slot, now)
            elif not dry_run:
                self.discard(slot.entry.key)
        return purged

    async def entries(self, match: Match, *, limit: int) -> list[Entry]:
        found = [slot.entry async for slot in self._matching(match)]
        return nlargest(limit, found, key=lambda entry: entry.created)

    async def note(self, question: Question) -> None:
        """Nothing: it would be gone with the index that it is kept for."""

    async def questions(self, *, after: bytes, limit: int) -> list[Question]:
        return []

    async def known(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        return {slot.entry.key: slot.entry.created async for slot in self._alive(keys)}

    async def stats(self) -> StoreStats:
        return StoreStats(len(self._slots), self._bytes + self._reserved, self._max_bytes, self._evicted, self._corrupt)

    async def flush(self) -> None:
        """Nothing here outlives the process, so there is nothing to wait for."""

    async def aclose(self) -> None:
        self._slots.clear()
        self._aliases.clear()
        self._bytes = 0

    async def _matching(self, match: Match) -> AsyncIterator[Slot]:
        """Live slots that match."""
        async for slot in self._alive(list(self._slots) if match.key is None else [match.key]):
            if match.accepts(slot.entry):
                yield slot

    async def _alive(self, keys: Iterable[bytes]) -> AsyncIterator[Slot]:
        """Live slots of these keys; no use of them. The requests must not be held up, so the loop gets its turns."""
        for number, key in enumerate(keys, 1):
            if number % SCAN_CHUNK == 0:
                await asyncio.sleep(0)
            slot = self._slots.get(key)  # may have gone, or been replaced, while others had their turn
            if slot is not None and slot.entry.keep_until > self._time_of(slot):
                yield slot

    def _time_of(self, slot: Slot) -> float:
        return slot.now(self._now(), self._mono())

    def _stale(self, slot: Slot, now: float) -> None:
        """End its life. Its aliases know of another end, so they go."""
        slot.entry = slot.entry.stale_from(now)
        for alias_digest in list(slot.aliases):
            self.forget_alias(alias_digest)

    @property
    def _room(self) -> int:
        """Bytes that answers may take."""
        return self._max_bytes - self._reserved

    def _grow(self, slot: Slot, size: int) -> bool:
        """Charge the slot for `size` more bytes, as a use of it; False where it would no longer fit on its own."""
        if slot.size + size > self._room:
            return False
        slot.size += size
        self._bytes += size
        self._slots.move_to_end(slot.entry.key)
        return True

    def _evict(self) -> None:
        while self._bytes > self._room and self._slots:
            _, slot = self._slots.popitem(last=False)
            self._release(slot)
            self._evicted += 1

    def _release(self, slot: Slot) -> None:
        self._bytes -= slot.size
        for alias_digest in slot.aliases:
            del self._aliases[alias_digest]
