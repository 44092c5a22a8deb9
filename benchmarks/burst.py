"""A burst: the arrival times and lengths of a chat service's requests, played faster than the backend can serve them.

The trace is ten minutes around the peak of the Azure public dataset's conversations of 2023 (Patel et al., ISCA 2024;
CC-BY 4.0): `burst_trace.csv`, milliseconds since the first request, tokens in and out. Its times are scaled to the rate
that is wanted, and an answer's length decides how long the backend takes for it, half a second on the average.
"""

import asyncio
import csv
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import client, load
from benchmarks.procs import Server, bare_server, gateway
from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, say
from benchmarks.streaming import Pace

TRACE = Path(__file__).with_name("burst_trace.csv")
AT_ONCE = 8
MEAN_TOKENS = 136
"""Of the answers in the trace."""
MEAN_SECONDS = 0.5
CAPACITY = AT_ONCE / MEAN_SECONDS
"""Requests per second that the backend can serve."""
LITTLE, MUCH = 0.3, 3.0
"""Of the capacity."""
SETTLED = 10.0
"""Seconds after which memory is not to grow any more."""
CONFIG = """
auth:
  keys: [{{key: {key}, tenant: bench, user: bench, role: admin}}]
store: {{url: "sqlite:///{folder}/cache.db"}}
backends:
  up: {{kind: remote, base_url: "http://127.0.0.1:{port}/v1", max_running: {running}, max_queue: {running}}}
models: {{"*": up}}
endpoints:
  default: {{mode: stream, cache: {{semantic: off}}}}
"""


class Played(NamedTuple):
    """Milliseconds of the requests that were answered and of those that were refused, and MB by which the gateway grew
    after it had settled."""

    answered: list[float]
    refused: list[float]
    grown: float


def measure(size: Size) -> Figures:
    seconds = 60.0 if size.rounds > 1 else 4.0
    with _serving() as server:
        say(f"burst: {LITTLE:g} of the capacity for {seconds:.0f} s")
        calm = client.run(partial(_play, server, "calm", LITTLE * CAPACITY, seconds))
        say(f"burst: {MUCH:g} times the capacity for {seconds:.0f} s")
        burst = client.run(partial(_play, server, "burst", MUCH * CAPACITY, seconds))
    return {
        "calm_p99_ms": _p99(calm.answered),
        "burst_p99_ms": _p99(burst.answered),
        "burst_ratio": _p99(burst.answered) / _p99(calm.answered),
        "answered_per_s": len(burst.answered) / seconds,
        "refused_share": len(burst.refused) / (len(burst.answered) + len(burst.refused)),
        "refused_p99_ms": _p99(burst.refused),
        "calm_refused": len(calm.refused),
        "grown_mb": burst.grown,
    }


@contextmanager
def _serving() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, bare_server("streaming:app") as upstream:
        config = CONFIG.format(key=load.KEY, folder=folder, port=upstream.port, running=AT_ONCE)
        with gateway(config, Path(folder)) as server:
            yield server


def arrivals(rate: float, seconds: float) -> Iterator[tuple[float, int]]:
    """When a request comes, in seconds from the beginning, and how many tokens its answer has; so many per second."""
    with TRACE.open() as file:
        rows = [(float(row["ms"]) / 1000, int(row["output"])) for row in csv.DictReader(file)]
    wanted = min(len(rows), int(rate * seconds))
    scale = seconds / rows[wanted - 1][0]
    return ((at * scale, tokens) for at, tokens in rows[:wanted])


async def _play(server: Server, seed: str, rate: float, seconds: float) -> Played:
    loop = asyncio.get_running_loop()
    begun, sizes = loop.time(), list[int]()
    settled = loop.call_later(min(SETTLED, seconds / 2), lambda: sizes.append(server.memory()))
    asking = []
    for number, (at, tokens) in enumerate(arrivals(rate, seconds)):
        await asyncio.sleep(max(0.0, begun + at - loop.time()))
        asking.append(asyncio.create_task(_ask(server.port, f"{seed} {number}", tokens)))
    answers = await asyncio.gather(*asking)
    settled.cancel()
    grown = (server.memory() - sizes[0]) / 1e6
    return Played([ms for ms, good in answers if good], [ms for ms, good in answers if not good], grown)


async def _ask(port: int, seed: str, tokens: int) -> tuple[float, bool]:
    """Milliseconds until its answer was whole, and whether it was one, or a refusal that says when to come back."""
    pause = max(1, round(tokens / MEAN_TOKENS * MEAN_SECONDS * 1000 / 8))
    exchange = await client.connect(port)
    begun = asyncio.get_running_loop().time()
    exchange.ask(load.request(port, load.body(f"{seed} {Pace(tokens=8, pause=pause, first=pause)}", stream=True)))
    try:
        await exchange.done
        good = True
    except RuntimeError as refusal:
        if not str(refusal).startswith("429") or b"retry-after" not in exchange.headers:
            raise
        good = False
    return (asyncio.get_running_loop().time() - begun) * 1000, good


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else 0.0


def rows(f: Figures) -> list[Row]:
    p99 = (f"{f['burst_p99_ms']:,.0f} ms", f"{f['calm_p99_ms']:,.0f} ms", f"{f['burst_ratio']:.2f}x", "<= 2x")
    refused = (f"{f['refused_share']:.0%} of the requests", "", f"{f['refused_p99_ms']:.0f} ms")
    return [
        Row(f"answered at {MUCH:g}x the capacity / at {LITTLE:g}x, p99", *p99),
        Row("refused there with Retry-After, p99", *refused),
        Row("answers per second there / the capacity", f"{f['answered_per_s']:.1f}", f"{CAPACITY:.1f}", ""),
        Row("memory after its first 10 s", "", "", f"{f['grown_mb']:+.0f} MB", "flat"),
    ]
