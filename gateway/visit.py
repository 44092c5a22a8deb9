"""One request on its way: what the steps of the pipeline share."""

from dataclasses import dataclass
from time import perf_counter

from backends.base import Priority
from cache.stores.memory import Slot
from gateway.asgi import Outlet
from gateway.ask import Ask
from gateway.auth import Credential
from gateway.decisions import Decision, PartTier, Tier, plain_tier
from gateway.front import Incoming
from gateway.heads import JSON, SSE, Header, decision_headers
from gateway.ledger.sums import Charge
from gateway.snapshot import Snapshot
from gateway.why.nearest import Before


@dataclass(slots=True)
class Visit:
    """`credential` is what the client came in by, None before it has; `spare` is a stale answer that may stand in for a
    backend's error, found at `mark` in the order of purges; `spent` is what the cache's own work has cost and
    nobody has charged yet; `deadline` is when its answer has to begin, by perf_counter(); `batch`: it was made by the
    batch lane, whatever its endpoint's priority."""

    snapshot: Snapshot
    incoming: Incoming
    decision: Decision
    outlet: Outlet
    credential: Credential | None = None
    spare: Slot | None = None
    mark: int = 0
    spent: Charge | None = None
    deadline: float | None = None
    batch: bool = False
    ask: Ask | None = None  # what no cache has answered, when so much was `known` of what was asked before
    known: Before | None = None

    def phase(self, name: str, since: float) -> float:
        """Book the time since `since` (perf_counter) as a phase; gives the time of now, where the next one begins."""
        now = perf_counter()
        self.decision.phases[name] = (now - since) * 1000
        return now

    def left(self, budget: float | None) -> float | None:
        """Seconds that are left of so many since the request arrived; None where there is no budget."""
        return None if budget is None else budget - (perf_counter() - self.incoming.started)

    def priority(self, ask: Ask) -> Priority:
        """The class of the calls that are made for it."""
        return "batch" if self.batch else ask.endpoint.config.priority

    def tier(
        self,
        name: str,
        result: str,
        why: str | None = None,
        ttl: int | None = None,
        *,
        similarity: float | None = None,
        source: bytes | None = None,
    ) -> None:
        if ttl is None and similarity is None and source is None:
            tier = plain_tier(name, result, why)
        else:
            tier = Tier(name, result, why, ttl, similarity, source)
        self.decision.tiers += (tier,)

    def part_tier(self, name: str, why: str | None, ttl: int | None, hits: str) -> None:
        """A miss of a part: see PartTier."""
        self.decision.tiers += (PartTier(name, "miss", why, ttl, hits),)

    def headers(self, ask: Ask) -> list[Header]:
        """The head of a good answer in the form that was asked for."""
        return [JSON if ask.form == "json" else SSE, *self.head()]

    def head(self) -> list[Header]:
        """What every answer says, errors too: the decision, and what is left of the limits."""
        credential = self.credential
        limits = credential.meter.headers() if credential is not None and credential.meter is not None else ()
        return [*decision_headers(self.decision), *limits]

    def take_spent(self) -> Charge | None:
        """What is spent, for whoever charges it."""
        spent, self.spent = self.spent, None
        return spent

    def charge(self, tokens: int, usd: float) -> None:
        """Count what an upstream call has taken against the limits of whoever it was made for."""
        if self.credential is not None and self.credential.meter is not None:
            self.credential.meter.charge(tokens, usd)
