"""An answer that serves another question than its own."""

from dataclasses import dataclass

from cache.stores.memory import Slot
from gateway.heads import reuse
from gateway.visit import Visit


@dataclass(frozen=True, slots=True)
class Reuse:
    """The answer in `slot`, whose question is as near as `similarity` (cosine); it may be used for `ttl` more
    seconds, and is so old at `now`, both by the clock by which it ages."""

    slot: Slot
    similarity: float
    ttl: float
    now: float

    def book(self, visit: Visit, why: str | None = None) -> None:
        """Write the hit into the decision."""
        entry = self.slot.entry
        visit.decision.outcome = "semantic"
        visit.tier("semantic", "hit", why, int(self.ttl), similarity=self.similarity, source=entry.key)
        reuse(visit.decision, entry, self.now)
