"""Where finished decisions go: the ring and the ledger. Each goes there once, whoever ends it first."""

from time import perf_counter

import structlog

from gateway.decisions import Decision, Ring
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
        self.ring.add(decision)
        self.ledger.book(decision)
        if decision.error is not None:
            _log(decision)


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
