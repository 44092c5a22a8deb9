"""The semantic index: what a vector costs, and how long adding and searching take, beside looking at every vector.

The vectors are synthetic: clusters of about thirty, the queries near one of them each. Everything runs in one thread.
"""

import gc
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, say
from cache.semantic.index import Index
from cache.semantic.index_arena import Vector
from cache.semantic.index_layers import one_thread

DIMENSIONS = 384
SIZES = (1_000, 10_000, 100_000, 300_000)
CONTEXTS = 100_000
QUERIES = 500
K = 8
ROOM = 1 << 30
SHAKEN = 0.015
"""Deviation of each component between a vector and a shaken copy: a cosine of about .96."""


def measure(size: Size) -> Figures:
    """A run of one round takes a tenth of everything."""
    share = 1 if size.rounds > 1 else 10
    figures = _memory(CONTEXTS // share)
    random = np.random.default_rng(1)
    vectors, queries = _data(random, SIZES[-1] // share)
    for count in SIZES:
        say(f"index: {count // share} vectors in one context")
        figures |= {f"{name}_{count}": value for name, value in _searches(vectors[: count // share], queries).items()}
    return figures


def rows(figures: Figures) -> list[Row]:
    held = Row(
        "index, 100,000 contexts of two: bytes a vector beyond its components",
        f"{figures['bytes']:.0f}",
        "",
        f"{figures['charged']:.0f} charged",
        "<= 300",
    )
    bars = {300_000: "p95 <= 10 ms, nearest found >= 99%"}
    searches = [
        Row(
            f"index, {count:,} in one context: search p50 / p95; every vector p50",
            f"{figures[f'search_p50_ms_{count}']:.2f} / {figures[f'search_p95_ms_{count}']:.2f} ms",
            f"{figures[f'exact_p50_ms_{count}']:.2f} ms",
            f"nearest found {figures[f'recall_{count}']:.1%}",
            bars.get(count, ""),
        )
        for count in SIZES
    ]
    adds = Row(
        "index, adding to 300,000: p50 / p95",
        f"{figures['add_p50_ms_300000']:.3f} / {figures['add_p95_ms_300000']:.3f} ms",
        "",
        f"layers made {figures['settled_s_300000']:.0f} s after",
        "<= 1 ms",
    )
    return [held, *searches, adds]


def _memory(contexts: int) -> Figures:
    say(f"index: {contexts} contexts of two vectors")
    vector = np.eye(1, DIMENSIONS, dtype=np.float32)[0]
    index = Index(DIMENSIONS, max_bytes=ROOM)
    gc.collect()
    before = _resident()
    for number in range(contexts):
        context = hashlib.blake2b(b"%d" % number, digest_size=32).digest()
        for which in range(2):
            index.add(context, hashlib.blake2b(b"%d %d" % (number, which), digest_size=32).digest(), vector)
    gc.collect()
    components = 4 * DIMENSIONS
    held, charged = (total / len(index) - components for total in (_resident() - before, index.bytes))
    return {"bytes": held, "charged": charged}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _data(random: np.random.Generator, count: int) -> tuple[Vector, Vector]:
    centres = random.standard_normal((max(count // 30, 1), DIMENSIONS), np.float32) / np.float32(DIMENSIONS**0.5)
    vectors = _shaken(random, centres[random.integers(0, len(centres), count)], 0.03)
    return vectors, _shaken(random, vectors[random.integers(0, SIZES[0] // 10, QUERIES)])


def _shaken(random: np.random.Generator, vectors: Vector, by: float = SHAKEN) -> Vector:
    shaken = vectors + np.float32(by) * random.standard_normal(vectors.shape, np.float32)
    return np.asarray(shaken / np.linalg.norm(shaken, axis=1, keepdims=True), np.float32)


def _searches(vectors: Vector, queries: Vector) -> Figures:
    index = Index(DIMENSIONS, max_bytes=ROOM)
    adds = [
        _seconds(lambda number=number: index.add(b"context", b"%032d" % number, vectors[number]))
        for number in range(len(vectors))
    ]
    start = time.perf_counter()
    while not index.settled():
        time.sleep(0.01)
    settled = time.perf_counter() - start
    nearest = [float((vectors @ query).max()) for query in queries]
    searches = [_seconds(lambda query=query: index.search(b"context", query, K)) for query in queries]
    found = [index.search(b"context", query, K)[0][1] for query in queries]
    with one_thread():
        exact = [_seconds(lambda query=query: _every(vectors, query)) for query in queries[:50]]
    index.close()
    last = adds[-1000:]  # those that came to the most
    return {
        "add_p50_ms": float(np.percentile(last, 50)) * 1e3,
        "add_p95_ms": float(np.percentile(last, 95)) * 1e3,
        "settled_s": settled,
        "search_p50_ms": float(np.percentile(searches, 50)) * 1e3,
        "search_p95_ms": float(np.percentile(searches, 95)) * 1e3,
        "exact_p50_ms": float(np.percentile(exact, 50)) * 1e3,
        "recall": float(np.mean(np.array(found) >= np.array(nearest) - 1e-5)),
    }


def _every(vectors: Vector, query: Vector) -> int:
    """Without an index: multiply by everything."""
    return int(np.argmax(vectors @ query))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
