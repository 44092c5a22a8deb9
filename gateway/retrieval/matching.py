"""What was found for another query that means the same: the semantic tier, asked for results instead of answers.

Searches have contexts of their own in it: tenant, permissions, retriever and its generation, how many are wanted. The
answer itself is not another question's for that: only the pieces that it is made from are.
"""

from collections import Counter

import structlog

from cache.framing import digest
from cache.retrieval import Results, RetrievalCache, Search
from cache.semantic.tier import Finding, Query
from cache.stores.memory import MemoryStore, Slot
from gateway.config.endpoints import SemanticPolicy
from gateway.logs import where
from gateway.question import too_long
from gateway.retrieval.managed import PaidBy
from gateway.semantics import Semantics
from gateway.visit import Visit

log = structlog.get_logger("refrain")


class Matching:
    """One per gateway. What fails here is a miss."""

    def __init__(self, cache: RetrievalCache, semantics: Semantics, front: MemoryStore, paid_by: PaidBy) -> None:
        self._cache = cache
        self._semantics = semantics
        self._front = front
        self._paid_by = paid_by

    async def find(
        self, visit: Visit, search: Search, policy: SemanticPolicy, counts: Counter[str], *, max_age: float | None
    ) -> tuple[Results | None, Finding | None]:
        """What another query of the same meaning has found, and what to `learn` from where there is no such. `counts`
        are look-ups by the reason why they have found nothing; of hits it is empty."""
        tier = self._semantics.tier
        if tier is None or too_long(search.query, policy.max_words):
            return None, None

        def usable(slot: Slot) -> bool:
            return self._cache.read(search, slot, max_age=max_age) is not None

        if (again := self._front.by_alias(_alias(search))) is not None:
            similarity, known = again
            if (results := self._cache.read(search, known, max_age=max_age, similarity=similarity)) is not None:
                counts[""] += 1
                return results, None
        try:
            with self._paid_by(visit):
                finding = await tier.find(
                    _query(search), usable, threshold=policy.threshold, strict=policy.strict, counts=counts
                )
        except Exception as error:
            log.error("unexpected error in the semantic tier", kind=type(error).__name__, where=where(error))
            counts["failed"] += 1
            return None, None
        if (slot := finding.slot) is None:
            return None, finding
        self._front.alias(_alias(search), slot, finding.similarity, 0)
        return self._cache.read(search, slot, max_age=max_age, similarity=finding.similarity), finding

    def learn(self, finding: Finding | None, results: Results) -> None:
        """These were found by a search, and kept."""
        if finding is not None and results.outcome == "miss" and results.slot is not None:
            self._semantics.learn(finding, results.entry)

    def recalled(self, results: Results, policy: SemanticPolicy) -> None:
        """These are kept, perhaps by an endpoint that does not look for others of the same meaning: now one does."""
        tier, search = self._semantics.tier, results.search
        if tier is None or tier.known.questions.get(search.key) is not None:
            return
        if results.slot is not None and not too_long(search.query, policy.max_words):
            self._semantics.learn(Finding(_query(search)), results.entry)


def _query(search: Search) -> Query:
    return Query(search.key, search.scope, search.context, search.query)


def _alias(search: Search) -> bytes:
    return digest("refrain.alias.search.1", [search.key])
