"""Finding: what a retriever has for a query of this principal, from the cache where it may be, and how that is booked.

Whatever goes wrong with a retriever becomes an ApiError here. A cache that fails is a miss.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from time import perf_counter

import structlog

from backends.retrievers import RetrieverError
from cache.retrieval import Results, RetrievalCache, Run, Search
from cache.semantic.tier import Finding
from gateway.asgi import Receive
from gateway.config.endpoints import SemanticPolicy
from gateway.decisions import Tier
from gateway.deliver import attended
from gateway.directives import NONE, Directives
from gateway.errors import ApiError, shorten
from gateway.logs import where
from gateway.principal import OPEN, Principal
from gateway.retrieval.failures import RetrieverFailed
from gateway.retrieval.labels import labels
from gateway.retrieval.managed import Managed
from gateway.retrieval.matching import Matching
from gateway.retrieval.running import run_search
from gateway.visit import Visit

TIER = "retrieval"

log = structlog.get_logger("refrain")


@dataclass(frozen=True, slots=True)
class Terms:
    """How is to be searched. With `receive` no search goes on for a client that has left alone; by the policy `alike`
    what was found for another query that means the same will do."""

    top_k: int
    directives: Directives = NONE
    receive: Receive | None = None
    alike: SemanticPolicy | None = None


class Finder:
    """One per application."""

    def __init__(self, cache: RetrievalCache, matching: Matching) -> None:
        self._cache = cache
        self._matching = matching

    def mark(self) -> int:
        """A point in the order of purges: as ExactCache.mark."""
        return self._cache.mark()

    async def find(self, visit: Visit, name: str, query: str, terms: Terms) -> Results:
        """What the retriever of this name has for the visit's principal. Raises ApiError: RetrieverFailed; 404 where
        there is no such retriever for this principal; 504 where the request asks for what is cached only. Raises
        Disconnected."""
        (results,) = await self.find_all(visit, name, (query,), terms)
        return results

    async def find_all(self, visit: Visit, name: str, queries: Sequence[str], terms: Terms) -> list[Results]:
        """The same for several queries, which are one look-up in the books: a hit if all of them are."""
        managed, principal = managed_for(visit, name)
        begun = perf_counter()
        searches = [_search(managed, principal, query, terms.top_k, terms.directives) for query in queries]
        try:
            found = await self._find(visit, managed, searches, terms)
        except RetrieverError as error:
            managed.counts["failed"] += 1
            visit.phase(TIER, begun)
            visit.tier(TIER, "miss", error.reason)
            raise RetrieverFailed(error) from None
        except ApiError:
            visit.phase(TIER, begun)
            visit.tier(TIER, "miss")
            raise
        managed.counts.update(results.outcome for results in found)
        _book(visit, begun, found, terms.directives)
        return found

    async def texts(self, visit: Visit, results: Results) -> Results:
        """The same with their texts. Where one was gone they were searched anew: the references may be others then.
        Raises ApiError."""
        if results.texts is not None:
            return results
        managed, _ = managed_for(visit, results.search.retriever)
        search, begun = results.search, perf_counter()
        run = partial(run_search, managed, search, visit)
        try:
            full = await self._guarded(self._cache.with_texts(results, run), search, run)
        except RetrieverError as error:
            _miss(visit, error.reason)
            raise RetrieverFailed(error) from None
        finally:
            _add(visit, TIER, (perf_counter() - begun) * 1000)
        if full.outcome != "hit":
            _miss(visit, "text_gone")
            if full.outcome == "miss":
                _add(visit, "search", full.entry.cost.ms)
        return full

    async def _find(self, visit: Visit, managed: Managed, searches: Sequence[Search], terms: Terms) -> list[Results]:
        """Raises RetrieverError, ApiError 504, and Disconnected."""
        skipped = _skipped(terms.directives)
        kept = [_NOTHING if skipped else await self._kept(visit, managed, search, terms) for search in searches]
        absent = [(search, hint) for search, (results, hint) in zip(searches, kept, strict=True) if results is None]
        if not absent:
            return [results for results, _ in kept if results is not None]
        if terms.directives.only_if_cached:
            message = "No results are cached for this search, and it asked for cached ones only."
            raise ApiError(504, message, code="not_cached", headers={"x-should-retry": "false"})
        work = _all([self._make(visit, managed, search, skipped, hint) for search, hint in absent])
        made = iter(await work if terms.receive is None else await attended(terms.receive, work))
        return [next(made) if results is None else results for results, _ in kept]

    async def _kept(
        self, visit: Visit, managed: Managed, search: Search, terms: Terms
    ) -> tuple[Results | None, Finding | None]:
        """What is kept of this search or of one that means the same, and where that is nothing what to learn from."""
        max_age = terms.directives.max_age
        results = await self._recall(search, max_age)
        if terms.alike is None:
            return results, None
        if results is not None:
            self._matching.recalled(results, terms.alike)
            return results, None
        return await self._matching.find(visit, search, terms.alike, managed.matches, max_age=max_age)

    async def _recall(self, search: Search, max_age: float | None) -> Results | None:
        try:
            return await self._cache.recall(search, max_age=max_age)
        except Exception as error:
            log.error("the retrieval cache failed", kind=type(error).__name__, where=where(error))
            return None

    async def _make(
        self, visit: Visit, managed: Managed, search: Search, skipped: str | None, hint: Finding | None
    ) -> Results:
        run = partial(run_search, managed, search, visit)
        if skipped is None:
            results = await self._guarded(self._cache.join(search, run), search, run)
            self._matching.learn(hint, results)
            return results
        return await self._guarded(self._cache.renew(search, run, keep=skipped == "no_cache"), search, run)

    async def _guarded(self, finding: Awaitable[Results], search: Search, run: Run) -> Results:
        """What the cache finds, or, when it fails, what the retriever does."""
        try:
            return await finding
        except RetrieverError:
            raise
        except Exception as error:
            log.error("the retrieval cache failed", kind=type(error).__name__, where=where(error))
            return await self._cache.renew(search, run, keep=False)


_NOTHING = (None, None)


def managed_for(visit: Visit, name: str) -> tuple[Managed, Principal]:
    """The retriever of this name for the visit's principal. Raises ApiError 404, in the same words whether there is
    none or it is not for this tenant."""
    principal, managed = visit.decision.principal, visit.snapshot.retrievers.get(name)
    if managed is not None and principal is not None:
        tenants = managed.config.tenants
        if principal is OPEN or not tenants or principal.tenant in tenants:
            return managed, principal
    message = f"There is no vector store {shorten(name)!r} here."
    raise ApiError(404, message, code="vector_store_not_found", param="vector_store_id")


def _search(managed: Managed, principal: Principal, query: str, top_k: int, directives: Directives) -> Search:
    retriever = managed.retriever
    generation = retriever.generation
    return Search(
        tenant=principal.tenant,
        user=principal.user,
        retriever=managed.name,
        revision=retriever.revision,
        generation=generation,
        permissions=None if principal is OPEN else retriever.effective(principal.permissions),
        query=query,
        top_k=top_k,
        lasting=min(retriever.lasting, inf if directives.ttl is None else directives.ttl),
        labels=partial(labels, managed.name),
        current=lambda: retriever.generation == generation,
        tags=directives.tags,
    )


async def _all(finding: Sequence[Awaitable[Results]]) -> list[Results]:
    """All of them at the same time. When one fails the others are given up."""
    if len(finding) == 1:
        return [await finding[0]]
    tasks = [asyncio.ensure_future(one) for one in finding]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _skipped(directives: Directives) -> str | None:
    """Why the tier is not asked, if it is not. Only after `no_cache` it keeps what is found."""
    if directives.no_store:
        return "no_store"
    if TIER not in directives.tiers:
        return "tier_not_asked"
    return "no_cache" if directives.no_cache else None


def _book(visit: Visit, begun: float, found: Sequence[Results], directives: Directives) -> None:
    searches = [results for results in found if results.outcome == "miss"]
    if searches:
        visit.decision.phases["search"] = max(results.entry.cost.ms for results in searches)
    visit.phase(TIER, begun)
    if (why := _skipped(directives)) is not None:
        visit.tier(TIER, "skipped", why)
    elif searches:
        visit.tier(TIER, "miss")
    elif any(results.outcome == "joined" for results in found):
        visit.tier(TIER, "miss", "joined")
    else:
        near = found[0].similarity
        source = None if near is None else found[0].entry.key
        visit.tier(TIER, "hit", ttl=min(results.ttl for results in found), similarity=near, source=source)


def _miss(visit: Visit, why: str) -> None:
    """What was booked as a hit was none."""
    d = visit.decision
    d.tiers = tuple(Tier(TIER, "miss", why) if tier.name == TIER else tier for tier in d.tiers)


def _add(visit: Visit, phase: str, ms: float) -> None:
    phases = visit.decision.phases
    phases[phase] = phases.get(phase, 0.0) + ms
