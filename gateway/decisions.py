"""The decision: the record of one request, from which headers, logs, metrics and the ledger are views.

Decisions live in a ring of fixed length (gateway.ring). They hold no prompt, no answer and no credential.
"""

import itertools
import secrets
from functools import lru_cache
from typing import Any, Literal

from gateway.latency.phases import WITHIN, spans
from gateway.principal import Principal
from gateway.why.why import Why

Outcome = Literal["exact", "semantic", "joined", "stale", "miss", "bypass"]

_prefix = f"req_{secrets.token_hex(6)}_"
_number = itertools.count(1)


def new_request_id() -> str:
    """Unique over restarts and processes, cheap enough for every hit."""
    return request_id(new_number())


def new_number() -> int:
    """The number of a new request's id."""
    return next(_number)


def request_id(number: int) -> str:
    return f"{_prefix}{number}"


class Tier:
    """What one tier said: `result` is its word (`hit`, `miss`, `skipped`), `why` a short reason code. Of the semantic
    tier also the `similarity` (cosine) to the nearest question, or to the one whose answer was served, and the key of
    that (`source`); of the prefix tier the `tokens` of the prompt that the backend had."""

    hits: str | None = None
    __slots__ = ("name", "result", "similarity", "source", "tokens", "ttl", "why")

    def __init__(
        self,
        name: str,
        result: str,
        why: str | None = None,
        ttl: int | None = None,
        similarity: float | None = None,
        source: bytes | None = None,
        tokens: int | None = None,
    ) -> None:
        self.name = name
        self.result = result
        self.why = why
        self.ttl = ttl
        self.similarity = similarity
        self.source = source
        self.tokens = tokens

    def as_dict(self) -> dict[str, Any]:
        near = None if self.similarity is None else round(self.similarity, 4)
        out: dict[str, Any] = {"tier": self.name, "result": self.result, "why": self.why, "ttl": self.ttl}
        source = None if self.source is None else self.source.hex()
        out |= {"similarity": near, "source": source, "tokens": self.tokens, "hits": self.hits}
        return {k: v for k, v in out.items() if v is not None}


@lru_cache(maxsize=512)
def plain_tier(name: str, result: str, why: str | None = None) -> Tier:
    """One for all decisions in which a tier says no more than this: nobody changes them, and most say little."""
    return Tier(name, result, why)


class PartTier(Tier):
    """A miss of a request for several things, of which so many (`hits`, "3/5") were there."""

    # Of its own, since a hundred thousand decisions are kept and hardly any has one.
    __slots__ = ("hits",)

    def __init__(self, name: str, result: str, why: str | None, ttl: int | None, hits: str) -> None:
        super().__init__(name, result, why, ttl)
        self.hits: str | None = hits


