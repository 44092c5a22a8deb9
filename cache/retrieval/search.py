"""A search as the cache knows it: all that decides what is found, and what was found."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from cache.entry import Entry
from cache.framing import digest
from cache.retrieval.passages import Reference
from cache.scope import Scope
from cache.stores.memory import Slot

Outcome = Literal["hit", "miss", "joined"]


@dataclass(frozen=True, slots=True)
class Search:
    """`query` asked of one `revision` and `generation` of a retriever's documents, with these effective permissions
    (None: whoever sees all). Results live `lasting` seconds at most. `user` is who asks, and is no part of the key.

    `labels` gives what an entry made from these documents, by (id, version), is purged by. `current` says whether the
    generation is still in force: what was found while it changed may be of either, and is not kept.
    """

    tenant: str
    user: str
    retriever: str
    revision: str
    generation: str
    permissions: frozenset[str] | None
    query: str = field(repr=False)
    top_k: int
    lasting: float
    labels: Callable[[Iterable[tuple[str, str]]], tuple[str, ...]] = field(repr=False, compare=False)
    current: Callable[[], bool] = field(repr=False, compare=False)
    tags: tuple[str, ...] = ()

    @property
    def scope(self) -> bytes:
        """Digest of the partition that its results live in."""
        return _scope(self.tenant, self.permissions)

    @property
    def key(self) -> bytes:
        """Digest of all that decides what is found."""
        return digest("refrain.search.1", [*self._around, self.query.encode()])

    @property
    def context(self) -> bytes:
        """Digest of all that must be equal before the results of another query may be used for this one."""
        return digest("refrain.search.context.1", self._around)

    @property
    def _around(self) -> list[bytes]:
        words = (self.retriever, self.revision, self.generation, str(self.top_k))
        return [self.scope, *(word.encode() for word in words)]

    def text_key(self, reference: Reference) -> bytes:
        """The key of a text. It holds no permissions: only who has the reference knows it, or is answered under it."""
        return digest("refrain.text.1", [self.tenant.encode(), self.retriever.encode(), reference.digest])


@lru_cache(maxsize=8192)
def _scope(tenant: str, permissions: frozenset[str] | None) -> bytes:
    # Who sees all is a partition of its own, apart from who has no permission.
    if permissions is None:
        return Scope("tenant", tenant).digest()
    return Scope("permissions", tenant, "", tuple(sorted(permissions))).digest()


@dataclass(frozen=True, slots=True)
class Results:
    """What was found, the best first; `texts` in the same order, where they are at hand. `entry` is what is kept of it,
    or would be, and `slot` where it is kept in memory; `now` is the time by which the entry aged when it was found.
    `similarity` (cosine) is that of the query it was found for, where that was another one of the same meaning."""

    search: Search
    references: tuple[Reference, ...]
    outcome: Outcome
    entry: Entry
    now: float
    texts: tuple[str, ...] | None = field(default=None, repr=False)
    slot: Slot | None = field(default=None, repr=False)
    similarity: float | None = None

    @property
    def documents(self) -> tuple[str, ...]:
        """The labels of all that was found."""
        return self.entry.documents

    @property
    def expires(self) -> float:
        """Wall clock, seconds."""
        return self.entry.expires

    @property
    def ttl(self) -> int:
        """Seconds for which they may be used again."""
        return max(0, int(self.entry.expires - self.now))

    @property
    def age(self) -> int:
        return self.entry.age(self.now)
