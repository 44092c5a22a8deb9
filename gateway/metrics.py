"""Prometheus metrics: a view of the ledger, the stores and the backends, made when it is asked for."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cache.stores.base import StoreStats
from gateway.ledger import SECONDS, Cell, Ledger

TIERS = {"exact": "exact", "stale": "exact", "semantic": "semantic"}
"""The tier that answered, by outcome; the others were answered by a backend, or not at all."""


def render(
    ledger: Ledger,
    stores: Mapping[str, StoreStats],
    ready: Mapping[str, bool],
    *,
    flights: int,
    listeners: int,
    semantic: Mapping[str, Any],
) -> bytes:
    """The exposition text; `ready` says of each backend whether it can answer, `flights` how many upstream calls are in
    progress, `listeners` how many clients wait for them, and `semantic` what the semantic tier says of itself."""
    registry = CollectorRegistry()
    registry.register(_View(ledger, stores, ready))
    registry.register(_Semantic(semantic))
    Gauge("refrain_flights", "Upstream calls in progress.", registry=registry).set(flights)
    Gauge("refrain_flight_listeners", "Clients that wait for them.", registry=registry).set(listeners)
    return generate_latest(registry)


class _View(Collector):
    def __init__(self, ledger: Ledger, stores: Mapping[str, StoreStats], ready: Mapping[str, bool]) -> None:
        self._ledger = ledger
        self._stores = stores
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._sums()
        errors = CounterMetricFamily("refrain_errors", "Requests that ended in an error.", labels=["endpoint", "code"])
        for labels, count in self._ledger.errors.items():
            errors.add_metric(labels, count)
        yield errors
        stores = self._stores
        yield _gauge("refrain_entries", "Entries kept.", "store", {n: s.entries for n, s in stores.items()})
        yield _gauge("refrain_store_bytes", "Bytes kept.", "store", {n: s.bytes for n, s in stores.items()})
        yield _gauge("refrain_store_healthy", "1 if it answers.", "store", {n: s.healthy for n, s in stores.items()})
        yield _gauge("refrain_backend_ready", "1 if it can answer.", "backend", self._ready)
        evicted = CounterMetricFamily("refrain_evictions", "Entries that made room for others.", labels=["store"])
        for name, stats in stores.items():
            evicted.add_metric([name], stats.evicted)
        yield evicted
        dropped = CounterMetricFamily("refrain_store_dropped", "Writes that the store gave up.", labels=["store"])
        for name, stats in stores.items():
            dropped.add_metric([name], stats.dropped)
        yield dropped

    def _requests(self) -> Iterator[Metric]:
        labels = ["endpoint", "tier", "outcome"]
        requests = CounterMetricFamily(
            "refrain_requests", "Requests by endpoint, answering tier, outcome.", labels=labels
        )
        text = "Time from a request's arrival to its last byte."
        seconds = HistogramMetricFamily("refrain_request_seconds", text, labels=["endpoint", "outcome"])
        grouped: defaultdict[tuple[str, str], list[Cell]] = defaultdict(list)
        for endpoint, outcome, cell in self._ledger.cells():
            grouped[endpoint, outcome].append(cell)
        for (endpoint, outcome), cells in grouped.items():
            requests.add_metric([endpoint, TIERS.get(outcome, "none"), outcome], sum(c.requests for c in cells))
            counts = accumulate(sum(bucket) for bucket in zip(*(c.buckets for c in cells), strict=True))
            bounds = [*map(str, SECONDS), "+Inf"]
            total = sum(c.ms for c in cells) / 1000
            seconds.add_metric([endpoint, outcome], list(zip(bounds, counts, strict=True)), total)
        yield requests
        yield seconds

    def _sums(self) -> Iterator[Metric]:
        tokens = CounterMetricFamily("refrain_tokens", "Tokens by where they went.", labels=["endpoint", "kind"])
        usd = CounterMetricFamily("refrain_usd", "USD by where they went.", labels=["endpoint", "kind"])
        sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        money: defaultdict[tuple[str, str], float] = defaultdict(float)
        for endpoint, _, cell in self._ledger.cells():
            for kind in ("served", "unserved", "consumed", "saved"):
                sums[endpoint, kind] += getattr(cell, kind)
            money[endpoint, "consumed"] += cell.usd
            money[endpoint, "saved"] += cell.usd_saved
        for family, values in ((tokens, sums), (usd, money)):
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family


class _Semantic(Collector):
    """`stats` as gateway.semantics gives them."""

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        ready = GaugeMetricFamily("refrain_semantic_ready", "1 if the semantic tier can answer.")
        ready.add_metric([], float(stats["state"] == "ready"))
        yield ready
        if stats["state"] == "off":
            return
        lookups = CounterMetricFamily(
            "refrain_semantic_lookups", "Look-ups of the semantic tier by what came of them.", labels=["result"]
        )
        for result, count in {"hit": stats["hits"], **stats["misses"]}.items():
            lookups.add_metric([result], count)
        yield lookups
        reports = CounterMetricFamily("refrain_semantic_reports", "Answers that were judged.", labels=["verdict"])
        for verdict, count in stats["reported"].items():
            reports.add_metric([verdict], count)
        yield reports
        for name, text in (("questions", "Questions known."), ("vectors", "Vectors kept."), ("bytes", "Bytes taken.")):
            family = GaugeMetricFamily(f"refrain_semantic_{name}", text)
            family.add_metric([], stats[name])
            yield family


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
