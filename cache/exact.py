"""The exact tier: answers by key, in memory in front of a store.

The front answers without leaving the event loop; the store is asked only when the front has nothing. A store that is
slow, full or dead costs a miss. Whatever was purged while an answer was being made is not stored with it: `mark`
before the upstream call, `put(entry, since=mark)` after.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from cache.stores import open_store
from cache.stores.base import Store, StoreStats, StoreUnavailable
from cache.stores.memory import MemoryStore, Slot

REMEMBERED_PURGES = 1024
MAX_BANS = 256
"""Purges that the store could not do; beyond that the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Ban:
    """What the store was to give up and may not have: not used any more, as far as it was made when the purge began."""

    number: int
    match: Match
    soft: bool
    began: float

    def forbids(self, entry: Entry) -> bool:
        return entry.created <= self.began and self.match.accepts(entry)

    def is_covered_by(self, later: "_Ban") -> bool:
        """Whether the later purge was to do all that this one was."""
        return later.match == self.match and later.number > self.number and (self.soft or not later.soft)


def _bounded(bans: list[_Ban]) -> list[_Ban]:
    """Of too many the oldest become one, on all that is as old: better a miss than an answer that was to go."""
    surplus = len(bans) - MAX_BANS + 1
    if surplus < 2:
        return bans
    oldest = bans[:surplus]
    one = _Ban(max(ban.number for ban in oldest), Match(), False, max(ban.began for ban in oldest))
    return [one, *bans[surplus:]]


class ExactCache:
    """`max_entry` bounds one answer's body in bytes. Without `open` there is the front only."""

    def __init__(self, front: MemoryStore, *, max_entry: int) -> None:
        self.front = front
        self._store: Store | None = None
        self.max_entry = max_entry
        self._purges: deque[Match] = deque(maxlen=REMEMBERED_PURGES)  # in their order; the last is number `_count`
        self._count = 0
        self._under_way: set[int] = set()
        self._bans: list[_Ban] = []
        self._now: Callable[[], float] = time.time

    async def open(self, url: str, *, max_bytes: int, now: Callable[[], float]) -> None:
        """Put the store that `url` names behind the front. Raises StoreError."""
        self._now = now
        self._store = await open_store(url, max_bytes=max_bytes, max_entry=self.max_entry, now=now)

    def mark(self) -> int:
        """A point in the order of purges: an answer whose making begins here is not touched by earlier ones."""
        return self._count

    async def get(self, key: bytes) -> Slot | None:
        """The entry under this key, fresh or stale: whether it may be served is `freshness.judge`'s to say."""
        slot = self.front.peek(key)
        if slot is not None or self._store is None:
            return slot
        # What is read now may be what a purge under way has not reached yet.
        mark = min(self._under_way, default=self._count + 1) - 1
        try:
            entry = await self._store.get(key)
        except StoreUnavailable:
            return self.front.peek(key)
        # A newer answer may have come meanwhile.
        if (slot := self.front.peek(key)) is not None or entry is None or self.purged(entry, since=mark):
            return slot
        if any(ban.forbids(entry) for ban in self._bans):
            return None
        # What does not fit in front is served all the same.
        return self.front.keep(entry) or self.front.slot(entry)

    async def put(self, entry: Entry, *, since: int) -> str | None:
        """Keep an answer. Returns why it was not kept, or None."""
        if len(entry.body) > self.max_entry:
            return "too_large"
        if self.purged(entry, since=since):
            return "purged_meanwhile"
        self.front.keep(entry)
        if self._store is not None:
            try:
                await self._store.put(entry)
            except StoreUnavailable:
                return "store_unavailable"
        return None

    def purged(self, entry: Entry, *, since: int) -> bool:
        """Has a purge matched this entry after that mark?"""
        later = self._count - since
        if later > REMEMBERED_PURGES:
            return True  # more purges than we remember: better a miss than an answer that was to go
        return any(match.accepts(entry) for match in islice(reversed(self._purges), later))

    async def purge(self, match: Match, *, soft: bool = False, dry_run: bool = False) -> int:
        """Remove what matches from both layers and from answers still being made; with `soft`, end the life of what is
        kept. Raises StoreUnavailable when the store could not do it: what it holds of them is not used any more, but
        another process may find it there."""
        if dry_run:
            return await self._purge_layers(match, soft=soft, dry_run=True)
        self._count = number = self._count + 1
        self._purges.append(match)
        self._under_way.add(number)
        ban = _Ban(number, match, soft, self._now())
        try:
            purged = await self._purge_layers(match, soft=soft, dry_run=False)
        except BaseException:
            # Also when it takes too long, or whoever wanted it is gone: it may still be done, or never.
            self._bans = _bounded([*self._bans_beside(ban), ban])
            raise
        finally:
            self._under_way.discard(number)
        self._bans = self._bans_beside(ban)
        return purged

    @property
    def _source(self) -> Store:
        """What knows of all that is kept."""
        return self.front if self._store is None else self._store

    def _bans_beside(self, later: _Ban) -> list[_Ban]:
        return [ban for ban in self._bans if not ban.is_covered_by(later)]

    async def _purge_layers(self, match: Match, *, soft: bool, dry_run: bool) -> int:
        in_front = await self.front.purge(match, soft=soft, dry_run=dry_run)
        if self._store is None:
            return in_front
        return max(in_front, await self._store.purge(match, soft=soft, dry_run=dry_run))

    async def entries(self, match: Match, *, limit: int) -> list[Entry]:
        return await self._source.entries(match, limit=limit)

    async def note(self, question: Question) -> None:
        """Keep a question beside its entry, where there is one. A note that is lost costs an embedding after the next
        start."""
        with suppress(StoreUnavailable):
            await self._source.note(question)

    async def questions(self, *, after: bytes, limit: int) -> list[Question]:
        """The questions kept, by key, from the first key greater than `after` on; none without a store. Fewer than
        `limit` are the last. Raises StoreUnavailable."""
        return await self._source.questions(after=after, limit=limit)

    async def known(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        """Those of these keys whose entry may still be kept, and when that was made. `get` has the last word: this
        knows nothing of what the store was to give up and could not. Raises StoreUnavailable."""
        return await self._source.known(keys)

    async def stats(self) -> dict[str, StoreStats]:
        """By layer: `memory`, and `store` where there is one."""
        out = {"memory": await self.front.stats()}
        if self._store is not None:
            try:
                out["store"] = await self._store.stats()
            except StoreUnavailable:
                out["store"] = StoreStats(0, 0, 0, healthy=False)
        return out

    async def flush(self) -> None:
        if self._store is not None:
            await self._store.flush()

    async def aclose(self) -> None:
        await self.front.aclose()
        if self._store is not None:
            await self._store.aclose()
