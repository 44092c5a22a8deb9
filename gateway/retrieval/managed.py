"""A retriever in use."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from backends.retrievers import Found, Retriever, RetrieverState
from cache.semantic.embedder_base import Embedder
from gateway.config import Retriever as RetrieverConfig

if TYPE_CHECKING:
    from gateway.visit import Visit

PaidBy = Callable[["Visit"], AbstractContextManager[object]]
"""What a search takes inside is charged to this visit."""


class Managed:
    """A retriever that knows how many searches are on it, and how many it was spared. `embedder` is what it finds by,
    where that is ours, and `paid_by` says who pays for it."""

    def __init__(
        self,
        config: RetrieverConfig,
        retriever: Retriever,
        embedder: Embedder | None,
        paid_by: PaidBy = nullcontext,
    ) -> None:
        self.name = retriever.name
        self.config = config
        self.retriever = retriever
        self.paid_by = paid_by
        self._embedder = embedder
        self.counts: Counter[str] = Counter()  # look-ups since the start, by what came of them
        self.matches: Counter[str] = Counter()  # of those, the ones for what others had found; of hits it is empty
        self._searches = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def state(self) -> RetrieverState:
        return self.retriever.state

    def stats(self) -> dict[str, Any]:
        """Its state in words, and its look-ups: `hit`, `miss`, `joined`, `failed`. `by_meaning` are those for what was
        found for other queries, by the reason why there was nothing."""
        misses = dict(self.matches)
        by_meaning = {"hits": misses.pop("", 0), "misses": misses}
        said = {"state": self.retriever.state, "detail": self.retriever.detail, "lookups": dict(self.counts)}
        return {**said, "by_meaning": by_meaning}

    async def search(
        self, query: str, *, top_k: int, permissions: frozenset[str] | None, deadline: float
    ) -> list[Found]:
        """As Retriever.search."""
        self._searches += 1
        self._idle.clear()
        try:
            return await self.retriever.search(query, top_k=top_k, permissions=permissions, deadline=deadline)
        finally:
            self._searches -= 1
            if not self._searches:
                self._idle.set()

    async def start(self) -> None:
        if self._embedder is not None:
            await self._embedder.start()
        await self.retriever.start()

    async def idle(self) -> None:
        """Return when no search is on it."""
        await self._idle.wait()

    async def aclose(self) -> None:
        await self.retriever.aclose()
        if self._embedder is not None:
            await self._embedder.aclose()
