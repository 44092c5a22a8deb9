"""The record of a byte-identical hit: what all hits of one answer have in common is in one place; the rest is five
numbers, which is all that is written down between two requests (gateway.ring)."""

from typing import Any

from cache.entry import Entry
from gateway.decisions import Decision, Tier, request_id
from gateway.principal import Principal


class Facts:
    """What is the same of all hits of this entry for one principal. (Not the entry: its answer may be purged.)
    `documents` is the value of `x-refrain-documents`, None where the endpoint has no retriever."""

    __slots__ = (
        *("api", "backend", "endpoint", "input", "key", "model", "ms", "output", "principal", "stream"),
        *("documents", "total", "upstream_id", "usd"),
    )
    outcome, status, error = "exact", 200, None

    def __init__(
        self,
        entry: Entry,
        principal: Principal,
        endpoint: str,
        api: str,
        model: str,
        *,
        stream: bool,
        documents: str | None = None,
    ) -> None:
        self.principal = principal
        self.endpoint = endpoint
        self.api = api
        self.model = model
        self.stream = stream
        self.documents = documents
        self.key = entry.key
        self.backend = entry.backend
        self.upstream_id = entry.upstream_id
        self.input, self.output, self.total = entry.usage.input, entry.usage.output, entry.usage.total
        self.usd, self.ms = entry.cost.usd, entry.cost.ms

    @property
    def tenant(self) -> str:
        return self.principal.tenant


class Hit:
    """Reads like a decision. `number` is that of its id; `at` and `age` are seconds, as is `ttl`; `ms` is what it
    took. Made when somebody wants to see it."""

    __slots__ = ("age", "at", "facts", "ms", "number", "ttl")
    outcome, status, error = "exact", 200, None

    def __init__(self, facts: Facts, number: int, at: float, ms: float, age: int, ttl: int) -> None:
        self.facts = facts
        self.number = number
        self.at = at
        self.ms = ms
        self.age = age
        self.ttl = ttl

    @property
    def id(self) -> str:
        return request_id(self.number)

    @property
    def principal(self) -> Principal:
        return self.facts.principal

    @property
    def tenant(self) -> str:
        return self.facts.principal.tenant

    @property
    def endpoint(self) -> str:
        return self.facts.endpoint

    @property
    def model(self) -> str:
        return self.facts.model

    @property
    def key(self) -> bytes:
        return self.facts.key

    @property
    def tiers(self) -> tuple[Tier, ...]:
        exact = Tier("exact", "hit", "byte_identical", self.ttl)
        return (exact,) if self.facts.documents is None else (Tier("retrieval", "hit"), exact)

    def decision(self) -> Decision:
        """The same as a decision."""
        f, d = self.facts, Decision(self.id, self.at, self.facts.endpoint, self.facts.api)
        d.principal, d.model, d.stream, d.key = f.principal, f.model, f.stream, f.key
        d.backend, d.upstream_id, d.documents = f.backend, f.upstream_id, f.documents or ""
        d.outcome, d.status, d.finished = "exact", 200, True
        d.tiers, d.age, d.ms, d.phases = self.tiers, self.age, self.ms, {"exact": self.ms}
        d.input, d.output = f.input, f.output
        d.served = d.saved = f.total
        d.usd_saved, d.ms_saved = f.usd, f.ms
        return d

    def as_dict(self) -> dict[str, Any]:
        return self.decision().as_dict()

    def __repr__(self) -> str:
        return f"Hit({self.id}, {self.endpoint})"


Record = Decision | Hit
