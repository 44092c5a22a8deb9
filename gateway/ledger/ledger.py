"""The books: sums of decisions by tenant, endpoint, model, backend and outcome. Stats, metrics and charts are views.

Kept apart: served (in answers that clients got), consumed (by calls: the upstream's, the embedder's), unserved
(consumed, but in no answer that anybody got), saved (served without an upstream call), billable (consumed where the
provider charges by the token). For every sum served + unserved = consumed + saved.

All time's sums are in memory. What is new goes to a file at least every second, by minute, ten minutes, hour and day,
and all time is read back from there at the start. A file that fails never disturbs anybody who is served.
"""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import structlog

from gateway.decisions import Decision
from gateway.hits import Facts
from gateway.ledger import table as table
from gateway.ledger.file import DEADLINE, LedgerError, LedgerFile, ledger_path
from gateway.ledger.stats import stats
from gateway.ledger.sums import SECONDS, Charge, Sums, percentile
from gateway.ledger.table import NOTHING, OTHER, Key, Question, Summary, pick

__all__ = [
    "OTHER",
    "SECONDS",
    "Charge",
    "Key",
    "Ledger",
    "LedgerError",
    "Summary",
    "Sums",
    "ledger_path",
    "percentile",
]

EVERY = 0.8
"""Seconds between two writings."""
SHARE = 10.0
"""A pause is so many times as long as the writing before it, at least."""
PIECE = 32
"""Keys that the event loop merges in one turn."""
AGAIN = 10.0
"""Seconds after one that failed."""
MAX_CODES = 500
MAX_MODELS = 100
"""Models of one tenant that have a name here, beside those that others know too; the rest are "other"."""
HITS_AT_ONCE = 256
MAX_KEYS = 20_000
"""Keys of all time's sums from which models are folded into "other"."""

log = structlog.get_logger("refrain")


