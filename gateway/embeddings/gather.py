"""Vectors that no cache has: from calls that others have under way, and from one of our own for the rest.

Whoever waits for an element that another request asks for gets it from that call. Where that fails one of those who
wait asks again for all of them, once; after an error that lies in what was asked each asks for itself, since its own
elements may be sound.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from backends.base import Priority
from cache.entry import Entry
from cache.exact import ExactCache
from cache.freshness import judge
from cache.once import Once
from gateway.embeddings.batch import Batch
from gateway.embeddings.caller import Caller
from gateway.embeddings.vectors import whole
from gateway.errors import ApiError
from gateway.visit import Visit

ATTEMPTS = 2
FAULTS = frozenset({400, 413, 422})
"""Statuses whose cause may lie in one element of a call."""

Ident = tuple[bytes, float | None, tuple[str, ...], int, int, Priority]
"""Who shares a call for an element: equal keys, which would be kept alike, under one configuration, with no purge
between them, of one class of calls."""


@dataclass(slots=True)
class Gathered:
    """Entries by the number of their element. `forwarded` are those that a call was made for by this request, `joined`
    those of others' calls; the rest was in the cache. `age`: of the oldest that is reused, in seconds."""

    entries: dict[int, Entry] = field(default_factory=dict)
    forwarded: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    age: int | None = None


@dataclass(frozen=True, slots=True)
class Gatherer:
    """One per application. `clock` is wall-clock seconds."""

    cache: ExactCache
    caller: Caller
    clock: Callable[[], float]
    once: Once[Ident, Entry] = field(default_factory=Once)

    async def __call__(self, visit: Visit, batch: Batch, missing: Sequence[int], got: Gathered) -> None:
        """Add the missing elements to what there is. Raises ApiError."""
        asked = batch.ask.directives
        if batch.ask.bypass is not None or asked.ttl == 0:
            # What nobody may keep is nobody else's.
            got.entries |= zip(missing, await self.caller(visit, batch, missing), strict=True)
            got.forwarded.update(missing)
            return
        join = not asked.no_cache and asked.max_age is None
        for attempt in range(1, ATTEMPTS + 1):
            if join:
                self._take_landed(batch, missing, got)
            failure = await self._share(visit, batch, [n for n in missing if n not in got.entries], got, join=join)
            if failure is None:
                return
            if attempt == ATTEMPTS or not _worth_another(failure):
                raise failure.fresh()
            join = join and failure.status not in FAULTS

    def _take_landed(self, batch: Batch, missing: Sequence[int], got: Gathered) -> None:
        """What others have got since it was looked up: no call for it is under way any more."""
        life, now = batch.ask.life, self.clock()
        for number in missing:
            if number in got.entries or life is None or (slot := self.cache.front.peek(batch.keys[number])) is None:
                continue
            verdict = judge(slot.entry, life, now)
            if verdict.usable and not verdict.stale and whole(slot.entry.body):
                got.entries[number] = slot.entry
                got.joined.add(number)

    async def _share(
        self, visit: Visit, batch: Batch, wanted: Sequence[int], got: Gathered, *, join: bool
    ) -> ApiError | None:
        """Get these elements, by a call of our own as far as nobody else makes one. Gives the error of another's call,
        whose elements are still missing."""
        asked, generation, mark = batch.ask.directives, visit.snapshot.generation, self.cache.mark()
        alike = (asked.ttl, asked.tags, generation, mark, visit.priority(batch.ask))
        numbers: dict[Ident, int] = {(batch.keys[n], *alike): n for n in wanted}

        async def make(own: Collection[Ident]) -> Mapping[Ident, Entry]:
            entries = await self.caller(visit, batch, [numbers[ident] for ident in own])
            return dict(zip(own, entries, strict=True))

        made = await self.once.many(numbers, make, join=join)
        for ident, entry in made.values.items():
            number = numbers[ident]
            got.entries[number] = entry
            (got.joined if ident in made.joined else got.forwarded).add(number)
        return next(map(_told, made.failures), None)


def _worth_another(failure: ApiError) -> bool:
    """May what another has asked for in vain go well for us?"""
    return not failure.final or failure.status in FAULTS


def _told(failure: BaseException) -> ApiError:
    """What those who wait for it are told of a call that failed."""
    if isinstance(failure, ApiError):
        return failure
    return ApiError(500, "The gateway failed on this request.", code="internal_error")
