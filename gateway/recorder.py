"""Where finished decisions go: the ring and the ledger. Each goes there once, whoever ends it first."""

from time import perf_counter

from gateway.decisions import Decision, Ring
from gateway.ledger import Ledger


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