class Ledger:
    """`clock` is wall-clock seconds; `known` says whether others speak of a model, too, by just this name. Before
    `open` there are the sums of all time, and no others."""

    def __init__(
        self, clock: Callable[[], float] = time.time, known: Callable[[str], bool] = lambda model: False
    ) -> None:
        self._clock = clock
        self._known = known
        self._hits: list[tuple[Facts, float]] = []  # not booked yet
        self._fresh: dict[tuple[str, str, str, str, str], Sums] = {}  # since the last writing
        self._totals: dict[Key, Sums] = {}
        self._own = set[Key]()  # of the totals, those that nobody else has
        self._unmerged: deque[tuple[Key, Sums]] = deque()
        self._models: defaultdict[str, set[str]] = defaultdict(set)  # by tenant
        self._file: LedgerFile | None = None
        self._writing: asyncio.Task[None] | None = None
        self._due = False  # something waits to be written
        self._ill = False
        self._took = 0.0  # seconds, by the last writing
        self.errors: Counter[tuple[str, str]] = Counter()  # (endpoint, code), since the start

    def book(self, d: Decision) -> None:
        """A request has ended."""
        self._sums(d).add(d)
        if d.error is not None:
            # A code may be an upstream's word, and there is no end to those.
            known = (d.endpoint, d.error) in self.errors or len(self.errors) < MAX_CODES
            self.errors[d.endpoint, d.error if known else "other"] += 1

    def book_hit(self, facts: Facts, ms: float) -> None:
        """The same, for a hit of the short way, to which no call is charged. Hits are booked many at once: one after
        another they take a fraction of the time, since all of this is in the processor's caches then."""
        self._hits.append((facts, ms))
        if len(self._hits) >= HITS_AT_ONCE:
            self._book_hits()

    def _book_hits(self) -> None:
        hits, self._hits = self._hits, []
        for facts, ms in hits:
            self._sums(facts).add_hit(facts, ms)

    def charge(self, d: Decision, charge: Charge) -> None:
        """Add to a decision that was booked before this call for it had ended."""
        self._sums(d).charge(charge)

    def _sums(self, d: Decision | Facts) -> Sums:
        principal, model = d.principal, d.model
        tenant = principal.tenant if principal else ""
        if model not in self._models[tenant]:
            model = self._introduce(d)
        key = (tenant, d.endpoint, model, d.backend, d.outcome or "error")
        sums = self._fresh.get(key)
        if sums is None:
            sums = self._fresh[key] = Sums()
        return sums

    def _introduce(self, d: Decision | Facts) -> str:
        """A model gets its name once it has answered, and a tenant so many: a client may ask for any, and there are
        backends that answer to every name."""
        if not d.model:
            return ""
        models, answered = self._models[d.tenant], d.status == 200 and d.error is None
        if answered and (len(models) < MAX_MODELS or self._known(d.model)):
            models.add(d.model)
        return d.model if d.model in models else OTHER

    def totals(self, tenant: str | None = None) -> Iterator[tuple[Key, Sums]]:
        """All time's sums of one tenant, or of all (None), as they are now."""
        self._take()
        self._merge()
        self._own.clear()
        return ((key, sums) for key, sums in self._totals.items() if tenant is None or key.tenant == tenant)

    def keys(self, tenant: str | None = None) -> Iterator[Key]:
        """All that there are sums of; one may come twice."""
        self._book_hits()
        found = chain(self._totals, (key for key, _ in self._unmerged), map(Key._make, self._fresh))
        return (key for key in found if tenant is None or key.tenant == tenant)

    def stats(self, tenant: str | None = None) -> dict[str, Any]:
        """All time's sums of tokens and money, in all and by endpoint, tenant, model and tier."""
        return stats(self.totals(tenant))

    async def summary(
        self, since: float, until: float, step: float, *, tenant: str | None = None, endpoint: str | None = None
    ) -> Summary:
        """What was booked from `since` up to `until` (wall-clock seconds), and its points `step` seconds apart. How
        fine they can be depends on how far back they reach: minutes for the last two hours, ten minutes for 36 hours,
        hours for 14 days, then days. The first point begins at a multiple of the step at or before `since`. While the
        file cannot be read, only what waits to be written is here. Raises LedgerError where there is not even that."""
        if SHARE * self._took < EVERY:  # else it is a while since the last writing, and will be until the next
            await self._write_within(1.0)
        if self._file is None:
            return NOTHING
        resolution = pick(since, self._clock(), step)
        width = max(resolution, int(step) // resolution * resolution)
        asked = Question(resolution, (int(since // width) * width, until), width, tenant, endpoint)
        return await self._file.read(lambda db: table.summary(db, asked))

    async def first_day(self, *, tenant: str | None = None, endpoint: str | None = None) -> int | None:
        """When the earliest day began that there is anything of, wall-clock seconds. Raises LedgerError."""
        if self._file is None:
            return None
        return await self._file.read(lambda db: table.first_day(db, tenant, endpoint))

    async def open(self, path: Path | None) -> None:
        """Read what the file has, and write to it from now on; None: in memory."""
        self._file = LedgerFile(path)
        await self._write()
        self._writing = asyncio.create_task(self._keep_writing())

    async def aclose(self) -> None:
        """Write what is there, and close the file."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._write_within(DEADLINE)
        file, self._file = self._file, None
        if file is not None:
            with suppress(LedgerError):
                await file.aclose()

    async def _write_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._write()

    async def _keep_writing(self) -> None:
        while True:
            # Where a writing takes long, since there are thousands of keys, it is not to be all that is done.
            await asyncio.sleep(AGAIN if self._ill else max(EVERY, SHARE * self._took))
            if self._hits or self._fresh or self._due:
                await self._write()
                await self._merge_slowly()

    async def _merge_slowly(self) -> None:
        while self._unmerged:
            self._merge(PIECE)
            await asyncio.sleep(0)

    async def _write(self) -> None:
        self._take()
        if self._file is None:
            return
        self._due, begun = False, monotonic()
        try:
            await self._file.write(self._clock())
        except asyncio.CancelledError:
            self._due = True
            raise
        except LedgerError as error:
            if not self._ill:
                log.warning("the ledger cannot be written, its sums stay in memory", reason=str(error))
            self._due = self._ill = True
            return
        self._took = monotonic() - begun
        if self._ill:
            log.info("the ledger is written again")
        self._ill = False
        for key, sums in self._file.history():
            if key.model not in ("", OTHER):
                self._models[key.tenant].add(key.model)
            self._add(key, sums)

    def _take(self) -> None:
        """Give what is fresh to the file."""
        self._book_hits()
        if not self._fresh:
            return
        batch = {Key(*key): sums for key, sums in self._fresh.items()}
        self._fresh = {}
        self._unmerged.extend(batch.items())
        if self._file is not None:
            self._file.give(batch, self._clock())
            self._due = True

    def _merge(self, most: int | None = None) -> None:
        """Add so many of the sums that were taken to all time's."""
        for _ in range(len(self._unmerged) if most is None else min(most, len(self._unmerged))):
            self._add(*self._unmerged.popleft())

    def _add(self, key: Key, sums: Sums) -> None:
        """Sums that somebody has got from `totals` are not changed any more: others may be reading them in a thread."""
        if key not in self._totals and len(self._totals) >= MAX_KEYS:
            key = key._replace(model=OTHER)
        known = self._totals.get(key)
        if known is None or key not in self._own:
            self._own.add(key)
            self._totals[key] = sums.copy() if known is None else known.copy()
        if known is not None:
            self._totals[key].merge(sums)
