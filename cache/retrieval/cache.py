"""Results of searches by what decides them, and texts by what they say.

Results are kept as references, and the texts beside them, each once for a tenant. A text is found by its digest and
must have it, so nobody can put other words under a reference. What was purged while a search went on is not kept with
its results, and nobody who comes after the purge joins that search.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic, perf_counter

from cache.entry import Cost, Entry
from cache.exact import ExactCache
from cache.freshness import Life, judge
from cache.once import Once
from cache.retrieval.passages import Passage, Reference, decode, encode, refer, text_of
from cache.retrieval.search import Results, Search
from cache.scope import Scope
from cache.stores.memory import Slot

LIFE = 86_400.0
"""Seconds that results and texts live at most: the generation ends results, but not what nobody asks for any more."""
RENEW = 3_600.0
"""A text that lives on for so many seconds less than its results is not written again for them."""
AT_ONCE = 16
"""Texts that are read from the store at one time: each has the store's short deadline, which begins for all at once."""

Run = Callable[[], Awaitable[Sequence[Passage]]]
"""Searches; the best first. What it raises reaches everybody who waits for it."""

_LIFE = Life(LIFE)


class RetrievalCache:
    """`clock` is wall-clock seconds."""

    def __init__(self, cache: ExactCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._searches: Once[tuple[bytes, int], Results] = Once()

    def mark(self) -> int:
        """A point in the order of purges: what rests on results found after it is met by later ones."""
        return self._cache.mark()

    async def recall(self, search: Search, *, max_age: float | None = None) -> Results | None:
        """What is kept, if it is not older than `max_age` seconds."""
        slot = await self._cache.get(search.key)
        return None if slot is None else self.read(search, slot, max_age=max_age)

    def read(
        self, search: Search, slot: Slot, *, max_age: float | None = None, similarity: float | None = None
    ) -> Results | None:
        """What the slot has for this search, which may be another one's of the same meaning; None where that may not be
        used (any more)."""
        if slot.entry.api != "search" or slot.entry.scope != search.scope:
            return None
        now = self._now(slot)
        if not judge(slot.entry, _LIFE, now, max_age=max_age).usable:
            return None
        references = decode(slot.entry.body, most=search.top_k)
        if references is None:
            return None
        return Results(search, references, "hit", slot.entry, now, slot=slot, similarity=similarity)

    async def join(self, search: Search, run: Run) -> Results:
        """What one search finds for all who want it now."""
        # With the count of purges: one that has come meanwhile may be on what the search under way is about to find.
        wanted = (search.key, self._cache.mark())
        found, joined = await self._searches.get(wanted, partial(self.renew, search, run))
        return replace(found, search=search, outcome="joined") if joined else found

    async def renew(self, search: Search, run: Run, *, keep: bool = True) -> Results:
        """What a search of its own finds; with `keep` in place of what was kept."""
        mark, now, begun = self._cache.mark(), self._clock(), perf_counter()
        passages = await run()
        cost = Cost((perf_counter() - begun) * 1000)
        references = tuple(map(refer, passages))
        lasting = min(search.lasting, LIFE, *(passage.lasting for passage in passages))
        entry = Entry(
            key=search.key,
            scope=search.scope,
            tenant=search.tenant,
            user=search.user,
            endpoint="",
            api="search",
            model="",
            backend="",
            body=encode(references),
            created=now,
            expires=(expires := now + lasting),
            keep_until=expires,
            cost=cost,
            tags=search.tags,
            documents=search.labels((found.document, found.version) for found in references),
        )
        texts = tuple(passage.text for passage in passages)
        found = Results(search, references, "miss", entry, now, texts)
        if keep and lasting > 0 and search.current():
            return replace(found, slot=await self._keep(found, texts, mark))
        return found

    async def with_texts(self, results: Results, run: Run) -> Results:
        """The same with their texts. Where one is gone it is searched anew, once; what is found then may differ."""
        if results.texts is not None:
            return results
        texts = await self._texts(results)
        return await self.join(results.search, run) if texts is None else replace(results, texts=texts)

    async def _keep(self, results: Results, texts: Sequence[str], mark: int) -> Slot | None:
        """Where the results are kept in memory, if they are. The texts go first: no results without them."""
        for reference, text in dict(zip(results.references, texts, strict=True)).items():
            await self._keep_text(results, reference, text, mark)
        await self._cache.put(results.entry, since=mark)
        slot = self._cache.front.peek(results.entry.key)
        return slot if slot is not None and slot.entry is results.entry else None

    async def _keep_text(self, results: Results, reference: Reference, text: str, mark: int) -> None:
        search, now = results.search, results.entry.created
        key, expires = search.text_key(reference), now + LIFE
        kept = self._cache.front.peek(key)
        if kept is not None and kept.entry.expires >= expires - RENEW and self._text(kept, reference) is not None:
            return
        entry = Entry(
            key=key,
            scope=Scope("tenant", search.tenant).digest(),
            tenant=search.tenant,
            user=search.user,
            endpoint="",
            api="chunk",
            model="",
            backend="",
            body=text.encode(),
            created=now,
            expires=expires,
            keep_until=expires,
            tags=search.tags,
            documents=search.labels([(reference.document, reference.version)]),
        )
        await self._cache.put(entry, since=mark)

    async def _texts(self, results: Results) -> tuple[str, ...] | None:
        """All of them, or None."""
        keys = [results.search.text_key(reference) for reference in results.references]
        slots = {key: slot for key in keys if (slot := self._cache.front.peek(key)) is not None}
        absent = [key for key in dict.fromkeys(keys) if key not in slots]
        for start in range(0, len(absent), AT_ONCE):
            group = absent[start : start + AT_ONCE]
            for key, slot in zip(group, await asyncio.gather(*map(self._cache.get, group)), strict=True):
                if slot is None:
                    return None
                slots[key] = slot
        texts = tuple(
            text
            for key, reference in zip(keys, results.references, strict=True)
            if (text := self._text(slots[key], reference)) is not None
        )
        return texts if len(texts) == len(keys) else None

    def _text(self, slot: Slot, reference: Reference) -> str | None:
        entry = slot.entry
        if entry.api != "chunk" or not judge(entry, _LIFE, self._now(slot)).usable:
            return None
        return text_of(entry.body, reference)

    def _now(self, slot: Slot) -> float:
        return slot.now(self._clock(), monotonic())
