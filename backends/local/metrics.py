"""What the engine counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "refrain_engine_requests", "Requests by HTTP status.", ["status"], registry=self._registry
        )
        self.tokens = Counter(
            "refrain_engine_tokens",
            "Tokens of finished requests, kind prompt or completion.",
            ["kind"],
            registry=self._registry,
        )
        self.busy = Counter(
            "refrain_engine_busy_seconds", "Seconds in which the model worked.", registry=self._registry
        )
        self.waiting = Gauge("refrain_engine_waiting", "Requests in the queue.", registry=self._registry)

    def render(self) -> bytes:
        return generate_latest(self._registry)
