"""A finder and a search handler over shelves, asked without a server. `handbook` is for acme and ops, `open` for
everybody."""

import asyncio
import json
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any

from cache.exact import ExactCache
from cache.retrieval import Results, RetrievalCache
from cache.stores.memory import MemoryStore
from gateway.asgi import Message, Outlet
from gateway.auth import Authenticator
from gateway.config.endpoints import SemanticPolicy
from gateway.config.load import parse_config
from gateway.decisions import Decision
from gateway.directives import NONE, Directives
from gateway.front import Incoming
from gateway.principal import Principal
from gateway.reception import Arrival
from gateway.retrieval.finder import Finder, Terms
from gateway.retrieval.managed import Managed
from gateway.retrieval.matching import Matching
from gateway.retrieval.searches import Searches
from gateway.semantics import Semantics
from gateway.snapshot import Snapshot
from gateway.visit import Visit
from tests.contract.stores import Clock
from tests.support.retrievers import Shelf
from tests.support.tiers import Paced

Json = dict[str, Any]
MIB = 2**20
CONFIG = parse_config(
    """
auth: {required: false}
store: {url: "memory://"}
backends: {one: {kind: remote, base_url: "http://127.0.0.1:9/v1"}}
models: {"*": one}
retrievers:
  handbook: {kind: http, url: "http://127.0.0.1:9/search", tenants: [acme, ops]}
  open: {kind: http, url: "http://127.0.0.1:9/search"}
""",
    {},
)
ALICE = Principal("acme", "alice", frozenset({"hr", "golf"}))
BOB = Principal("acme", "bob")
EVE = Principal("globex", "eve", frozenset({"hr"}), "tenant_admin")
PAGE = "vector_store.search_results.page"


class Reply:
    """What a client got, and the decision about it."""

    def __init__(self, decision: Decision, sent: list[Message]) -> None:
        start, body = sent
        self.decision = decision
        self.status = start["status"]
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        self.content = body["body"]
        self.page: Json = json.loads(body["body"])
        self.data: list[Json] = self.page["data"]

    @property
    def found(self) -> list[tuple[str, str]]:
        return [(item["file_id"], item["content"][0]["text"]) for item in self.data]


def finder_of(cache: ExactCache, clock: Callable[[], float], semantics: Semantics | None = None) -> Finder:
    """Without `semantics` there is no semantic tier."""
    found = RetrievalCache(cache, clock)
    semantics = semantics or Semantics(cache, clock, lambda _: Paced())
    return Finder(found, Matching(found, semantics, cache.front, nullcontext))


class Desk:
    def __init__(self) -> None:
        self.clock = Clock()
        self.shelf = Shelf(name="handbook")
        self.shelf.put("leave.md", "Parental leave is long.\n\nUnpaid leave is short.", version="7", title="Leave")
        self.shelf.put("hr/pay.md", "Pay during parental leave.", needs=["hr"])
        self.open = Shelf(name="open")
        self.open.put("hello.md", "Parental greetings.")
        self.cache = ExactCache(MemoryStore(64 * MIB, now=self.clock), max_entry=MIB)
        self.finder = finder_of(self.cache, self.clock)
        self.searches = Searches(self.finder, self.cache.front)
        retrievers = {s.name: Managed(CONFIG.retrievers[s.name], s, None) for s in (self.shelf, self.open)}
        self.snapshot = Snapshot.of(CONFIG, 1, {}, Authenticator(True, {}), retrievers=retrievers)

    def visit(self, principal: Principal = ALICE, sent: list[Message] | None = None) -> Visit:
        async def send(message: Message) -> None:
            assert sent is not None
            sent.append(message)

        decision = Decision("req_1", self.clock(), "default", "search")
        decision.principal = principal
        return Visit(self.snapshot, Incoming(b"", None, perf_counter()), decision, Outlet(send, lambda: None))

    async def find(
        self,
        query: str = "parental leave",
        *,
        principal: Principal = ALICE,
        name: str = "handbook",
        directives: Directives = NONE,
        visit: Visit | None = None,
        alike: SemanticPolicy | None = None,
    ) -> Results:
        visit = visit or self.visit(principal)
        return await self.finder.find(visit, name, query, Terms(4, directives, alike=alike))

    async def ask(
        self,
        query: Any = "parental leave",
        *,
        principal: Principal = ALICE,
        name: str = "handbook",
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> Reply:
        return await self.send(json.dumps({"query": query, **fields}).encode(), principal, name, headers)

    async def send(
        self,
        raw: bytes,
        principal: Principal = ALICE,
        name: str = "handbook",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        sent: list[Message] = []
        visit = self.visit(principal, sent)
        head = {key.encode(): value.encode() for key, value in (headers or {}).items()}
        endpoint = self.snapshot.endpoint("default")
        await self.searches(visit, Arrival(endpoint, principal, raw, head, "", _nothing, name))
        return Reply(visit.decision, sent)


async def _nothing() -> Message:
    """A client that stays."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def turns() -> None:
    """All requests have come as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)
