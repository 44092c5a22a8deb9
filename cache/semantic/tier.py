"""The semantic tier: the answer of another question that means the same.

It looks only inside one context (the digest of all that must be equal before that is thinkable: scope, endpoint, model,
parameters, earlier turns), and takes a near neighbour for a candidate, not for a hit: the verifier decides.

- The first question of a context is only written down. Its vector is made together with that of the second one, so
  what is asked once costs no embedding and no vector.
- Whatever is ill here costs a miss with its reason: an embedder that is starting, slow or dead, an entry that is gone.
- The index may know what the cache has lost, never the other way round: before an answer is served its entry is
  fetched by key, and must be of the scope that asks.
- What was reported wrong is not served to that question again, nor is any answer of its group.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from cache.entry import Entry
from cache.exact import ExactCache
from cache.semantic.embedder import Embedder, EmbedderError
from cache.semantic.grouping import Grouping
from cache.semantic.known import Known, Vector
from cache.semantic.questions import Row
from cache.semantic.verifier import DEFAULT_THRESHOLD, NEIGHBOURS, Candidate, verify
from cache.stores.memory import Slot

DEADLINE = 0.25
"""Seconds that an embedding may take; beyond that the question goes to the backend."""
BARE_AT_ONCE = 8
"""Vectors that one look-up makes for earlier questions of its context."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Query:
    """A question: the key of its own answer, its scope and context (32-byte digests), and its text."""

    key: bytes
    scope: bytes
    context: bytes
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """What the tier says to a query: a `slot` to serve, or the `reason` why there is none. `similarity` is the cosine
    to the question of the one served, or to the nearest. The rest is for `learn`: the query's vector where one was
    made, and the keys of its neighbours."""

    query: Query
    reason: str = ""
    similarity: float | None = None
    slot: Slot | None = field(default=None, repr=False)
    vector: Vector | None = field(default=None, repr=False)
    neighbours: tuple[bytes, ...] = field(default=(), repr=False)


Usable = Callable[[Slot], bool]


