"""What the engine counts, for Prometheus."""

import time
from collections import deque
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from backends.base import Priority

WINDOW = 60.0
"""Seconds that the rates look back."""
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)


class Metrics:
    """`stepped`, `computed` and so on are called from the model's thread, `render` from the server's."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter("refrain_engine_requests", "Requests by HTTP status.", ["status"], registry=registry)
        self.tokens = Counter(
            "refrain_engine_tokens",
            "Tokens of finished requests, kind prompt or completion.",
            ["kind"],
            registry=registry,
        )
        self.made = Counter("refrain_engine_made_tokens", "Tokens made, of unfinished requests too.", registry=registry)
        self._prompt = Counter(
            "refrain_engine_prefill_tokens",
            "Tokens of prompts, computed or reused from the prefix cache.",
            ["source"],
            registry=registry,
        )
        self._lookups = Counter(
            "refrain_engine_prefix_lookups", "Prompts by what the prefix cache had.", ["outcome"], registry=registry
        )
        self.busy = Counter("refrain_engine_busy_seconds", "Seconds in which the model worked.", registry=registry)
        self.waiting = Gauge("refrain_engine_waiting", "Requests in the queue.", ["priority"], registry=registry)
        self.running = Gauge("refrain_engine_running", "Choices being written.", ["priority"], registry=registry)
        self.kv_total = Gauge("refrain_engine_kv_capacity_tokens", "Tokens there is memory for.", registry=registry)
        self.kv_used = Gauge(
            "refrain_engine_kv_used_tokens", "Tokens that requests and the prefix cache hold.", registry=registry
        )
        self.kv_prefix = Gauge("refrain_engine_kv_prefix_tokens", "Those of the prefix cache.", registry=registry)
        self.preempted = Counter(
            "refrain_engine_preempted",
            "Choices that had to give their place or their memory to others.",
            ["priority"],
            registry=registry,
        )
        for priority in PRIORITIES:
            for gauge in (self.waiting, self.running, self.preempted):
                gauge.labels(priority)  # 0, where it would be missing
        self.ended = Counter(
            "refrain_engine_ended", "Requests that came to no end, by reason.", ["reason"], registry=registry
        )
        self._phases = Histogram(
            "refrain_engine_phase_seconds",
            "Of whole answers: in the queue, to the first token, from there to the last.",
            ["phase"],
            buckets=SECONDS,
            registry=registry,
        )
        self._rate = Gauge("refrain_engine_tokens_per_second", "Tokens made, over the last minute.", registry=registry)
        self._share = Gauge(
            "refrain_engine_busy_share", "Share of the last minute in which the model worked.", registry=registry
        )
        self._steps: deque[tuple[float, float, float]] = deque([(time.monotonic(), 0.0, 0.0)])
        self._made = self._busy = 0.0

    def stepped(self, seconds: float, made: int) -> None:
        """A step of the model took so long and made so many tokens."""
        self.busy.inc(seconds)
        self.made.inc(made)
        self._busy += seconds
        self._made += made
        now = time.monotonic()
        if now - self._steps[-1][0] >= 1:
            self._steps.append((now, self._made, self._busy))
            while now - self._steps[0][0] > WINDOW and len(self._steps) > 1:
                self._steps.popleft()

    def looked_up(self, tokens: int) -> None:
        """The prefix cache had so many tokens of a prompt."""
        self._lookups.labels("hit" if tokens else "miss").inc()
        self._prompt.labels("reused").inc(tokens)

    def computed(self, tokens: int) -> None:
        """So many tokens of a prompt went through the model."""
        self._prompt.labels("computed").inc(tokens)

    def finished(self, queued: float, prefill: float, decode: float) -> None:
        """Seconds of the phases of a whole answer."""
        for phase, seconds in (("queue", queued), ("prefill", prefill), ("decode", decode)):
            self._phases.labels(phase).observe(seconds)

    def render(self) -> bytes:
        now = time.monotonic()
        since, made, busy = next(
            (step for step in self._steps if now - step[0] <= WINDOW), (now, self._made, self._busy)
        )
        span = max(now - since, 1.0)
        self._rate.set((self._made - made) / span)
        self._share.set(min(1.0, (self._busy - busy) / span))
        return generate_latest(self._registry)
