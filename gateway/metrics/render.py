"""What `/metrics` shows: a view of the ledger, of what is observed beside it, and of the parts as they are now.

docs/metrics.md explains every one of them. No label has values that a client can choose: an endpoint is one of the
configuration or "", a model one that others know too (gateway.metrics.labels), and of codes there are at most so many.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import ProcessCollector

from backends.base import Priority
from cache.stores.base import StoreStats
from gateway.ledger.ledger import Key
from gateway.ledger.sums import Sums
from gateway.metrics.histogram import Histogram
from gateway.metrics.ledger import Cells, write_errors, write_requests, write_sums
from gateway.metrics.observed import Observed
from gateway.metrics.page import Page

_PROCESS = ProcessCollector(namespace="refrain", registry=None)


@dataclass(frozen=True, slots=True)
class Queue:
    """What runs on a backend, and what waits for it, by class."""

    running: Mapping[Priority, int]
    waiting: Mapping[Priority, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is to see at one moment, apart from what goes on: another thread may read it. `ready` says of each
    backend whether it can answer, `queues` what it has to do, `refused` what it was not sent, by class and reason;
    `retrievers` of each of those whether it can search, `learnt` what the latency model knows of each backend's models,
    `semantic` what the semantic tier says of itself; `flights` are upstream calls in progress, `listeners` clients that
    wait for them, `batches` those of the batch lane that have not ended, by state, `lines` their results so far;
    `decisions` those that are kept, `started` wall-clock seconds; `label` gives the name under which a
    model is shown (gateway.metrics.labels)."""

    rows: Sequence[tuple[Key, Sums]]
    errors: Mapping[tuple[str, str], int]
    observed: Observed
    stores: Mapping[str, StoreStats]
    ready: Mapping[str, bool]
    queues: Mapping[str, Queue]
    refused: Mapping[tuple[str, Priority, str], int]
    retrievers: Mapping[str, bool]
    learnt: Mapping[str, Mapping[str, Mapping[str, float | None]]]
    semantic: Mapping[str, Any]
    flights: int
    listeners: int
    batches: Mapping[str, int]
    lines: Mapping[str, int]
    decisions: int
    lag: Histogram
    version: str
    started: float
    label: Callable[[str], str]


def render(seen: Seen) -> bytes:
    """The text for Prometheus (gateway.metrics.page.CONTENT_TYPE)."""
    page, cells = Page(), Cells(seen.rows, seen.label)
    write_requests(page, cells)
    write_errors(page, seen.errors)
    write_sums(page, cells)
    _tiers(page, cells, seen.observed)
    _semantic(page, seen.semantic)
    _stores(page, seen.stores)
    _backends(page, seen)
    _gateway(page, seen)
    return page.text()


def _tiers(page: Page, cells: Cells, observed: Observed) -> None:
    count, times = cells.exact_hits()
    hits = {("exact", "hit"): count} if count else {}
    page.counter(
        "refrain_tier_lookups_total",
        "Look-ups of each tier, by what came of them.",
        ("tier", "result"),
        {**hits, **observed.lookups},
    )
    page.histogram(
        "refrain_tier_seconds",
        "Time that a look-up took; for a hit of the exact tier, the whole request.",
        ("tier", "result"),
        {**dict.fromkeys(hits, times), **observed.tiers},
    )


def _semantic(page: Page, stats: Mapping[str, Any]) -> None:
    """`stats` as gateway.semantics gives them."""
    page.number("refrain_semantic_ready", "1 if the semantic tier can answer.", stats["state"] == "ready")
    if stats["state"] == "off":
        return
    lookups = {(result,): count for result, count in {"hit": stats["hits"], **stats["misses"]}.items()}
    reports = {(verdict,): count for verdict, count in stats["reported"].items()}
    page.counter(
        "refrain_semantic_lookups_total", "Searches of the semantic tier, by what came of them.", ("result",), lookups
    )
    page.counter("refrain_semantic_reports_total", "Answers that were judged.", ("verdict",), reports)
    page.number("refrain_semantic_questions", "Questions known.", stats["questions"])
    page.number("refrain_semantic_vectors", "Vectors kept.", stats["vectors"])
    page.number("refrain_semantic_bytes", "Memory taken by questions and vectors.", stats["bytes"])


