"""The semantic tier of one gateway: started where an endpoint wants it, asked by requests, taken down on a reload.

The tier is never in the way: while it loads, and when it is ill, every look-up is a miss that says why.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from time import monotonic, perf_counter
from typing import Any

import structlog

from cache.entry import Entry
from cache.exact import ExactCache
from cache.framing import digest
from cache.freshness import Life, judge
from cache.semantic.tier import Finding, Query, SemanticTier
from cache.stores.base import StoreUnavailable
from cache.stores.memory import Slot
from gateway.answer_text import answer_text
from gateway.ask import Ask
from gateway.config import Config
from gateway.config import Embedder as EmbedderConfig
from gateway.embedders import MakeEmbedder
from gateway.latency.budget import OVER_BUDGET, Durations
from gateway.logs import where
from gateway.prices.search import SearchCosts
from gateway.question import read_question
from gateway.reuse import Reuse
from gateway.similarities import Similarities
from gateway.visit import Visit

SWEEP_EVERY = 60.0
"""Seconds between two looks for questions whose answers are gone."""
READY_EVERY = 0.1
"""Seconds between two looks whether the embedder is ready."""
LARGE_BODY = 8 * 1024
"""Bytes of a request from which its context is worked out in a thread."""
ALIAS = "alias"
"""Counts hits that needed no search."""
SHARE_OF_MEMORY = 0.5
"""Of the memory that answers may take (store.memory), the most that the tier's texts and vectors may have."""

log = structlog.get_logger("refrain")


