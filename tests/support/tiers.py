"""A semantic tier over a real cache, asked and told as the gateway does it, with an embedder that needs no model."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cache.entry import Entry
from cache.exact import ExactCache
from cache.framing import digest
from cache.semantic.tier import Finding, Query, SemanticTier
from cache.stores.memory import MemoryStore, Slot
from tests.contract.stores import Clock, key_of, make_entry
from tests.support.embedders import Placed

MIB = 2**20
SCOPE = make_entry().scope
RESET = "How do I reset my password?"
SAME = "how do I reset my password"
AGAIN = "How do I reset my password!"
RIVERS = "Which rivers cross Vienna?"
CLICK = "Click on it."


def context_of(name: str) -> bytes:
    return digest("test.context", [name.encode()])


def folded(text: str) -> str:
    """The place of a text: that of all that differ from it in case and punctuation only."""
    return " ".join(re.findall(r"\w+", text.lower()))


class Paced(Placed):
    """Answers after a turn of the event loop, as a real one does; while `held`, when that is set. `deadlines` are those
    it was given; `refused` are texts that fail, and why."""

    def __init__(self, **more: Any) -> None:
        super().__init__(folded, **more)
        self.held: asyncio.Event | None = None
        self.deadlines: list[float] = []
        self.refused: dict[str, Any] = {}

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        self.deadlines.append(deadline)
        await (asyncio.sleep(0) if self.held is None else self.held.wait())
        for text in texts:
            if text in self.refused:
                raise self.refused[text]
        return await super().embed(texts, deadline=deadline)


def answer_text(entry: Entry) -> str | None:
    """Bodies here are the text itself; an empty one has none to compare."""
    return entry.body.decode() or None


class Tiered:
    """`clock` is that of the cache, by which answers expire."""

    def __init__(self, cache: ExactCache, clock: Clock, embedder: Placed | None = None, max_bytes: int = MIB) -> None:
        self.cache = cache
        self.clock = clock
        self.embedder = Paced() if embedder is None else embedder
        self.tier = SemanticTier(cache, self.embedder, max_bytes=max_bytes, answer_text=answer_text)

    @property
    def embedded(self) -> list[str]:
        """Texts embedded since this was last asked."""
        seen, self.embedder.embedded = self.embedder.embedded, []
        return seen

    async def ask(self, name: str, text: str = RESET, *, context: str = "c", **more: Any) -> Finding:
        """Look for an answer that is fresh, for the question whose own key is `key_of(name)`."""
        query = Query(key_of(name), more.pop("scope", SCOPE), context_of(context), text)
        return await self.tier.find(query, self.fresh, **more)

    def fresh(self, slot: Slot) -> bool:
        return slot.entry.expires > self.clock()

    async def put(self, name: str, answer: str, **changes: Any) -> Entry:
        entry = make_entry(name, body=answer.encode(), created=self.clock(), **changes)
        assert await self.cache.put(entry, since=self.cache.mark()) is None
        return entry

    async def tell(
        self, name: str, text: str = RESET, answer: str = "Click on it.", *, context: str = "c", **changes: Any
    ) -> Finding:
        """Ask, find nothing that is used, have it answered, and wait until the answer has been compared."""
        finding = await self.ask(name, text, context=context)
        self.tier.learn(finding, await self.put(name, answer, **changes))
        await self.tier.compared()
        return finding

    def renew(self, name: str) -> None:
        """The answer that the cache has now came without the tier being asked."""
        slot = self.cache.front.peek(key_of(name))
        assert slot is not None
        self.tier.learn(None, slot.entry)

    def name(self, name: str) -> bytes:
        """Of the answer that this question has now."""
        row = self.tier.known.questions.get(key_of(name))
        assert row is not None
        return row.name

    def group(self, name: str) -> set[bytes]:
        return set(self.tier.known.questions.group_of(key_of(name)))

    def served(self, finding: Finding) -> str | None:
        return None if finding.slot is None else finding.slot.entry.body.decode()


def memory_cache(clock: Clock, *, memory: int = MIB) -> ExactCache:
    return ExactCache(MemoryStore(memory, now=clock, mono=clock), max_entry=100_000)


async def disk_cache(path: Path, clock: Clock) -> ExactCache:
    cache = memory_cache(clock)
    await cache.open(f"sqlite:///{path}", max_bytes=64 * MIB, now=clock)
    return cache


@asynccontextmanager
async def tiered(
    clock: Clock, path: Path | None = None, *, embedder: Placed | None = None, max_bytes: int = MIB
) -> AsyncIterator[Tiered]:
    """With `path`, the store behind is the file there."""
    cache = memory_cache(clock) if path is None else await disk_cache(path, clock)
    made = Tiered(cache, clock, embedder, max_bytes)
    try:
        yield made
    finally:
        await made.tier.aclose()
        await cache.aclose()


async def grouped(t: Tiered, **changes: float) -> None:
    """Three questions of one context: b and a have one answer, z another. The key of a is after that of b."""
    await t.tell("z", RIVERS, "Danube and Wien.", **changes)
    for name in "ba":
        t.tier.learn(await t.ask(name, threshold=9.0), await t.put(name, CLICK, **changes))
        await t.tier.compared()
    assert t.group("a") == {key_of("a"), key_of("b")}


async def written(path: Path, clock: Clock, **changes: float) -> None:
    """Such three, in the file of a process that has ended."""
    async with tiered(clock, path) as t:
        await grouped(t, **changes)
        await t.cache.flush()
