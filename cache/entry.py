"""An entry: one stored answer with everything needed to decide whether it may be reused."""

from dataclasses import dataclass, field, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the upstream call took."""

    input: int = 0
    output: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output


@dataclass(frozen=True, slots=True)
class Cost:
    """What making the answer took: milliseconds from request to last byte, and USD (None: no price known)."""

    ms: float = 0.0
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored answer.

    `key` and `scope` are 32-byte digests; `body` is the whole answer as the API's JSON object. Times are wall
    clock, seconds since 1970. `expires` is absolute; `keep_until` (>= expires) is how long a stale copy may be
    kept for requests that accept one. The cache never looks into `body`.
    """

    key: bytes
    scope: bytes
    tenant: str
    user: str
    endpoint: str
    api: str
    model: str
    backend: str
    body: bytes = field(repr=False)
    created: float
    expires: float
    keep_until: float
    usage: Usage = Usage()
    cost: Cost = Cost()
    upstream_id: str = ""
    tags: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes this entry is accounted for: body, strings, and a flat share for the objects around them."""
        strings = (self.tenant, self.user, self.endpoint, self.api, self.model, self.backend, self.upstream_id)
        return (
            len(self.body)
            + sum(map(len, strings))
            + sum(len(t) + 64 for t in (*self.tags, *self.documents))
            + ENTRY_OVERHEAD
        )

    def age(self, now: float) -> int:
        """Whole seconds since the answer was made, never negative (clocks may step back)."""
        return max(0, int(now - self.created))

    def stale_from(self, instant: float) -> Self:
        """The same, its life cut off at that instant. How long it may be kept as a stale one stays as it was."""
        return replace(self, expires=instant, keep_until=instant + (self.keep_until - self.expires))


ENTRY_OVERHEAD = 1024
"""Bytes charged per entry for its Python objects and its place in the indexes (measured: about 900)."""