class Decision:
    """One request. Times are wall-clock seconds (`at`) and milliseconds (`ms`, `phases`); money is USD."""

    # Slots: requests that miss set more names than Python lets the dicts of several objects share (30), and from the
    # first such one on each decision would have a dict of its own: 1.4 kB instead of 0.9 for a hit, and slower to make.
    __slots__ = (
        *("age", "api", "at", "backend", "billable", "cached", "consumed", "documents", "endpoint"),
        *("error", "estimated", "failures"),
        *("finished", "first_ms", "id", "input", "key", "model", "ms", "ms_saved", "not_stored", "outcome", "output"),
        *("phases", "predicted_ms", "principal", "prompt", "saved", "served", "status", "stored", "stream", "tiers"),
        *("unserved", "upstream_id", "usd", "usd_billable", "usd_overhead", "usd_saved", "usd_used", "why"),
    )

    def __init__(self, id: str, at: float, endpoint: str, api: str) -> None:
        self.id = id
        self.at = at
        self.endpoint = endpoint
        self.api = api
        self.phases: dict[str, float] = {}
        self.tiers: tuple[Tier, ...] = ()
        self.model = self.backend = self.upstream_id = ""
        self.failures: tuple[tuple[str, str], ...] = ()  # where it has a fallback: who was asked in vain, and the error
        self.documents = ""  # the value of `x-refrain-documents`
        self.key = b""
        self.stream = self.finished = self.stored = False
        self.ms = 0.0
        self.status = 0
        # Tokens: of the answer that was given; where they went; and of what was consumed, those that are charged by the
        # token, and those that the backend never reported.
        self.input = self.output = self.served = self.consumed = self.unserved = self.saved = 0
        self.billable = self.estimated = 0
        self.principal: Principal | None = None
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self.not_stored: str | None = None
        self.age: int | None = None
        # From the arrival to the first byte of the answer (of a short way None: it is `ms`); what the upstream call was
        # expected to take; what was saved.
        self.first_ms: float | None = None
        self.predicted_ms: float | None = None
        self.ms_saved: float | None = None
        self.cached: int | None = None  # of what was consumed, if the backend has said
        self.prompt = 0  # tokens of the prompts that were sent to backends
        self.usd: float | None = None
        self.usd_billable: float | None = None
        self.usd_overhead: float | None = None  # of `usd`: the cache's own work
        self.usd_used = 0.0  # of `usd`: the call whose answer was given
        self.usd_saved: float | None = None
        self.why: Why | None = None  # what a request differs in that no cache has answered

    @property
    def tenant(self) -> str:
        return self.principal.tenant if self.principal else ""

    def settle(self) -> None:
        """What was consumed and reached nobody: served + unserved = consumed + saved."""
        self.unserved = self.consumed + self.saved - self.served

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "time": self.at,
            "endpoint": self.endpoint,
            "tenant": self.tenant,
            "user": self.principal.user if self.principal else "",
            "api": self.api,
            "model": self.model,
            "backend": self.backend,
            "stream": self.stream,
            "outcome": self.outcome,
            "status": self.status,
            "error": self.error,
            "failures": [{"backend": backend, "error": error} for backend, error in self.failures],
            "tiers": [t.as_dict() for t in self.tiers],
            "phases": {k: round(v, 3) for k, v in self.phases.items()},
            "spans": self._spans(),
            "ms": round(self.ms, 3),
            "first_ms": _rounded(self.first_ms),
            "predicted_ms": _rounded(self.predicted_ms),
            "key": self.key.hex(),
            "age": self.age,
            "upstream_id": self.upstream_id or None,
            "documents": self.documents.split(", ") if self.documents else [],
            "stored": self.stored,
            "not_stored": self.not_stored,
            "tokens": {
                "served": self.served,
                "consumed": self.consumed,
                "unserved": self.unserved,
                "saved": self.saved,
                "input": self.input,
                "output": self.output,
                "billable": self.billable,
                "estimated": self.estimated,
                **({} if self.cached is None else {"cached": self.cached}),
            },
            "usd": {
                "consumed": self.usd,
                "billable": self.usd_billable,
                "saved": self.usd_saved,
                "overhead": self.usd_overhead,
            },
            "ms_saved": None if self.ms_saved is None else round(self.ms_saved, 1),
            "why": None if (why := self._why()) is None else why.as_dict(),
        }

    def _spans(self) -> list[dict[str, Any]]:
        phases = self.phases
        if any(tier.why == "stale_while_revalidate" for tier in self.tiers):
            # The upstream call is the refresh, which nobody waited for.
            phases = {k: v for k, v in phases.items() if "upstream" not in (k, WITHIN.get(k))}
        places = {"start": 3, "ms": 3, "share": 6}
        return [{k: round(v, places[k]) if k in places else v for k, v in s.items()} for s in spans(phases, self.ms)]

    def _why(self) -> Why | None:
        """What was refused, or failed, before anything was known of it is explained by its error."""
        if self.why is None and self.error is not None and self.outcome in (None, "miss", "bypass"):
            return Why("failed", reason=self.error)
        return self.why

    def __repr__(self) -> str:
        return f"Decision({self.id}, {self.endpoint}, {self.outcome}, {self.status})"


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)
