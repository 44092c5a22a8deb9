"""Other backends for a request whose own cannot answer (`endpoints.<name>.fallback`).

- They are asked in their order, and only as long as nothing of an answer has come: it could not go on elsewhere.
- What its own backend finds wrong with a request is the client's to hear. What another one does may be due to that
  one's models and limits, so the next is asked. If all fail, the client hears of the first that says when to come back,
  or else of its own backend.
- A backend's answers are looked for, and kept, under the key that the request has there, never under another one's. So
  its own backend is asked anew each time, and has its say as soon as it is back.
- To refresh an entry is its own backend's business: another one's answer would not take that entry's place.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

from cache.exact import ExactCache
from cache.freshness import judge
from cache.stores.memory import Slot
from gateway.ask import Ask
from gateway.decisions import Decision
from gateway.errors import ApiError
from gateway.heads import reuse
from gateway.visit import Visit

TOO_LARGE = "backend_reply_too_large"
"""It would be as large elsewhere."""


class Failure(NamedTuple):
    backend: str
    error: ApiError


class Chain:
    """Whom one request may be sent to when its own backend fails. `failures` are those of the backends that were asked,
    its own first, as long as nothing of an answer had come."""

    def __init__(self, names: Iterable[str]) -> None:
        self._left = list(names)
        self.failures: list[Failure] = []

    @classmethod
    def of(cls, ask: Ask) -> "Chain | None":
        """None where there is nobody else to ask."""
        names = ask.endpoint.config.fallback
        # A model may be routed to one of them.
        return cls(name for name in names if name != ask.backend.name) if names else None

    def after(self, backend: str, error: ApiError) -> str | None:
        """This backend has failed: who is to be asked now, if anybody is left."""
        self.failures.append(Failure(backend, error.fresh()))
        return self._left.pop(0) if self._left else None

    @property
    def told(self) -> Failure:
        """What the client hears where all have failed: of the first that says when to come back, or else of its own
        backend, for which the request was made."""
        return next((failure for failure in self.failures if "retry-after" in failure.error.headers), self.failures[0])

    def note(self, d: Decision, backend: str) -> None:
        """Write down who has failed, and who is asked now or has the last word."""
        d.failures = tuple((failure.backend, failure.error.word) for failure in self.failures)
        d.backend = backend


def may_go_elsewhere(error: ApiError) -> bool:
    """Has the request's own backend failed, or no time for it, rather than found it at fault?"""
    return (error.status >= 500 or error.status == 429) and error.code != TOO_LARGE


@dataclass(frozen=True, slots=True)
class Kept:
    """The answer in `slot`, which the backend now asked has given before; it may be used for `ttl` more seconds, and is
    so old at `now`, both by the clock by which it ages."""

    slot: Slot
    ttl: float
    now: float

    def book(self, visit: Visit) -> None:
        """Write the hit into the decision."""
        d = visit.decision
        d.outcome = "exact"
        # What the tiers that keep answers said was of the request's own backend.
        d.tiers = tuple(tier for tier in d.tiers if tier.name == "retrieval")
        visit.tier("exact", "hit", "fallback", int(self.ttl))
        reuse(d, self.slot.entry, self.now)


async def kept(
    cache: ExactCache, ask: Ask, waiting: Callable[[], Iterable[Ask]], clock: Callable[[], float]
) -> Kept | None:
    """A fresh answer of this backend that is kept, if it will do for all who wait for one. It is looked for whatever
    the endpoint's budget: a call would take longer in any case."""
    if ask.life is None or ask.bypass is not None or ask.directives.no_cache:
        return None
    slot = await cache.get(ask.key)
    if slot is None:
        return None
    asked = [ask.directives, *(other.directives for other in waiting())]
    if not all("exact" in directives.tiers for directives in asked):
        return None
    now = slot.now(clock(), monotonic())
    youngest = min((d.max_age for d in asked if d.max_age is not None), default=None)
    verdict = judge(slot.entry, ask.life, now, max_age=youngest)
    return Kept(slot, verdict.ttl, now) if verdict.usable and not verdict.stale else None
