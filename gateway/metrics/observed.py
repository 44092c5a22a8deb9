"""What is measured of requests beyond the ledger, for /metrics: the look-ups of the tiers, and the calls of the
backends.

Hits of the exact tier are not: there is nothing to measure that the ledger does not have, and most requests are hits.
"""

from collections import Counter
from collections.abc import Callable
from typing import Self

from gateway.decisions import Decision
from gateway.ledger.ledger import MAX_MODELS, OTHER
from gateway.metrics.histogram import Histogram

TIER_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
CALL_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds: of a tier's look-up (among the ledger's), of an upstream call, and of one token after the first."""
MAX_CODES = 500


class Observed:
    """`lookups` by tier and result, `tiers` the times of those that took any; `calls` by backend and model, `tokens`
    by backend; `failures` by backend and code, `fallbacks` by the backend that failed and the one asked after it."""

    def __init__(self, known: Callable[[str], bool] = lambda model: False) -> None:
        """`known` says whether others than clients speak of a model."""
        self._known = known
        self.lookups: Counter[tuple[str, str]] = Counter()
        self.tiers: dict[tuple[str, str], Histogram] = {}
        self.calls: dict[tuple[str, str], Histogram] = {}
        self.tokens: dict[tuple[str], Histogram] = {}
        self.failures: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        self._models: set[str] = set()

    def copy(self) -> Self:
        """For another thread to look at: nothing is added to it."""
        made = type(self)(self._known)
        for name in ("lookups", "tiers", "calls", "tokens", "failures", "fallbacks", "_models"):
            setattr(made, name, getattr(self, name).copy())
        return made

    def request(self, d: Decision) -> None:
        """A request has ended that was no hit of the exact tier."""
        for tier in d.tiers:
            if tier.name == "prefix" or (tier.name, tier.result) == ("exact", "hit"):
                continue  # counted when a call ends (`lookup`), and by the ledger
            self.lookup(tier.name, tier.result)
            if tier.result != "skipped" and (ms := d.phases.get(tier.name)) is not None:
                key = (tier.name, tier.result)
                if key not in self.tiers:
                    self.tiers[key] = Histogram(TIER_SECONDS)
                self.tiers[key].add(ms / 1000)

    def lookup(self, tier: str, result: str) -> None:
        self.lookups[tier, result] += 1

    def call(self, backend: str, model: str, ms: float, *, first_ms: float | None, output: float) -> None:
        """A backend has given a whole answer of `output` tokens. `first_ms`: the time to its first event, None where it
        was not streamed. A client may name any model, and there are backends that answer for all of them."""
        if model not in self._models and (len(self._models) < MAX_MODELS or self._known(model)):
            self._models.add(model)
        if model not in self._models:
            model = OTHER
        if (backend, model) not in self.calls:
            self.calls[backend, model] = Histogram(CALL_SECONDS)
        self.calls[backend, model].add(ms / 1000)
        if first_ms is not None and output > 1:
            if (backend,) not in self.tokens:
                self.tokens[(backend,)] = Histogram(TOKEN_SECONDS)
            self.tokens[(backend,)].add((ms - first_ms) / 1000 / (output - 1))

    def failed(self, backend: str, code: str) -> None:
        """A call has failed. The code may be an upstream's word, and there is no end to those."""
        known = (backend, code) in self.failures or len(self.failures) < MAX_CODES
        self.failures[backend, code if known else OTHER] += 1

    def fell_back(self, backend: str, to: str) -> None:
        """After a call that failed another backend is asked."""
        self.fallbacks[backend, to] += 1
