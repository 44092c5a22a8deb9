"""The semantic tier of a gateway, asked and told by requests that are understood and sent nowhere."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from cache.entry import Entry
from cache.semantic.tier import Finding, SemanticTier
from cache.stores.memory import Slot
from gateway.asgi import Outlet
from gateway.ask import Ask, understand
from gateway.config import Config
from gateway.config import Embedder as EmbedderConfig
from gateway.config.load import parse_config
from gateway.decisions import Decision
from gateway.fleet import build
from gateway.front import Incoming
from gateway.identity import Identity
from gateway.principal import Principal
from gateway.reuse import Reuse
from gateway.semantics import Semantics
from gateway.snapshot import Snapshot
from gateway.visit import Visit
from tests.contract.stores import START, Clock, make_entry
from tests.support.tiers import RESET, RIVERS, Paced, disk_cache, memory_cache
from tests.support.upstream import chat_answer

CLICK = "Click on it."


ON = """
  default: {}
  quick: {cache: {semantic: {ttl: 60s}}}
  brief: {cache: {exact: {ttl: 1h, stale_while_revalidate: 1h, stale_if_error: 1h}}}
  without: {cache: {semantic: off}}
  nothing: {cache: {exact: off}}
"""
OFF = """
  default: {cache: {semantic: off}}
  nothing: {cache: {exact: off}}
"""


def config_of(embedder: str = "all-MiniLM-L6-v2", endpoints: str = ON) -> Config:
    return parse_config(
        f"""
auth: {{required: false}}
store: {{url: "memory://", memory: 1MiB}}
backends: {{one: {{kind: remote, base_url: "http://127.0.0.1:9/v1"}}}}
models: {{"*": one}}
embedder: {{model: {embedder}}}
endpoints: {endpoints}
""",
        {},
    )


CONFIG = config_of()
SNAPSHOT = Snapshot.of(
    CONFIG, 1, {"one": build("one", CONFIG.backends["one"])}, Identity(time.time).authenticator(CONFIG.auth)
)
ALICE = Principal("acme", "alice", frozenset())


async def _nowhere(message: Any) -> None:
    raise AssertionError("nobody is there to send to")


def request(text: str = RESET, *, endpoint: str = "default", headers: dict[str, str] | None = None, **more: Any) -> Ask:
    body = {"model": "gpt-x", "messages": [{"role": "user", "content": text}], **more}
    head = {name.encode(): value.encode() for name, value in (headers or {}).items()}
    return understand("chat", msgspec.json.encode(body), head, "", SNAPSHOT.endpoint(endpoint), ALICE, SNAPSHOT)


def entry_of(ask: Ask, answer: Any = CLICK, **changes: Any) -> Entry:
    body = msgspec.json.encode(chat_answer(answer) if isinstance(answer, str) else answer)
    return make_entry(key=ask.key, scope=ask.scope.digest(), body=body, **changes)


class SemanticDesk:
    def __init__(self, semantics: Semantics, clock: Clock, embedders: list[Paced]) -> None:
        self.semantics = semantics
        self.cache = semantics._cache
        self.clock = clock
        self.embedders = embedders
        self.visit: Visit

    @property
    def tier(self) -> SemanticTier:
        assert self.semantics.tier is not None
        return self.semantics.tier

    async def find(self, ask: Ask) -> Finding | None:
        decision = Decision("req_1", self.clock(), "default", "chat")
        outlet = Outlet(_nowhere, lambda: None)
        self.visit = Visit(SNAPSHOT, Incoming(ask.raw, None, perf_counter()), decision, outlet)
        return await self.semantics.find(self.visit, ask)

    async def similar(self, ask: Ask) -> Reuse | None:
        """What is served, and remembered, as by a flight."""
        finding = await self.find(ask)
        reuse = None if finding is None else self.semantics.reuse(finding, ask)
        if reuse is not None:
            self.semantics.remember(ask, reuse, 1)
        return reuse

    async def tell(self, ask: Ask, answer: Any = CLICK, *, finding: Finding | None = None) -> Entry:
        """The backend answers, after this look-up or one that is made now, and the tier learns it."""
        finding = finding or await self.find(ask)
        entry = entry_of(ask, answer, created=self.clock(), expires=START + 1e6, keep_until=START + 2e6)
        assert await self.cache.put(entry, since=self.cache.mark()) is None
        self.semantics.learn(finding, entry)
        await self.tier.compared()
        return entry

    async def known(self, **more: Any) -> Slot:
        """Two questions of one context; gives the place of the answer to the first."""
        entry = await self.tell(request(RESET, **more))
        await self.tell(request(RIVERS, **more), "Danube and Wien.")
        slot = self.cache.front.peek(entry.key)
        assert slot is not None
        return slot

    @property
    def said(self) -> list[tuple[str, str | None]]:
        """What the tier said of the last request."""
        return [(tier.result, tier.why) for tier in self.visit.decision.tiers]


@asynccontextmanager
async def semantic_desk(
    clock: Clock, path: Path | None = None, config: Config | None = CONFIG
) -> AsyncIterator[SemanticDesk]:
    """`embedders` are those it has made. With `path`, the store behind is the file there."""
    made: list[Paced] = []

    def make(config: EmbedderConfig) -> Paced:
        made.append(Paced(identity=config.model))
        return made[-1]

    cache = memory_cache(clock) if path is None else await disk_cache(path, clock)
    semantics = Semantics(cache, clock, make)
    try:
        if config is not None:
            await semantics.apply(config)
        yield SemanticDesk(semantics, clock, made)
    finally:
        await semantics.aclose()
        await cache.aclose()
