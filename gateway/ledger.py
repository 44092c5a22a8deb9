"""Sums of decisions since the start, by tenant, endpoint and outcome. `/admin/stats` and `/metrics` are views of them.

Kept apart: served (in answers that clients got), consumed (by upstream calls), unserved (consumed, but nobody got
it), saved (served without an upstream call), billable (what is to be paid for: consumed). For every sum
served + unserved = consumed + saved.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gateway.decisions import Decision

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the buckets in which request times are counted."""
MAX_CODES = 500
_MS = tuple(s * 1000 for s in SECONDS)


class Cell:
    """Plain numbers: this is written to on every hit. `buckets` has one more than SECONDS, for what is slower."""

    __slots__ = (
        "buckets",
        "consumed",
        "ms",
        "requests",
        "saved",
        "served",
        "unserved",
        "usd",
        "usd_saved",
        "usd_unserved",
    )

    def __init__(self) -> None:
        self.requests = self.served = self.unserved = self.consumed = self.saved = 0
        self.ms = self.usd = self.usd_saved = self.usd_unserved = 0.0
        self.buckets = [0] * (len(SECONDS) + 1)

    def add(self, d: Decision) -> None:
        self.requests += 1
        self.ms += d.ms
        self.buckets[bisect_left(_MS, d.ms)] += 1
        self.served += d.served
        self.saved += d.saved
        self.usd_saved += d.usd_saved or 0.0
        if d.consumed or d.usd:  # on a hit there is neither
            self.consumed += d.consumed
            self.unserved += d.unserved
            self.usd += d.usd or 0.0
            if d.unserved or d.error is not None:
                self.usd_unserved += d.usd or 0.0

    def charge(self, tokens: int, usd: float) -> None:
        """A call that nobody waited for to its end."""
        self.consumed += tokens
        self.unserved += tokens
        self.usd += usd
        self.usd_unserved += usd


class Ledger:
    def __init__(self) -> None:
        self._cells: dict[tuple[str, str, str], Cell] = {}
        self.errors: Counter[tuple[str, str]] = Counter()  # (endpoint, code)

    def book(self, d: Decision) -> None:
        self._cell(d).add(d)
        if d.error is not None:
            # A code may be an upstream's word, and there is no end to those.
            known = (d.endpoint, d.error) in self.errors or len(self.errors) < MAX_CODES
            self.errors[d.endpoint, d.error if known else "other"] += 1

    def charge(self, d: Decision, tokens: int, usd: float) -> None:
        """Add to a decision that was booked before its upstream call had ended."""
        self._cell(d).charge(tokens, usd)

    def _cell(self, d: Decision) -> Cell:
        key = (d.tenant, d.endpoint, d.outcome or "error")
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell()
        return cell

    def cells(self, tenant: str | None = None) -> Iterator[tuple[str, str, Cell]]:
        """(endpoint, outcome, sums) of one tenant, or of all (None); an endpoint comes once for each tenant."""
        return ((e, o, cell) for (t, e, o), cell in self._cells.items() if tenant is None or t == tenant)

    def stats(self, tenant: str | None = None) -> dict[str, Any]:
        requests: Counter[str] = Counter()
        total = Cell()
        for _, outcome, cell in self.cells(tenant):
            requests[outcome] += cell.requests
            for name in ("served", "unserved", "consumed", "saved", "usd", "usd_saved", "usd_unserved"):
                setattr(total, name, getattr(total, name) + getattr(cell, name))
        t = total
        return {
            "requests": dict(requests),
            "tokens": {
                "served": t.served,
                "unserved": t.unserved,
                "consumed": t.consumed,
                "billable": t.consumed,
                "saved": t.saved,
            },
            "usd": {
                "served": t.usd + t.usd_saved - t.usd_unserved,
                "unserved": t.usd_unserved,
                "consumed": t.usd,
                "billable": t.usd,
                "saved": t.usd_saved,
            },
        }
