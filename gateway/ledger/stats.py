"""The books in figures: tokens and money, in all and by what they are kept apart by."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Any

from gateway.ledger.sums import NUMBERS, Sums, numbers
from gateway.ledger.table import Key

Numbers = Sequence[float]
NOTHING: Numbers = (0,) * len(NUMBERS)

SIDES = ("served", "unserved", "consumed", "billable", "saved")
TIERS = {"exact": "exact", "stale": "exact", "semantic": "semantic", "joined": "joined"}


def tier_of(outcome: str) -> str:
    """The tier that answered requests of this outcome; the backend, or nobody, is "backend"."""
    return TIERS.get(outcome, "backend")


VIEWS: dict[str, Callable[[Key], str]] = {
    "endpoint": lambda key: key.endpoint,
    "tenant": lambda key: key.tenant,
    "model": lambda key: key.model,
    "tier": lambda key: tier_of(key.outcome),
}


def stats(books: Iterable[tuple[Key, Sums]]) -> dict[str, Any]:
    """{"requests": {outcome: n}, "tokens": {...}, "usd": {...}, "by": {view: {name: {"requests": n, ...}}}, "parts"}:
    of tokens and USD the SIDES, and in "parts" what is a part of the consumed ones."""
    requests: Counter[str] = Counter()
    total: Numbers = NOTHING
    by: dict[str, dict[str, Numbers]] = {view: {} for view in VIEWS}
    for key, sums in books:
        mine = numbers(sums)
        requests[key.outcome] += sums.requests
        total = list(map(add, total, mine))
        for view, name_of in VIEWS.items():
            found, name = by[view], name_of(key)
            found[name] = list(map(add, found.get(name, NOTHING), mine))
    whole = _sums(total)
    return {
        "requests": dict(requests),
        **_sides(whole),
        "by": {
            view: {name: {"requests": (s := _sums(found)).requests, **_sides(s)} for name, found in names.items()}
            for view, names in by.items()
        },
        "parts": {
            unit: {name: value for name, value in found.items() if name not in SIDES}
            for unit, found in (("tokens", tokens(whole)), ("usd", usd(whole)))
        },
    }


def _sums(found: Numbers) -> Sums:
    sums = Sums()
    for name, value in zip(NUMBERS, found, strict=True):
        setattr(sums, name, value)
    return sums


def _sides(sums: Sums) -> dict[str, Any]:
    both = (("tokens", tokens(sums)), ("usd", usd(sums)))
    return {unit: {name: found[name] for name in SIDES} for unit, found in both}


def tokens(s: Sums) -> dict[str, int]:
    """What comes in equals what goes out; `cached` and `estimated` are parts of what was consumed."""
    names = ("served", "unserved", "consumed", "billable", "saved", "cached", "estimated")
    return {name: getattr(s, name) for name in names}


def usd(s: Sums) -> dict[str, float]:
    """As the tokens; `overhead`, the cache's own work, is a part of what was consumed."""
    return {
        "served": s.usd + s.usd_saved - s.usd_unserved,
        "unserved": s.usd_unserved,
        "consumed": s.usd,
        "billable": s.usd_billable,
        "saved": s.usd_saved,
        "overhead": s.usd_overhead,
    }