class SemanticTier:
    """At most `max_bytes`. `answer_text` gives the text of an entry's answer, None where it has none to compare."""

    def __init__(
        self,
        cache: ExactCache,
        embedder: Embedder,
        *,
        max_bytes: int,
        answer_text: Callable[[Entry], str | None],
    ) -> None:
        self.embedder = embedder
        self.known = Known(cache, embedder, max_bytes)
        self.counts: Counter[str] = Counter()  # look-ups by reason; of hits it is empty
        self._cache = cache
        self._answer_text = answer_text
        self._wrong: dict[bytes, set[bytes]] = {}  # by the key that asked: keys whose answers were wrong for it
        self._grouping = Grouping(cache, self.known, answer_text, self._reported)

    async def find(
        self, query: Query, usable: Usable, *, threshold: float | None = None, strict: bool = False
    ) -> Finding:
        """Look for an answer that serves this query. `usable` says whether an entry may be served now."""
        finding = await self._find(query, usable, DEFAULT_THRESHOLD if threshold is None else threshold, strict)
        self.counts[finding.reason] += 1
        return finding

    def learn(self, finding: Finding, entry: Entry) -> None:
        """The query was answered by this entry, which the cache has."""
        query = finding.query
        if finding.reason == "too_long" or self._answer_text(entry) is None:
            return
        row = self.known.questions.get(entry.key)
        if row is None:
            row = Row(entry.key, query.context, query.text)
            self.known.add(row, finding.vector)
        self._compare(row, finding.vector, finding.neighbours)

    def replaced(self, key: bytes) -> None:
        """There is a new answer under this key: what was known of the old one does not hold for it."""
        row = self.known.questions.get(key)
        if row is not None:
            self._compare(row, self.known.vector(key), ())

    def _compare(self, row: Row, vector: Vector | None, neighbours: Sequence[bytes]) -> None:
        self.known.questions.leave(row.key)
        self._grouping.forget(row.key)
        self._grouping.add(row, vector, neighbours)

    def report(self, asked: bytes, served: bytes) -> None:
        """The answer under the key `served` was wrong for the question of the key `asked`."""
        self._wrong.setdefault(asked, set()).add(served)

    async def similar(self, text: str, *, above: float, seconds: float) -> list[bytes]:
        """Keys of all questions, of whatever context, whose cosine to this text is at least `above`. Raises
        EmbedderError, also when it takes longer than so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                [wanted] = await self.embedder.embed([text], deadline=seconds)
                found = []
                for key in self.known.questions:
                    vector = await self._vector(key, seconds)
                    if vector is not None and float(vector @ wanted) >= above:
                        found.append(key)
                return found
        except TimeoutError:
            raise EmbedderError("deadline") from None

    async def compared(self) -> None:
        """Return when no answer waits to be compared with others."""
        await self._grouping.done()

    async def aclose(self) -> None:
        await self._grouping.aclose()
        await self.embedder.aclose()
        self.known.close()

    async def _find(self, query: Query, usable: Usable, threshold: float, strict: bool) -> Finding:
        index = self.known.index
        if index is None:
            return Finding(query, f"embedder_{self.embedder.state}")
        bare = self.known.questions.bare(query.context)[:BARE_AT_ONCE]
        if not bare and not index.size(query.context):
            return Finding(query, "first_in_context")
        try:
            vector = await self._embed(query.text, bare)
        except EmbedderError as error:
            return Finding(query, error.reason)
        # In a thread only where it takes long: the way there and back takes longer than a small search.
        search = (query.context, vector, NEIGHBOURS)
        large = index.is_large(query.context)
        found = await asyncio.to_thread(index.search, *search) if large else index.search(*search)
        near = [(row, cosine) for key, cosine in found if (row := self.known.questions.get(key)) is not None]
        similarity = near[0][1] if near else None
        finding = Finding(
            query, "", similarity, None, vector, tuple(row.key for row, _ in near if row.key != query.key)
        )
        return await self._decide(finding, near, usable, threshold, strict)

    async def _decide(
        self, finding: Finding, near: Sequence[tuple[Row, float]], usable: Usable, threshold: float, strict: bool
    ) -> Finding:
        """Have the neighbours judged. Where the one chosen cannot be served, another of its group may be; it still
        stands for what the right answer is."""
        query, left = finding.query, list(near)
        reason, answer = "nothing_near", None
        while left:
            candidates = [Candidate(row.text, cosine, row.answer) for row, cosine in left]
            verdict = verify(query.text, candidates, threshold=threshold, strict=strict)
            if verdict.chosen is None:
                return replace(finding, reason=verdict.reason if answer is None else reason)
            row, cosine = left.pop(verdict.chosen)
            if answer is not None and row.answer != answer:
                break
            answer = row.answer
            if self._reported_any(query.key, self.known.questions.group_of(row.key)):
                return replace(finding, reason="reported_wrong", similarity=cosine)
            slot = await self._cache.get(row.key)
            if slot is None or slot.entry.key != row.key or slot.entry.scope != query.scope:
                self.known.forget(row.key)
                reason = "gone"
            elif not usable(slot):
                reason = "expired"
            else:
                self.known.questions.use(row.key)
                return replace(finding, slot=slot, similarity=cosine)
        return replace(finding, reason=reason)

    async def _embed(self, text: str, bare: Sequence[Row]) -> Vector:
        """The vector of this text; those of earlier questions are made in the same batch."""
        texts = (text, *(row.text for row in bare))
        calls = (self.embedder.embed([each], deadline=DEADLINE) for each in texts)
        mine, *others = await asyncio.gather(*calls, return_exceptions=True)
        for row, made in zip(bare, others, strict=True):
            if isinstance(made, EmbedderError) and made.reason == "too_long":
                self.known.forget(row.key)
            elif not isinstance(made, BaseException) and self.known.embedded(row, made[0]):
                self._grouping.add(row, made[0], ())
        if isinstance(mine, BaseException):
            raise mine
        vector: Vector = mine[0]
        return vector

    async def _vector(self, key: bytes, seconds: float) -> Vector | None:
        row, vector = self.known.questions.get(key), self.known.vector(key)
        if row is not None and vector is None:
            [vector] = await self.embedder.embed([row.text], deadline=seconds)
        return vector

    def _reported(self, one: bytes, other: bytes) -> bool:
        return self._reported_any(one, (other,)) or self._reported_any(other, (one,))

    def _reported_any(self, asked: bytes, served: Iterable[bytes]) -> bool:
        return not self._wrong.get(asked, frozenset()).isdisjoint(served)
