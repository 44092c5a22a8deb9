"""Many slow streams open at once on one worker: how late their tokens come, and what memory each holds.

A token is late by what the gap before it is longer than the upstream's pause. Upstream, gateway and client share the
machine, so a direct run has its own lateness: what counts is what the gateway adds.
"""

import asyncio
import random
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from benchmarks import client, load
from benchmarks.procs import Server
from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, Steps, in_turns
from benchmarks.streaming import Pace

ROUNDS = 2
LOOK = 0.05
"""Seconds between looks at the memory."""
WARM_UP = Pace(tokens=5, pause=100)


def measure(ours: Server, upstream: Server, proxy: Server, size: Size) -> Figures:
    """`ours` and `proxy` have done nothing yet: memory that others left would serve these streams unseen. For the same
    reason a second round is held against what a server has before the first one, and so counts what that left."""
    pace = Pace(size.tokens, size.pause)
    before = {}
    for server in (upstream, ours, proxy):
        _streams(server, "warm-up", 20, WARM_UP)
        before[server] = server.memory()
    held: dict[Server, list[float]] = {server: [] for server in before}

    def late(server: Server, number: int) -> float:
        exchanges, most = _streams(server, f"round {number}", size.streams, pace)
        if most == -inf:
            sys.exit(f"the {size.streams} streams were never all open at once: this machine is too slow for them")
        held[server].append((most - before[server] / size.streams) / 1024)
        return statistics.quantiles(_lateness(exchanges, pace), n=100)[98]

    def steps(number: int) -> Steps:
        return [
            ("direct_late_p99_ms", lambda: late(upstream, number)),
            ("proxy_late_p99_ms", lambda: late(proxy, number)),
            ("late_p99_ms", lambda: late(ours, number)),
        ]

    figures = in_turns(f"{size.streams} streams at once", ROUNDS, steps, _compare)
    memory = {"stream_kb": held[ours][0], "stream_again_kb": held[ours][1], "proxy_stream_kb": held[proxy][0]}
    return {"streams": size.streams, **figures, **memory}


def _compare(f: Figures) -> Figures:
    return {
        "late_added_ms": f["late_p99_ms"] - f["direct_late_p99_ms"],
        "proxy_late_added_ms": f["proxy_late_p99_ms"] - f["direct_late_p99_ms"],
    }


def _streams(server: Server, seed: str, count: int, pace: Pace) -> tuple[list[client.Exchange], float]:
    bodies = [load.body(f"{seed} at {server.port}: {i} {pace}", stream=True) for i in range(count)]
    requests = [load.request(server.port, data) for data in bodies]
    return client.run(lambda: _all_open(requests, server, pace))


async def _all_open(requests: Sequence[bytes], server: Server, pace: Pace) -> tuple[list[client.Exchange], float]:
    """The exchanges, and the most bytes that the server had for each, less its answer so far, while all were open.
    They start within half the time that one takes, in no rhythm, so that tokens come evenly."""
    spread = pace.tokens * pace.pause / 2000
    rnd = random.Random(0)
    exchanges: list[client.Exchange] = []

    async def ask(request: bytes, delay: float) -> None:
        await asyncio.sleep(delay)
        exchange = await client.connect(server.port)
        exchanges.append(exchange)
        exchange.ask(request)
        await exchange.done

    async def watch() -> float:
        most = -inf
        while not any(exchange.done.done() for exchange in exchanges):
            if sum(bool(exchange.pieces) for exchange in exchanges) == len(requests):
                answers = sum(exchange.received for exchange in exchanges)
                most = max(most, (server.memory() - answers) / len(requests))
            await asyncio.sleep(LOOK)
        return most

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(ask(request, rnd.uniform(0, spread)) for request in requests))
    return exchanges, await watching


def _lateness(exchanges: Sequence[client.Exchange], pace: Pace) -> list[float]:
    """Milliseconds, of every token but the first of each stream."""
    late = []
    for exchange in exchanges:
        times = [at for at, _ in exchange.tokens()]
        if len(times) != pace.tokens:
            sys.exit(f"a stream had {len(times)} tokens instead of {pace.tokens}")
        late += [(after - before) * 1000 - pace.pause for before, after in pairwise(times)]
    return late


def rows(f: Figures) -> list[Row]:
    many, direct = f"{f['streams']:.0f} slow streams at once", f"{f['direct_late_p99_ms']:.2f} ms"
    late = (f"{f['late_p99_ms']:.2f} ms", direct, f"{f['late_added_ms']:+.2f} ms", "<= +10 ms")
    proxy_late = (f"{f['proxy_late_p99_ms']:.2f} ms", direct, f"{f['proxy_late_added_ms']:+.2f} ms")
    held, proxy_held = f"{f['stream_kb']:.1f} KB", f"{f['proxy_stream_kb']:.1f} KB"
    again = f"{held} ({f['stream_again_kb']:.1f} KB in a second round, with the answers of the first one stored)"
    floor = "(a bare proxy instead of Refrain)"
    return [
        Row(f"{many}, lateness of a token, p99", *late),
        Row(floor, *proxy_late),
        Row(f"{many}, memory of each beyond its answer", again, "", held, "<= 64 KB"),
        Row(floor, proxy_held, "", proxy_held),
    ]