class Semantics:
    """`clock` is wall-clock seconds. `tier` is None while no endpoint wants one."""

    def __init__(self, cache: ExactCache, clock: Callable[[], float], embedders: MakeEmbedder) -> None:
        self.tier: SemanticTier | None = None
        self._wrong: set[tuple[bytes, bytes]] = set()  # what was reported: (who asked, what was served), by key
        self.searching = Durations()  # of look-ups that need a vector; the others take no time
        self.judged = {True: 0, False: 0}  # reports of right and of wrong answers since the start
        self.similarities = Similarities()
        self._costs = SearchCosts()
        self._cache = cache
        self._clock = clock
        self._embedders = embedders
        self._config: EmbedderConfig | None = None
        self._caring: asyncio.Task[None] | None = None
        self._purged = asyncio.Event()

    async def apply(self, config: Config) -> None:
        """Put a configuration in force. A tier is kept as long as its embedder is the same."""
        wanted = config.embedder.model_copy(update={"hourly_cost": None}) if _wanted(config) else None
        if wanted == self._config:
            return
        tier = None
        if wanted is not None:
            await asyncio.to_thread(import_module, "cache.semantic.index")  # FAISS takes a moment to load
            embedder = self._embedders(wanted)
            room = int(config.store.memory * SHARE_OF_MEMORY)
            tier = SemanticTier(self._cache, embedder, max_bytes=room, answer_text=answer_text)
            tier.recall(self._wrong)
            await embedder.start()
        await self.aclose()
        self.tier, self._config = tier, wanted
        if tier is not None:
            self._caring = asyncio.create_task(self._care(tier))

    def may_answer(self, ask: Ask) -> bool:
        """Is the tier there for this request? (Whether the request is one for it, `find` says.)"""
        on = self.tier is not None and ask.endpoint.config.cache.semantic is not None and ask.life is not None
        asked = ask.directives
        return on and ask.bypass is None and "semantic" in asked.tiers and not asked.no_cache

    async def find(self, visit: Visit, ask: Ask) -> Finding | None:
        """Look for another question's answer to this request, and book what the tier said, but for a hit. None where
        the tier is not asked at all."""
        tier, policy = self.tier, ask.endpoint.config.cache.semantic
        if tier is None or policy is None or ask.life is None or ask.bypass is not None:
            return None
        begun = perf_counter()
        left = visit.left(ask.endpoint.config.budget)

        def usable(slot: Slot) -> bool:
            return self._reuse(slot, 0.0, ask) is not None

        try:
            large = len(ask.raw) > LARGE_BODY
            query = await asyncio.to_thread(read_question, ask) if large else read_question(ask)
            if not isinstance(query, Query):
                visit.tier("semantic", "skipped", query)
                return None
            searches = tier.searches(query)
            if searches and not self.searching.fit(left, begun):
                tier.counts[OVER_BUDGET] += 1
                visit.tier("semantic", "skipped", OVER_BUDGET)
                return Finding(query, OVER_BUDGET)  # its answer will be learnt all the same
            with self._costs.of(visit):
                finding = await tier.find(query, usable, threshold=policy.threshold, strict=policy.strict)
        except Exception as error:
            _unexpected(error)
            tier.counts["failed"] += 1
            visit.tier("semantic", "skipped", "failed")
            return None
        now = visit.phase("semantic", begun)
        if searches:
            self.searching.add(now - begun, now)
        if finding.similarity is not None:
            self.similarities.add(finding.similarity, hit=finding.slot is not None)
        if finding.slot is None:
            asked = "miss" if tier.embedder.dimensions else "skipped"
            nearest = finding.neighbours[0] if finding.neighbours else None
            visit.tier("semantic", asked, finding.reason, similarity=finding.similarity, source=nearest)
        return finding

    def reuse(self, finding: Finding, ask: Ask) -> Reuse | None:
        """The answer found, as something to serve."""
        if finding.slot is None or finding.similarity is None:
            return None
        return self._reuse(finding.slot, finding.similarity, ask)

    def learn(self, finding: Finding | None, entry: Entry) -> None:
        """This answer has been stored; `finding` is what the tier had said before, if it was asked."""
        if self.tier is not None:
            try:
                self.tier.learn(finding, entry)
            except Exception as error:
                _unexpected(error)
            self._cache.front.reserve(self.tier.known.size)

    def remember(self, ask: Ask, reuse: Reuse, generation: int) -> None:
        """Let the same request find this answer without a search, as long as the answer and the policy live."""
        self._cache.front.alias(_alias(ask.key), reuse.slot, (generation, reuse.similarity), 0)

    def remembered(self, ask: Ask, generation: int) -> Reuse | None:
        """What `remember` has kept for this request."""
        if self.tier is None or ask.endpoint.config.cache.semantic is None or "semantic" not in ask.directives.tiers:
            return None
        found = self._cache.front.by_alias(_alias(ask.key))
        if found is None or found[0][0] != generation or self.tier.is_wrong(ask.key, found[1].entry.key):
            return None
        self.tier.counts[ALIAS] += 1
        return self._reuse(found[1], found[0][1], ask)

    def report(self, asked: bytes, served: bytes) -> list[tuple[bytes, bytes]]:
        """The answer under the key `served` was wrong for the question of the key `asked`. Gives all pairs for which
        that is to be remembered: other answers say the same."""
        pairs = [(asked, served)] if self.tier is None else self.tier.report(asked, served)
        self._wrong.update(pairs)
        self._cache.front.forget_alias(_alias(asked))
        return pairs

    def recall(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """What `report` has given to an earlier process."""
        self._wrong.update(pairs)

    def stats(self) -> dict[str, Any]:
        """States and counts since the start: look-ups by what came of them, and what is known."""
        tier = self.tier
        if tier is None:
            return {"state": "off"}
        counts = dict(tier.counts)
        hits, again = counts.pop("", 0), counts.pop(ALIAS, 0)
        return {
            "state": tier.embedder.state,
            "detail": tier.embedder.detail,
            "embedder": tier.embedder.identity,
            "lookups": hits + sum(counts.values()),
            "hits": hits,
            "hits_by_alias": again,
            "misses": counts,
            "similarities": self.similarities.as_dict(),
            "reported": {"right": self.judged[True], "wrong": self.judged[False]},
            "questions": len(tier.known.questions),
            "vectors": tier.known.vectors,
            "bytes": tier.known.size,
        }

    @property
    def ill(self) -> bool:
        """Is it wanted, and cannot be had?"""
        return self.tier is not None and self.tier.embedder.state == "failed"

    def purged(self) -> None:
        """Answers have gone: their questions are to go soon, too."""
        self._purged.set()

    async def aclose(self) -> None:
        tier, self.tier, self._config = self.tier, None, None
        if self._caring is not None:
            self._caring.cancel()
            await asyncio.gather(self._caring, return_exceptions=True)
        if tier is not None:
            await tier.aclose()
            self._cache.front.reserve(0)

    def _reuse(self, slot: Slot, similarity: float, ask: Ask) -> Reuse | None:
        life = life_of(ask)
        if life is None:
            return None
        now = slot.now(self._clock(), monotonic())
        verdict = judge(slot.entry, life, now, max_age=ask.directives.max_age)
        # What may be served for another question has to be fresh.
        return Reuse(slot, similarity, verdict.ttl, now) if verdict.usable and not verdict.stale else None

    async def _care(self, tier: SemanticTier) -> None:
        """Once the embedder is ready, take over what the store has kept; now and then, and after a purge, forget what
        the cache has lost."""
        restored, swept = False, monotonic()
        while True:
            try:
                if not restored and tier.embedder.state == "ready":
                    restored = True
                    await self._restore(tier)
                with suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_EVERY if restored else READY_EVERY):
                        await self._purged.wait()
                if self._purged.is_set() or monotonic() - swept >= SWEEP_EVERY:
                    self._purged.clear()
                    swept = monotonic()
                    await tier.known.sweep()
            except StoreUnavailable as error:
                log.warning("the store does not answer the semantic tier", reason=str(error))
            except Exception as error:
                _unexpected(error)
            self._cache.front.reserve(tier.known.size)

    async def _restore(self, tier: SemanticTier) -> None:
        if taken := await tier.restore():
            log.info("semantic index rebuilt", questions=taken, vectors=tier.known.vectors)


def _wanted(config: Config) -> bool:
    """Does an endpoint want answers, or what was found, of other questions?"""
    for e in config.endpoints.values():
        if e.cache.semantic is not None and e.cache.exact is not None:
            return True
        if e.retrieval is not None and e.retrieval.semantic:
            return True
    return False


def _unexpected(error: Exception) -> None:
    """A defect of the tier must not be in the way of an answer."""
    log.error("unexpected error in the semantic tier", kind=type(error).__name__, where=where(error))


def life_of(ask: Ask) -> Life | None:
    """How long an answer may serve other questions: no longer than its own, and never a stale one."""
    policy = ask.endpoint.config.cache.semantic
    if ask.life is None or policy is None:
        return None
    return replace(ask.life, ttl=min(ask.life.ttl, policy.ttl), if_error=0.0, revalidate=0.0)


def _alias(key: bytes) -> bytes:
    return digest("refrain.alias.semantic.1", [key])
