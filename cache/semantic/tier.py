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
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from cache.entry import Entry
from cache.exact import ExactCache
from cache.semantic.embedder import Embedder, EmbedderError
from cache.semantic.grouping import Grouping
from cache.semantic.known import Known, Vector
from cache.semantic.questions import Row, name_of
from cache.semantic.signature import signature
from cache.semantic.vectors import Vectors
from cache.semantic.verifier import DEFAULT_THRESHOLD, NEIGHBOURS, REACH, Candidate, verify
from cache.stores.memory import Slot

PAIRS_AT_ONCE = 100
"""Pairs of equal answers taken over before the event loop gets a turn."""


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
    made, by the embedder of this identity, and the keys of its neighbours."""

    query: Query
    reason: str = ""
    similarity: float | None = None
    slot: Slot | None = field(default=None, repr=False)
    vector: Vector | None = field(default=None, repr=False)
    embedder: str = ""
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
        self._askers: dict[bytes, set[bytes]] = {}  # the same the other way round
        self._grouping = Grouping(cache, self.known, answer_text, self._apart, self._merged)
        self._vectors = Vectors(self.known, embedder, self._embedded)
        self.similar = self._vectors.similar

    async def find(
        self,
        query: Query,
        usable: Usable,
        *,
        threshold: float | None = None,
        strict: bool = False,
        counts: Counter[str] | None = None,
    ) -> Finding:
        """Look for an answer that serves this query. `usable` says whether an entry may be served now. `counts` is for
        look-ups that are not to be counted among the tier's own."""
        finding = await self._find(query, usable, DEFAULT_THRESHOLD if threshold is None else threshold, strict)
        (self.counts if counts is None else counts)[finding.reason] += 1
        return finding

    def searches(self, query: Query) -> bool:
        """Would `find` have a vector made for this query, and look for its neighbours?"""
        index = self.known.index
        return index is not None and bool(self.known.questions.waiting(query.context) or index.size(query.context))

    def learn(self, finding: Finding | None, entry: Entry) -> None:
        """The cache has this new answer; `finding` is what the tier had said to its question, if it was asked."""
        key, former = entry.key, self.known.questions.get(entry.key)
        if former is not None:
            context, text = former.context, former.text
        elif finding is not None:
            context, text = finding.query.context, finding.query.text
        else:
            return
        if self._answer_text(entry) is None or (finding is not None and finding.reason == "too_long"):
            self.known.forget(key)
            return
        vector = self.known.vector(key)
        neighbours: tuple[bytes, ...] = ()
        if finding is not None and finding.embedder == self.embedder.identity:
            vector, neighbours = finding.vector, finding.neighbours
        row = Row(key, context, text, name_of(key, entry.created))
        if former is not None:
            self.known.questions.replace(row)
        else:
            self.known.add(row, vector)
        self._grouping.add(row, vector, neighbours)

    def report(self, asked: bytes, served: bytes) -> list[tuple[bytes, bytes]]:
        """The answer under the key `served` was wrong for the question of the key `asked`, and so is every answer that
        says the same. Gives all these pairs: what they share is forgotten when one of them goes."""
        others = self.known.questions.group_of(served) - {asked, served}
        pairs = [(asked, key) for key in (served, *sorted(others))]
        self.recall(pairs)
        return pairs

    def recall(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """What `report` has given before."""
        for asked, served in pairs:
            self._wrong.setdefault(asked, set()).add(served)
            self._askers.setdefault(served, set()).add(asked)
            if served in self.known.questions.group_of(asked):
                self.known.questions.leave(asked)

    def is_wrong(self, asked: bytes, served: bytes) -> bool:
        """Was this answer, or one that says the same, reported wrong for this question?"""
        return not self._wrong_for(asked).isdisjoint(self.known.questions.group_of(served))

    async def restore(self) -> int:
        """Take over what the store has kept, once the embedder is ready; how many questions. Raises
        StoreUnavailable."""
        taken, pairs = await self.known.restore()
        for number, (one, other) in enumerate(pairs):
            if number % PAIRS_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._grouping.merge(one, other)
        return taken

    async def compared(self) -> None:
        """Return when no answer waits to be compared with others."""
        await self._grouping.done()

    async def aclose(self) -> None:
        await self._grouping.aclose()
        await self.embedder.aclose()
        await asyncio.to_thread(self.known.close)

    async def _find(self, query: Query, usable: Usable, threshold: float, strict: bool) -> Finding:
        index = self.known.index
        if index is None:
            return Finding(query, f"embedder_{self.embedder.state}")
        bare = self.known.questions.bare(query.context)
        if not bare and not index.size(query.context):
            return Finding(query, "first_in_context")
        try:
            vector = await self._vectors.of(query.text, bare)
        except EmbedderError as error:
            return Finding(query, error.reason if error.reason == "too_long" else f"embedder_{error.reason}")
        # In a thread only where it takes long: the way there and back takes longer than a small search.
        search = (query.context, vector, NEIGHBOURS)
        large = index.is_large(query.context)
        found = await asyncio.to_thread(index.search, *search) if large else index.search(*search)
        near = [(row, cosine) for key, cosine in found if (row := self.known.questions.get(key)) is not None]
        similarity = near[0][1] if near else None
        others = tuple(row.key for row, _ in near if row.key != query.key)
        finding = Finding(query, "", similarity, None, vector, self.embedder.identity, others)
        return await self._decide(finding, near, usable, threshold, strict)

    async def _decide(
        self, finding: Finding, near: Sequence[tuple[Row, float]], usable: Usable, threshold: float, strict: bool
    ) -> Finding:
        """Have the neighbours judged. Where the one chosen cannot be served, another of its group may be; it still
        stands for what the right answer is."""
        query, left = finding.query, list(near)
        if near and near[0][1] + REACH >= threshold:
            for row, _ in near[::2]:  # reading a text takes a quarter of a millisecond: others get their turns between
                signature(row.text)
                await asyncio.sleep(0)
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
            slot = await self._cache.get(row.key)
            # Asked after the waiting, since a report may have come meanwhile.
            if self.is_wrong(query.key, row.key):
                return replace(finding, reason="reported_wrong", similarity=cosine)
            if slot is None or not self._answers(slot.entry, row, query):
                reason = "gone"  # or the store is down: `sweep` finds out
            elif not usable(slot):
                reason = "expired"
            else:
                self.known.questions.use(row.key)
                return replace(finding, slot=slot, similarity=cosine)
        return replace(finding, reason=reason)

    def _embedded(self, row: Row, vector: Vector) -> None:
        """An earlier question has its vector, and so its neighbours."""
        near = self.known.index.search(row.context, vector, NEIGHBOURS) if self.known.index is not None else ()
        self._grouping.add(row, vector, [key for key, _ in near if key != row.key])

    @staticmethod
    def _answers(entry: Entry, row: Row, query: Query) -> bool:
        """Is this the very answer that was learnt, and one of the scope that asks?"""
        return entry.key == row.key and entry.scope == query.scope and name_of(entry.key, entry.created) == row.name

    def _merged(self, keys: Set[bytes]) -> None:
        """These have one answer: what was wrong of one for a question is so of all."""
        askers = {asked for key in self._askers.keys() & keys for asked in self._askers[key]}
        self.recall([(asked, key) for asked in askers for key in keys - self._wrong_for(asked) - {asked}])

    def _apart(self, some: Set[bytes], others: Set[bytes]) -> bool:
        """Is an answer of one set known to be wrong for a question of the other?"""
        pairs = ((some, others), (others, some))
        return any(not self._wrong_for(key).isdisjoint(b) for a, b in pairs for key in a if key in self._wrong)

    def _wrong_for(self, asked: bytes) -> Set[bytes]:
        return self._wrong.get(asked, frozenset())
