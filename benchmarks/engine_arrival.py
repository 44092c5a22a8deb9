"""A short prompt that comes while a long one is being computed beside running streams: how long it waits, and how long
the streams do. Imports torch."""

import itertools
import statistics

import numpy as np

from benchmarks.engine_run import Engine
from benchmarks.report import Figures

STREAMS, SHORT = 8, 30
MOST = 4000
"""New tokens of a stream, more than it comes to."""
STEADY = [1] * STREAMS


def arrival(engine: Engine, long: int, steady: int, after: int) -> Figures:
    """The long prompt has `long` tokens. It comes when the streams have run for `steady` passes, and the short one when
    `after` passes have taken a piece of it."""
    engine.watched.passes.clear()
    streams = [engine.ask(engine.part(number * 50, 40), MOST) for number in range(STREAMS)]
    engine.watched.wait(steady, lambda sizes: sizes == STEADY)
    prefilled = engine.ask(engine.part(0, long), 1)
    engine.watched.wait(after, lambda sizes: len(sizes) > STREAMS)
    arrived = engine.ask(engine.part(long // 2, SHORT), 1)
    arrived.wait()
    prefilled.wait()
    for stream in streams:
        stream.stop(engine.scheduler)
    passes = list(engine.watched.passes)
    gaps = [(p.ended, p.ended - last.ended, p.sizes) for last, p in itertools.pairwise(passes)]
    # Every pass has a token of each stream, so their tokens are as far apart as the ends of passes.
    quiet = [gap for ended, gap, sizes in gaps if ended < prefilled.submitted and sizes == STEADY]
    beside = [gap for ended, gap, sizes in gaps if prefilled.submitted < ended <= prefilled.first]
    assert all(sizes.count(1) >= STREAMS for ended, _, sizes in gaps if prefilled.submitted < ended <= prefilled.first)
    return {
        "arrival_passes": sum(p.ended > arrived.submitted and p.begun < arrived.first for p in passes),
        "arrival_ms": (arrived.first - arrived.submitted) * 1000,
        "quiet_ms": statistics.median(quiet) * 1000,
        "beside_p99_ms": float(np.percentile(beside, 99)) * 1000,
    }
