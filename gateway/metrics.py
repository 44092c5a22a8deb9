"""Prometheus metrics: a view of decisions and of the store, in a registry of the application's own."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache.stores.base import StoreStats
from gateway.decisions import Decision

disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series and nobody reads them

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "refrain_requests",
            "Requests by endpoint, answering tier and outcome.",
            ["endpoint", "tier", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "refrain_request_seconds",
            "Time from the request's arrival to the last byte of its answer.",
            ["endpoint", "outcome"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "refrain_tokens", "Tokens served, consumed upstream, saved.", ["endpoint", "kind"], registry=self.registry
        )
        self._usd = Counter("refrain_usd", "USD spent upstream, saved.", ["endpoint", "kind"], registry=self.registry)
        self._errors = Counter(
            "refrain_errors", "Requests that ended in an error.", ["endpoint", "code"], registry=self.registry
        )
        # labels() costs more than the rest of a hit's accounting together, so its results are kept.
        self._children: dict[tuple[str, str | None], tuple[Counter, Histogram]] = {}

    def observe(self, d: Decision) -> None:
        children = self._children.get((d.endpoint, d.outcome))
        if children is None:
            outcome = d.outcome or "error"
            tier = {"exact": "exact", "stale": "exact", "semantic": "semantic"}.get(outcome, "none")
            children = (self._requests.labels(d.endpoint, tier, outcome), self._seconds.labels(d.endpoint, outcome))
            self._children[d.endpoint, d.outcome] = children
        children[0].inc()
        children[1].observe(d.ms / 1000)
        if d.error is not None:
            self._errors.labels(d.endpoint, d.error).inc()
        if d.saved:
            self._tokens.labels(d.endpoint, "saved").inc(d.saved)
            self._usd.labels(d.endpoint, "saved").inc(d.usd_saved or 0.0)
        elif d.consumed:
            self._tokens.labels(d.endpoint, "consumed").inc(d.consumed)
            self._usd.labels(d.endpoint, "consumed").inc(d.usd or 0.0)
        if d.served:
            self._tokens.labels(d.endpoint, "served").inc(d.served)

    def render(self, stores: dict[str, StoreStats], backends: dict[str, bool]) -> bytes:
        """The exposition text; `stores` and `backends` are the gauges of this moment."""
        moment = CollectorRegistry()
        moment.register(_Moment(stores, backends))
        return generate_latest(self.registry) + generate_latest(moment)


class _Moment(Collector):
    def __init__(self, stores: dict[str, StoreStats], backends: dict[str, bool]) -> None:
        self._stores = stores
        self._backends = backends

    def collect(self) -> Iterable[Metric]:
        def gauge(name: str, text: str, label: str, values: dict[str, float]) -> GaugeMetricFamily:
            family = GaugeMetricFamily(name, text, labels=[label])
            for key, value in values.items():
                family.add_metric([key], value)
            return family

        stores = self._stores
        yield gauge("refrain_entries", "Entries kept.", "store", {n: s.entries for n, s in stores.items()})
        yield gauge("refrain_store_bytes", "Bytes kept.", "store", {n: s.bytes for n, s in stores.items()})
        yield gauge("refrain_store_evicted", "Evicted since start.", "store", {n: s.evicted for n, s in stores.items()})
        yield gauge("refrain_store_healthy", "1 if it answers.", "store", {n: s.healthy for n, s in stores.items()})
        yield gauge("refrain_backend_ready", "1 if it can answer.", "backend", dict(self._backends))
