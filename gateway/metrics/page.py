"""A page of metrics for Prometheus: families given whole, written by prometheus_client."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.histogram import Histogram

CONTENT_TYPE = CONTENT_TYPE_LATEST
L = TypeVar("L", bound=tuple[str, ...])


class Page(Collector):
    """Families of metrics, each given once. Samples are given by the values of their labels, in the order of the
    labels' names."""

    def __init__(self) -> None:
        self._families: list[Metric] = []

    def counter(self, name: str, text: str, labels: Sequence[str], samples: Mapping[L, float]) -> None:
        self._plain(CounterMetricFamily(name, text, labels=labels), samples)

    def gauge(self, name: str, text: str, labels: Sequence[str], samples: Mapping[L, float]) -> None:
        self._plain(GaugeMetricFamily(name, text, labels=labels), samples)

    def number(self, name: str, text: str, value: float) -> None:
        """A gauge without labels."""
        self.gauge(name, text, (), {(): value})

    def histogram(self, name: str, text: str, labels: Sequence[str], samples: Mapping[L, Histogram]) -> None:
        family = HistogramMetricFamily(name, text, labels=labels)
        for values, found in samples.items():
            bounds = [*map(str, found.bounds), "+Inf"]
            family.add_metric(values, list(zip(bounds, accumulate(found.counts), strict=True)), found.total)
        self._families.append(family)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)

    def text(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def _plain(self, family: CounterMetricFamily | GaugeMetricFamily, samples: Mapping[L, float]) -> None:
        for values, value in samples.items():
            family.add_metric(values, value)
        self._families.append(family)