def _stores(page: Page, stores: Mapping[str, StoreStats]) -> None:
    def gauge(name: str, text: str, field: str) -> None:
        page.gauge(name, text, ("store",), {(store,): getattr(stats, field) for store, stats in stores.items()})

    def counter(name: str, text: str, field: str) -> None:
        page.counter(name, text, ("store",), {(store,): getattr(stats, field) for store, stats in stores.items()})

    gauge("refrain_entries", "Entries kept.", "entries")
    gauge("refrain_store_bytes", "Bytes kept.", "bytes")
    gauge("refrain_store_max_bytes", "Bytes that may be kept.", "max_bytes")
    gauge("refrain_store_healthy", "1 if it answers.", "healthy")
    counter("refrain_evictions_total", "Entries that made room for others.", "evicted")
    counter("refrain_store_dropped_total", "Writes that the store gave up.", "dropped")
    counter("refrain_store_corrupt_total", "Values removed because they could not be read.", "corrupt")


def _backends(page: Page, seen: Seen) -> None:
    observed, model = seen.observed, ("backend", "model")
    calls: dict[tuple[str, str], Histogram] = {}
    for (backend, name), times in observed.calls.items():
        calls.setdefault((backend, seen.label(name)), Histogram(times.bounds)).merge(times)
    page.gauge("refrain_backend_ready", "1 if it can answer.", ("backend",), {(n,): ok for n, ok in seen.ready.items()})
    _queues(page, seen)
    found = {(name,): ok for name, ok in seen.retrievers.items()}
    page.gauge("refrain_retriever_ready", "1 if its documents can be searched.", ("retriever",), found)
    page.histogram("refrain_upstream_seconds", "Time of upstream calls that gave an answer.", model, calls)
    page.counter("refrain_upstream_errors_total", "Upstream calls that failed.", ("backend", "code"), observed.failures)
    moved = ("backend", "to")
    page.counter("refrain_fallbacks_total", "Requests sent on after a failure.", moved, observed.fallbacks)
    page.histogram(
        "refrain_output_token_seconds",
        "Time for each token after the first, of streamed upstream calls.",
        ("backend",),
        observed.tokens,
    )

    def learnt(name: str, text: str, field: str, factor: float = 1.0) -> None:
        values = {
            (backend, name): value * factor
            for backend, models in seen.learnt.items()
            for name, facts in models.items()
            if (backend, name) in calls and (value := facts[field]) is not None
        }
        page.gauge(name, text, model, values)

    learnt("refrain_model_overhead_seconds", "Learnt: time of a call beside its tokens.", "overhead_ms", 0.001)
    learnt("refrain_model_prefill_tokens_per_second", "Learnt: prompt tokens per second.", "prefill_tps")
    learnt("refrain_model_decode_tokens_per_second", "Learnt: tokens of an answer per second.", "decode_tps")
    learnt("refrain_model_prediction_error_ratio", "Median relative error of predicted times.", "error")


def _queues(page: Page, seen: Seen) -> None:
    labels, queues = ("backend", "priority"), seen.queues.items()
    running = {(name, priority): count for name, queue in queues for priority, count in queue.running.items()}
    waiting = {(name, priority): count for name, queue in queues for priority, count in queue.waiting.items()}
    page.gauge("refrain_backend_running", "Upstream calls on their way, by class.", labels, running)
    page.gauge("refrain_backend_waiting", "Upstream calls that wait for their turn, by class.", labels, waiting)
    refused = ("backend", "priority", "code")
    page.counter("refrain_backend_refused_total", "Upstream calls that were not made.", refused, seen.refused)


def _gateway(page: Page, seen: Seen) -> None:
    page.number("refrain_flights", "Upstream calls in progress.", seen.flights)
    page.number("refrain_flight_listeners", "Clients that wait for them.", seen.listeners)
    batches = {(state,): seen.batches.get(state, 0) for state in ("validating", "in_progress", "cancelling")}
    page.gauge("refrain_batches", "Batches that have not ended, by state.", ("state",), batches)
    lines = {(result,): seen.lines.get(result, 0) for result in ("answered", "failed")}
    page.counter("refrain_batch_lines_total", "Requests of batches that have their result.", ("result",), lines)
    page.number("refrain_decisions", "Decisions kept in memory.", seen.decisions)
    page.histogram(
        "refrain_event_loop_lag_seconds",
        "How late the event loop ran a timer that is due four times a second.",
        (),
        {(): seen.lag},
    )
    page.gauge("refrain_build_info", "1, with the version as a label.", ("version",), {(seen.version,): 1})
    page.number("refrain_start_time_seconds", "When the gateway started, in seconds since 1970.", seen.started)
    for family in _PROCESS.collect():
        for sample in family.samples:
            write = page.counter if family.type == "counter" else page.gauge
            write(sample.name, family.documentation, (), {(): sample.value})
