"""Exact hits against a bare uvicorn, misses against calling the upstream directly; answers in one piece."""

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks import load
from benchmarks.procs import bare_server, gateway
from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, Steps, in_turns

CONFIG = """
auth:
  keys: [{{key: {key}, tenant: bench, user: bench, role: admin}}]
store: {{url: "memory://"}}
backends: {{up: {{kind: remote, base_url: "http://127.0.0.1:{port}/v1"}}}}
models: {{"*": up}}
endpoints:
  default: {{mode: request_response, cache: {{semantic: off}}}}
"""


class Ports(NamedTuple):
    bare: int
    upstream: int
    proxy: int
    ours: int


def measure(size: Size) -> Figures:
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_server("apps:bare") as bare,
        bare_server("apps:upstream") as upstream,
        bare_server("apps:proxy", BENCH_UPSTREAM=load.url(upstream.port)) as proxy,
        gateway(CONFIG.format(key=load.KEY, port=upstream.port), Path(folder)) as ours,
    ):
        ports = Ports(bare.port, upstream.port, proxy.port, ours.port)
        hits = [load.body(f"hit {i}") for i in range(size.prompts)]
        load.one_by_one(ports.ours, hits)
        figures = in_turns("hits", size.rounds, lambda number: steps(ports, hits, number, size), compare)
        made = size.prompts * (1 + size.rounds)
        if (misses := load.misses(ports.ours)) != made:
            sys.exit(f"{misses} misses instead of {made}: what was measured as hits were not all hits")
    return figures


def steps(ports: Ports, hits: list[bytes], number: int, size: Size) -> Steps:
    misses = [load.body(f"miss {number} {i}") for i in range(size.prompts)]
    return [
        ("bare_rps", lambda: load.throughput(ports.bare, hits, size.seconds)),
        ("hit_rps", lambda: load.throughput(ports.ours, hits, size.seconds)),
        ("bare_p50_ms", lambda: load.one_by_one(ports.bare, hits * 3)),
        ("hit_p50_ms", lambda: load.one_by_one(ports.ours, hits * 3, "exact")),
        ("direct_p50_ms", lambda: load.one_by_one(ports.upstream, misses)),
        ("proxy_p50_ms", lambda: load.one_by_one(ports.proxy, misses)),
        ("miss_p50_ms", lambda: load.one_by_one(ports.ours, misses, "miss")),
    ]


def compare(f: Figures) -> Figures:
    return {
        "hit_rps_ratio": f["hit_rps"] / f["bare_rps"],
        "hit_p50_ratio": f["hit_p50_ms"] / f["bare_p50_ms"],
        "miss_added_ms": f["miss_p50_ms"] - f["direct_p50_ms"],
        "proxy_added_ms": f["proxy_p50_ms"] - f["direct_p50_ms"],
    }


def rows(f: Figures) -> list[Row]:
    hit = (f"{f['hit_rps']:,.0f} req/s", f"{f['bare_rps']:,.0f} req/s", f"{f['hit_rps_ratio']:.2f}x", ">= 0.45x")
    p50 = (f"{f['hit_p50_ms']:.3f} ms", f"{f['bare_p50_ms']:.3f} ms", f"{f['hit_p50_ratio']:.2f}x", "<= 2x")
    direct = f"{f['direct_p50_ms']:.3f} ms"
    miss = (f"{f['miss_p50_ms']:.3f} ms", direct, f"{f['miss_added_ms']:+.2f} ms", "<= +1 ms")
    proxy = (f"{f['proxy_p50_ms']:.3f} ms", direct, f"{f['proxy_added_ms']:+.2f} ms")
    return [
        Row("exact hit, 32 connections", *hit),
        Row("exact hit, p50, 1 connection", *p50),
        Row("miss, p50, 1 connection", *miss),
        Row("(a bare proxy instead of Refrain)", *proxy),
    ]
