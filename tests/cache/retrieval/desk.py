"""A retrieval cache in front of a shelf, with its clock in the test's hand."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from cache.exact import ExactCache
from cache.retrieval import Passage, Results, RetrievalCache, Search
from cache.stores.memory import MemoryStore
from tests.contract.stores import Clock
from tests.support.retrievers import Shelf

MIB = 2**20
HR = frozenset({"hr"})


def labels(retriever: str, documents: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{retriever}/{id}" for id, _ in documents)


class Desk:
    """`url` names the store behind the front; "memory://" is none."""

    def __init__(self, shelf: Shelf, url: str = "memory://") -> None:
        self.shelf = shelf
        self.url = url
        self.clock = Clock()
        self.open_anew()

    def open_anew(self) -> None:
        """A cache that knows nothing yet: `start` puts the store behind it."""
        self.cache = ExactCache(MemoryStore(64 * MIB, now=self.clock), max_entry=MIB)
        self.results = RetrievalCache(self.cache, self.clock)

    async def start(self) -> None:
        await self.cache.open(self.url, max_bytes=64 * MIB, now=self.clock)

    async def restart(self) -> None:
        await self.cache.aclose()
        self.open_anew()
        await self.start()

    def forget_front(self, *keys: bytes) -> None:
        """What memory has of these is evicted."""
        for key in keys:
            self.cache.front.discard(key)

    def search(self, query: str = "parental leave", **changes: Any) -> Search:
        shelf, generation = self.shelf, self.shelf.generation
        fields: dict[str, Any] = {
            "tenant": "acme",
            "user": "alice",
            "retriever": shelf.name,
            "revision": shelf.revision,
            "generation": generation,
            "permissions": HR,
            "query": query,
            "top_k": 4,
            "lasting": shelf.lasting,
            "labels": partial(labels, shelf.name),
            "current": lambda: shelf.generation == generation,
        }
        return Search(**{**fields, **changes})

    async def run(self, search: Search) -> Sequence[Passage]:
        found = await self.shelf.search(search.query, top_k=search.top_k, permissions=search.permissions, deadline=10.0)
        return [Passage(f.document, f.version, f.position, f.text, f.score, f.title) for f in found]

    async def find(self, search: Search | None = None, **changes: Any) -> Results:
        """What is kept, or what is found."""
        search = search or self.search(**changes)
        kept = await self.results.recall(search)
        return await self.results.join(search, partial(self.run, search)) if kept is None else kept

    async def texts(self, results: Results) -> Results:
        return await self.results.with_texts(results, partial(self.run, results.search))
