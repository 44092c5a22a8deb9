"""Where finished decisions go: the ring and the ledger. Each goes there once, whoever ends it first."""

import time
from collections.abc import Callable
from time import perf_counter

import structlog

from gateway.decisions import Decision, Tier
from gateway.hits import Facts
from gateway.ledger.ledger import Charge, Ledger
from gateway.metrics.observed import Observed
from gateway.ring import Ring

log = structlog.get_logger("refrain")


class Recorder:
    """`clock` is wall-clock seconds, `known` as the ledger wants it."""

    def __init__(
        self, ring: int, clock: Callable[[], float] = time.time, known: Callable[[str], bool] = lambda model: False
    ) -> None:
        self.ring = Ring(ring)
        self.ledger = Ledger(clock, known)
        self.observed = Observed(known)
        self._add_hit, self._book_hit = self.ring.add_hit, self.ledger.book_hit

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
        if decision.outcome != "exact" or decision.tiers[0].name != "exact":
            self.observed.request(decision)
        if decision.error is not None:
            _log(decision)

    def hit(self, facts: Facts, number: int, at: float, started: float, age: int, ttl: int) -> None:
        """`finish` for the short way; the record is what these make as a `Hit`."""
        ms = (perf_counter() - started) * 1000
        self._add_hit(facts, number, at, ms, age, ttl)
        self._book_hit(facts, ms)

    def charge(self, decision: Decision, charge: Charge) -> None:
        """A call that was made for this request has ended; the request itself may have ended before."""
        if not charge.overhead:
            decision.phases["upstream"] = charge.ms
        if (cached := charge.cached) is not None:
            decision.tiers += (Tier("prefix", "hit" if cached else "miss", tokens=cached),)
            self.observed.lookup("prefix", "hit" if cached else "miss")
            decision.cached = (decision.cached or 0) + cached
        decision.prompt += charge.prompt
        decision.consumed += charge.tokens
        decision.billable += charge.billable
        decision.estimated += charge.estimated
        decision.usd = _plus(decision.usd, charge.usd)
        decision.usd_billable = _plus(decision.usd_billable, charge.usd_billable)
        decision.usd_overhead = _plus(decision.usd_overhead, charge.usd_overhead)
        if decision.finished:
            decision.settle()
            self.ledger.charge(decision, charge)


def _plus(one: float | None, other: float | None) -> float | None:
    return other if one is None else one + (other or 0.0)


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
