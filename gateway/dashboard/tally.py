"""The ledger's sums over a stretch of time, put together as the overview shows them. Pure: no clock and no I/O."""

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

from gateway.ledger.ledger import Summary, Sums, percentile
from gateway.ledger.stats import tier_of, tokens, usd

MINUTE, HOUR, DAY = 60, 3600, 86_400
RANGES: Mapping[str, tuple[int, int]] = {
    "15m": (15 * MINUTE, MINUTE),
    "1h": (HOUR, MINUTE),
    "6h": (6 * HOUR, 10 * MINUTE),
    "24h": (DAY, 10 * MINUTE),
    "7d": (7 * DAY, HOUR),
    "30d": (30 * DAY, DAY),
}
"""Name -> seconds that are shown, seconds of one point."""
ALL = "all"
MOST_POINTS = 400
ERROR = "error"
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Window(NamedTuple):
    """From `start` on (wall-clock seconds, a multiple of `step`), `points` steps of `step` seconds. The last one is
    under way; those before it change no more."""

    start: int
    step: int
    points: int

    @property
    def current(self) -> int:
        """When the point began that is under way."""
        return self.start + (self.points - 1) * self.step

    @property
    def end(self) -> int:
        return self.start + self.points * self.step


def window(name: str, now: float, first: float | None = None) -> Window:
    """The window of a range's name; that of `all` begins with the day of `first` (None: today)."""
    if name == ALL:
        begin = now if first is None else min(now, first)
        step = DAY * ceil(((now - begin) // DAY + 1) / MOST_POINTS)
        points = int(now // step) - int(begin // step) + 1
    else:
        seconds, step = RANGES[name]
        points = seconds // step
    return Window((int(now // step) + 1 - points) * step, step, points)


def as_dict(summary: Summary, span: Window) -> dict[str, Any]:
    """The part of the overview that the ledger knows."""
    outcomes, total = summary.outcomes, Sums()
    for sums in outcomes.values():
        total.merge(sums)
    return {
        "range": {"from": span.start, "to": span.end, "step": span.step},
        "totals": {
            "requests": {outcome: s.requests for outcome, s in outcomes.items()},
            "errors": total.errors,
            "tokens": tokens(total),
            "usd": usd(total),
            "ms_saved": round(total.ms_saved, 1),
            "hit_rate": _hit_rate(outcomes),
        },
        "outcomes": {outcome: _times(sums) for outcome, sums in outcomes.items()},
        "series": _series(summary, span),
        "endpoints": [line._asdict() for line in summary.endpoints],
        "tenants": [line._asdict() for line in summary.tenants],
        "models": [line._asdict() for line in summary.models],
        "prefix": {"input": total.prompt, "cached": total.cached},
    }


def _hit_rate(outcomes: Mapping[str, Sums]) -> float | None:
    """Of the requests that were answered for, those that took no call of their own; None of none."""
    asked = {outcome: s.requests for outcome, s in outcomes.items() if outcome != ERROR}
    hits = sum(count for outcome, count in asked.items() if is_reuse(outcome))
    return round(hits / sum(asked.values()), 6) if sum(asked.values()) else None


def _series(summary: Summary, span: Window) -> dict[str, Any]:
    times = [span.start + n * span.step for n in range(span.points)]
    points = [[p for outcome in summary.outcomes if (p := summary.points.get((time, outcome)))] for time in times]
    return {
        "time": times,
        "requests": {
            outcome: [p.requests if (p := summary.points.get((time, outcome))) else 0 for time in times]
            for outcome in summary.outcomes
        },
        "tokens": {
            "saved": [sum(p.saved for p in found) for found in points],
            "consumed": [sum(p.consumed for p in found) for found in points],
        },
        "usd": {
            "saved": [sum(p.usd_saved for p in found) for found in points],
            "consumed": [sum(p.usd_consumed for p in found) for found in points],
        },
        "ms_saved": [round(sum(p.ms_saved for p in found), 1) for found in points],
    }


def is_reuse(outcome: str) -> bool:
    """Was it answered without an upstream call of its own?"""
    return tier_of(outcome) != "backend"


def _times(sums: Sums) -> dict[str, Any]:
    out: dict[str, Any] = {"requests": sums.requests}
    for prefix, buckets in (("", sums.buckets), ("first_", sums.first_buckets)):
        for name, q in QUANTILES.items():
            ms = percentile(buckets, q)
            out[prefix + name] = None if ms is None else round(ms, 3)
    return out
