"""Streams: joining one in progress, replaying a stored one, passing one on, and hundreds of them at once."""

import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

from benchmarks import crowd, joining, load
from benchmarks.procs import bare_server, gateway
from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, Steps, in_turns, say
from benchmarks.streaming import Pace

CONFIG = """
auth:
  keys: [{{key: {key}, tenant: bench, user: bench, role: admin}}]
store: {{url: "memory://"}}
backends: {{up: {{kind: remote, base_url: "http://127.0.0.1:{port}/v1"}}}}
models: {{"*": up}}
endpoints:
  default: {{mode: stream, cache: {{semantic: off}}}}
"""
STORED = Pace(tokens=300)
SHORT = Pace(tokens=4, pause=3)
"""Begins at once, ends soon, and leaves the processors alone between tokens."""
MISSES = 40
"""Of each round; each takes a dozen milliseconds whoever answers."""


class Ports(NamedTuple):
    bare: int
    upstream: int
    proxy: int
    ours: int


def measure(size: Size) -> Figures:
    with tempfile.TemporaryDirectory() as name, bare_server("streaming:app") as upstream:
        folder, forward = Path(name), load.url(upstream.port)
        config = CONFIG.format(key=load.KEY, port=upstream.port)
        with gateway(config, folder) as ours, bare_server("apps:stream_proxy", BENCH_UPSTREAM=forward) as proxy:
            say("streams: identical requests")
            figures = joining.measure(ours.port, upstream.port, size.joiners)
            hits = [load.body(f"stored {i} {STORED}", stream=True) for i in range(size.prompts)]
            load.first_events(ours.port, hits, "miss")
            stored = folder / "stored"
            stored.write_bytes(_stored(ours.port, hits[0]))
            with bare_server("apps:bare", BENCH_BODY=str(stored)) as bare:
                ports = Ports(bare.port, upstream.port, proxy.port, ours.port)
                figures |= _replayed_and_passed_on(ports, hits, size)
        with gateway(config, folder) as ours, bare_server("apps:stream_proxy", BENCH_UPSTREAM=forward) as proxy:
            return figures | crowd.measure(ours, upstream, proxy, size)


def _stored(port: int, body: bytes) -> bytes:
    """What the gateway answers from its cache, byte by byte."""
    headers = {"authorization": f"Bearer {load.KEY}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(load.url(port), body, headers), timeout=10) as response:
        if response.headers["x-refrain-cache"] != "exact":
            sys.exit("an answer was not stored")
        return bytes(response.read())


def _replayed_and_passed_on(ports: Ports, hits: list[bytes], size: Size) -> Figures:
    before = load.misses(ports.ours)
    figures = in_turns("streams", size.rounds, lambda number: _steps(ports, hits, number, size), _compare)
    made = MISSES * size.rounds
    if (misses := load.misses(ports.ours) - before) != made:
        sys.exit(f"{misses} misses instead of {made}: what was measured as hits were not all hits")
    return figures


def _steps(ports: Ports, hits: list[bytes], number: int, size: Size) -> Steps:
    misses = [load.body(f"passed on {number} {i} {SHORT}", stream=True) for i in range(MISSES)]
    return [
        ("bare_rps", lambda: load.throughput(ports.bare, hits, size.seconds)),
        ("hit_rps", lambda: load.throughput(ports.ours, hits, size.seconds)),
        ("direct_first_p50_ms", lambda: load.first_events(ports.upstream, misses)),
        ("proxy_first_p50_ms", lambda: load.first_events(ports.proxy, misses)),
        ("first_p50_ms", lambda: load.first_events(ports.ours, misses, "miss")),
    ]


def _compare(f: Figures) -> Figures:
    return {
        "hit_rps_ratio": f["hit_rps"] / f["bare_rps"],
        "first_added_ms": f["first_p50_ms"] - f["direct_first_p50_ms"],
        "proxy_first_added_ms": f["proxy_first_p50_ms"] - f["direct_first_p50_ms"],
    }


def rows(f: Figures) -> list[Row]:
    hit = (f"{f['hit_rps']:,.0f} req/s", f"{f['bare_rps']:,.0f} req/s", f"{f['hit_rps_ratio']:.2f}x", ">= 0.35x")
    direct = f"{f['direct_first_p50_ms']:.3f} ms"
    first = (f"{f['first_p50_ms']:.3f} ms", direct, f"{f['first_added_ms']:+.2f} ms", "<= +1 ms")
    proxy = (f"{f['proxy_first_p50_ms']:.3f} ms", direct, f"{f['proxy_first_added_ms']:+.2f} ms")
    return [
        *joining.rows(f),
        Row("streamed exact hit, 32 connections", *hit),
        Row("streamed miss, first event, p50, 1 connection", *first),
        Row("(a bare proxy instead of Refrain)", *proxy),
        *crowd.rows(f),
    ]
