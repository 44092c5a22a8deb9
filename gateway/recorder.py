"""Where finished decisions go: the ring and the ledger. Each goes there once, whoever ends it first."""

from time import perf_counter

import structlog

from cache.entry import Cost, Usage
from gateway.decisions import Decision, Ring, Tier
from gateway.ledger import Ledger

log = structlog.get_logger("refrain")


class Recorder:
    def __init__(self, ring: int) -> None:
        self.ring = Ring(ring)
        self.ledger = Ledger()

    def finish(self, decision: Decision, started: float) -> None:
        """`started` is the perf_counter() at which the request arrived."""
        if decision.finished:
            return
        decision.finished = True
        decision.ms = (perf_counter() - started) * 1000
        if decision.consumed:
            decision.settle()
        self.ring.add(decision)
        self.ledger.book(decision)
        if decision.error is not None:
            _log(decision)

    def charge(self, decision: Decision, usage: Usage, cost: Cost, cached: int | None = None) -> None:
        """An upstream call that was made for this request has ended; the request itself may have ended before.
        `cached`: how many of the prompt's tokens the backend had (None: it has not said)."""
        decision.phases["upstream"] = cost.ms
        if cached is not None:
            decision.tiers += (Tier("prefix", "hit" if cached else "miss", tokens=cached),)
            decision.cached = (decision.cached or 0) + cached
        decision.consumed += usage.total
        if cost.usd is not None:
            decision.usd = (decision.usd or 0.0) + cost.usd
        if decision.finished:
            decision.settle()
            self.ledger.charge(decision, usage.total, cost.usd or 0.0)


def _log(d: Decision) -> None:
    """Requests that failed are worth a line; those that went well are in the ring and the sums."""
    write = log.warning if d.status >= 499 else log.info
    write(
        "request failed",
        request_id=d.id,
        endpoint=d.endpoint,
        tenant=d.tenant,
        backend=d.backend,
        status=d.status,
        code=d.error,
        ms=round(d.ms, 1),
    )
