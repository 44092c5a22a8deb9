"""The ledger as Prometheus metrics: requests, times, tokens and money, of all tenants together.

A tenant is no label: with tokens of an identity provider no configuration bounds how many there are. `/admin/stats` and
the dashboard tell them apart.

A ledger may have ten thousand cells, so sums are made column by column. Those of money and time are exact (`fsum`):
another order of the same numbers must not make a counter go down by the last digit, for Prometheus takes that for a
restart.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from operator import attrgetter

from gateway.ledger.ledger import SECONDS, Key, Sums
from gateway.metrics.histogram import Histogram, coarser
from gateway.metrics.observed import TIER_SECONDS
from gateway.metrics.page import Page

TIERS = {"exact": "exact", "stale": "exact", "semantic": "semantic"}
"""The tier that answered, by outcome; the others were answered by a backend, or not at all."""
SHOWN = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0),
)
"""Of the ledger's bounds those that are shown, in seconds: each is a series for every endpoint and outcome."""
TOKENS = ("served", "unserved", "consumed", "billable", "estimated", "saved", "cached")
USD = {
    "unserved": "usd_unserved",
    "consumed": "usd",
    "billable": "usd_billable",
    "saved": "usd_saved",
    "overhead": "usd_overhead",
}
"""Kinds of money, and what the ledger calls them. What was served is a difference, which rounding may make smaller, and
a counter must not; so it is left out."""
_tokens = attrgetter(*TOKENS)
_usd = attrgetter(*USD.values())


class Cells:
    """What the ledger has, in groups. `label` gives the name under which a model is shown."""

    def __init__(self, rows: Iterable[tuple[Key, Sums]], label: Callable[[str], str]) -> None:
        self.endpoints: defaultdict[tuple[str], list[Sums]] = defaultdict(list)
        self.outcomes: defaultdict[tuple[str, str], list[Sums]] = defaultdict(list)
        self.models: defaultdict[tuple[str, str], list[Sums]] = defaultdict(list)
        for (_, endpoint, model, backend, outcome), sums in rows:
            self.endpoints[(endpoint,)].append(sums)
            self.outcomes[endpoint, outcome].append(sums)
            if model:
                self.models[backend, label(model)].append(sums)

    def exact_hits(self) -> tuple[int, Histogram]:
        """How many requests the exact tier answered, and the times of those that it answered from a fresh entry."""
        hits = [(outcome, sums) for (_, outcome), sums in self.outcomes.items() if TIERS.get(outcome) == "exact"]
        fresh = [cell for outcome, sums in hits if outcome == "exact" for cell in sums]
        return sum(cell.requests for _, sums in hits for cell in sums), _times(fresh, "buckets", "ms", TIER_SECONDS)


def write_requests(page: Page, cells: Cells) -> None:
    labels = ("endpoint", "outcome")
    page.counter(
        "refrain_requests_total",
        "Requests by endpoint, answering tier, outcome.",
        ("endpoint", "tier", "outcome"),
        {
            (endpoint, TIERS.get(outcome, "none"), outcome): sum(cell.requests for cell in found)
            for (endpoint, outcome), found in cells.outcomes.items()
        },
    )
    page.histogram(
        "refrain_request_seconds",
        "Time from a request's arrival to its last byte.",
        labels,
        {key: _times(found, "buckets", "ms") for key, found in cells.outcomes.items()},
    )
    page.histogram(
        "refrain_first_token_seconds",
        "Time from a request's arrival to the first byte of its answer.",
        labels,
        {
            key: times
            for key, found in cells.outcomes.items()
            if any((times := _times(found, "first_buckets", "first_ms")).counts)  # errors have none
        },
    )
    page.counter(
        "refrain_saved_seconds_total",
        "Time that upstream calls would have taken which reuse has made needless.",
        ("endpoint",),
        {key: ms / 1000 for key, found in cells.endpoints.items() if (ms := fsum(cell.ms_saved for cell in found))},
    )


def write_sums(page: Page, cells: Cells) -> None:
    """Tokens and money, by endpoint and by model; a kind that there has been none of is left out."""
    endpoint, model = ("endpoint",), ("backend", "model")
    for labels, groups, name in ((endpoint, cells.endpoints, "refrain"), (model, cells.models, "refrain_model")):
        tokens: dict[tuple[str, ...], float] = {}
        usd: dict[tuple[str, ...], float] = {}
        for key, found in groups.items():
            for kind, counts in zip(TOKENS, zip(*map(_tokens, found), strict=True), strict=True):
                if count := sum(counts):
                    tokens[*key, kind] = count
            for kind, amounts in zip(USD, zip(*map(_usd, found), strict=True), strict=True):
                if amount := fsum(amounts):
                    usd[*key, kind] = amount
        page.counter(f"{name}_tokens_total", "Tokens by where they went.", (*labels, "kind"), tokens)
        page.counter(f"{name}_usd_total", "USD by where they went.", (*labels, "kind"), usd)


def write_errors(page: Page, errors: Mapping[tuple[str, str], int]) -> None:
    page.counter("refrain_errors_total", "Requests that ended in an error.", ("endpoint", "code"), errors)


def _times(found: Sequence[Sums], buckets: str, ms: str, shown: Sequence[float] = SHOWN) -> Histogram:
    """Times of several sums as one histogram, in seconds. `buckets` and `ms` name what is to be added up."""
    times = Histogram(shown)
    if found:
        counts = [sum(column) for column in zip(*map(attrgetter(buckets), found), strict=True)]
        times.counts = coarser(SECONDS, counts, shown)
        times.total = fsum(map(attrgetter(ms), found)) / 1000
    return times
