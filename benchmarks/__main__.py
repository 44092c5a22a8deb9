"""`python -m benchmarks`: exact hits against a bare uvicorn, misses against calling the upstream directly.

Rounds are interleaved, so that whatever else the machine does disturbs all alike: read the ratios.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import load
from benchmarks.procs import bare_server, gateway

CONFIG = """
auth:
  keys: [{{key: {key}, tenant: bench, user: bench, role: admin}}]
store: {{url: "memory://"}}
backends: {{up: {{kind: remote, base_url: "http://127.0.0.1:{port}/v1"}}}}
models: {{"*": up}}
endpoints:
  default: {{mode: request_response}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=2, help="of each throughput measurement")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_server("bare") as bare,
        bare_server("upstream") as upstream,
        bare_server("proxy", BENCH_UPSTREAM=f"http://127.0.0.1:{upstream}{load.PATH}") as proxy,
        gateway(CONFIG.format(key=load.KEY, port=upstream), Path(folder)) as ours,
    ):
        figures = measure(Ports(bare, upstream, proxy, ours), options)
    print(json.dumps(figures, indent=2) if options.json else table(figures))


class Ports(NamedTuple):
    bare: int
    upstream: int
    proxy: int
    ours: int


def measure(ports: Ports, options: argparse.Namespace) -> dict[str, float]:
    """Medians over the rounds, of the figures and of what each round makes of them."""
    hits = [load.body(f"hit {i}") for i in range(options.prompts)]
    load.one_by_one(ports.ours, hits)
    rounds: dict[str, list[float]] = {}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        f = one_round(ports, hits, number, options)
        f["hit_rps_ratio"] = f["hit_rps"] / f["bare_rps"]
        f["hit_p50_ratio"] = f["hit_p50_ms"] / f["bare_p50_ms"]
        f["miss_added_ms"] = f["miss_p50_ms"] - f["direct_p50_ms"]
        f["proxy_added_ms"] = f["proxy_p50_ms"] - f["direct_p50_ms"]
        for name, value in f.items():
            rounds.setdefault(name, []).append(value)
    made = options.prompts * (1 + options.rounds)
    if (misses := load.misses(ports.ours)) != made:
        sys.exit(f"{misses} misses instead of {made}: what was measured as hits were not all hits")
    return {name: statistics.median(values) for name, values in rounds.items()}


def one_round(ports: Ports, hits: list[bytes], number: int, options: argparse.Namespace) -> dict[str, float]:
    """What is compared is measured one right after the other; every second round goes backwards."""
    misses = [load.body(f"miss {number} {i}") for i in range(options.prompts)]
    steps: list[tuple[str, Callable[[], float]]] = [
        ("bare_rps", lambda: load.throughput(ports.bare, hits, options.seconds)),
        ("hit_rps", lambda: load.throughput(ports.ours, hits, options.seconds)),
        ("bare_p50_ms", lambda: load.one_by_one(ports.bare, hits * 3)),
        ("hit_p50_ms", lambda: load.one_by_one(ports.ours, hits * 3, "exact")),
        ("direct_p50_ms", lambda: load.one_by_one(ports.upstream, misses)),
        ("proxy_p50_ms", lambda: load.one_by_one(ports.proxy, misses)),
        ("miss_p50_ms", lambda: load.one_by_one(ports.ours, misses, "miss")),
    ]
    return {name: step() for name, step in (steps if number % 2 == 0 else reversed(steps))}


def table(f: dict[str, float]) -> str:
    hit = (f"{f['hit_rps']:,.0f} req/s", f"{f['bare_rps']:,.0f} req/s", f"{f['hit_rps_ratio']:.2f}x", ">= 0.45x")
    p50 = (f"{f['hit_p50_ms']:.3f} ms", f"{f['bare_p50_ms']:.3f} ms", f"{f['hit_p50_ratio']:.2f}x", "<= 2x")
    miss = (f"{f['miss_p50_ms']:.3f} ms", f"{f['direct_p50_ms']:.3f} ms", f"+{f['miss_added_ms']:.2f} ms", "<= +1 ms")
    through = f"{f['proxy_p50_ms']:.3f} ms"
    proxy = (through, f"{f['direct_p50_ms']:.3f} ms", f"+{f['proxy_added_ms']:.2f} ms", "")
    rows = [
        ("exact hit, 32 connections", *hit),
        ("exact hit, p50, 1 connection", *p50),
        ("miss, p50, 1 connection", *miss),
        ("(a bare proxy instead of Refrain)", *proxy),
    ]
    lines = ["| | Refrain | bare uvicorn, or upstream | result | bar |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


if __name__ == "__main__":
    main()
