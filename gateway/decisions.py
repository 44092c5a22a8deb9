"""The decision: the record of one request, from which headers, logs, metrics and the ledger are views.

Decisions live in a ring of fixed length. They hold no prompt, no answer and no credential.
"""

import itertools
import secrets
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

from gateway.principal import Principal

Outcome = Literal["exact", "semantic", "joined", "stale", "miss", "bypass"]

_prefix = f"req_{secrets.token_hex(6)}_"
_number = itertools.count(1)


def new_request_id() -> str:
    """Unique over restarts and processes, cheap enough for every hit."""
    return f"{_prefix}{next(_number)}"


class Tier:
    """What one tier said: `result` is its word (`hit`, `miss`, `skipped`), `why` a short reason code. Of the semantic
    tier also the `similarity` (cosine) to the nearest question, or to the one whose answer was served, and the key of
    that (`source`); of the prefix tier the `tokens` of the prompt that the backend had."""

    __slots__ = ("name", "result", "similarity", "source", "tokens", "ttl", "why")

    def __init__(
        self,
        name: str,
        result: str,
        why: str | None = None,
        ttl: int | None = None,
        similarity: float | None = None,
        source: str | None = None,
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
        out |= {"similarity": near, "source": self.source, "tokens": self.tokens}
        return {k: v for k, v in out.items() if v is not None}


class Decision:
    """One request. Times are wall-clock seconds (`at`) and milliseconds (`ms`, `phases`); money is USD."""

    # Defaults live on the class: making a decision, on every hit, costs only what it sets.
    principal: Principal | None = None
    model = ""
    backend = ""
    stream = False
    outcome: Outcome | None = None
    status = 0
    error: str | None = None
    tiers: tuple[Tier, ...] = ()
    ms = 0.0
    finished = False
    key = b""
    age: int | None = None
    upstream_id = ""
    stored = False
    not_stored: str | None = None
    served = consumed = unserved = saved = 0
    cached: int | None = None  # of what was consumed, if the backend has said
    usd: float | None = None
    usd_saved: float | None = None
    ms_saved: float | None = None

    def __init__(self, id: str, at: float, endpoint: str, api: str) -> None:
        self.id = id
        self.at = at
        self.endpoint = endpoint
        self.api = api
        self.phases: dict[str, float] = {}

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
            "tiers": [t.as_dict() for t in self.tiers],
            "phases": {k: round(v, 3) for k, v in self.phases.items()},
            "ms": round(self.ms, 3),
            "key": self.key.hex(),
            "age": self.age,
            "upstream_id": self.upstream_id or None,
            "stored": self.stored,
            "not_stored": self.not_stored,
            "tokens": {
                "served": self.served,
                "consumed": self.consumed,
                "unserved": self.unserved,
                "saved": self.saved,
                **({} if self.cached is None else {"cached": self.cached}),
            },
            "usd": {"consumed": self.usd, "saved": self.usd_saved},
            "ms_saved": None if self.ms_saved is None else round(self.ms_saved, 1),
        }

    def __repr__(self) -> str:
        return f"Decision({self.id}, {self.endpoint}, {self.outcome}, {self.status})"


class Ring:
    """The latest decisions, newest first."""

    def __init__(self, length: int) -> None:
        self._kept: deque[Decision] = deque(maxlen=length)
        self.add = self._kept.append

    def resize(self, length: int) -> None:
        """Keep the latest `length` from now on."""
        self._kept = deque(self._kept, maxlen=length)
        self.add = self._kept.append

    def __iter__(self) -> Iterator[Decision]:
        return reversed(self._kept)

    def find(self, id: str) -> Decision | None:
        return next((d for d in self if d.id == id), None)
