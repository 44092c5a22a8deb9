"""One request on its way: what the steps of the pipeline share."""

from dataclasses import dataclass
from time import perf_counter

from cache.stores.memory import Slot
from gateway.asgi import Outlet
from gateway.ask import Ask
from gateway.auth import Credential
from gateway.decisions import Decision, Tier
from gateway.front import Incoming
from gateway.heads import JSON, SSE, Header, decision_headers
from gateway.snapshot import Snapshot


@dataclass(slots=True)
class Visit:
    """`credential` is what the client came in by, None before it has; `spare` is a stale answer that may stand in for a
    backend's error, found at `mark` in the order of purges."""

    snapshot: Snapshot
    incoming: Incoming
    decision: Decision
    outlet: Outlet
    credential: Credential | None = None
    spare: Slot | None = None
    mark: int = 0

    def phase(self, name: str, since: float) -> float:
        """Book the time since `since` (perf_counter) as a phase; gives the time of now, where the next one begins."""
        now = perf_counter()
        self.decision.phases[name] = (now - since) * 1000
        return now

    def tier(
        self,
        name: str,
        result: str,
        why: str | None = None,
        ttl: int | None = None,
        *,
        similarity: float | None = None,
        source: str | None = None,
    ) -> None:
        self.decision.tiers += (Tier(name, result, why, ttl, similarity, source),)

    def headers(self, ask: Ask) -> list[Header]:
        """The head of a good answer in the form that was asked for."""
        return [JSON if ask.form == "json" else SSE, *self.head()]

    def head(self) -> list[Header]:
        """What every answer says, errors too: the decision, and what is left of the limits."""
        credential = self.credential
        limits = credential.meter.headers() if credential is not None and credential.meter is not None else ()
        return [*decision_headers(self.decision), *limits]

    def charge(self, tokens: int, usd: float) -> None:
        """Count what an upstream call has taken against the limits of whoever it was made for."""
        if self.credential is not None and self.credential.meter is not None:
            self.credential.meter.charge(tokens, usd)
