"""`python -m benchmarks`: exact hits against a bare uvicorn, misses against calling the upstream directly.

Rounds are interleaved, so that whatever else the machine does disturbs all alike: read the ratios.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import load
from benchmarks.procs import bare_server, gateway

CONFIG = """
auth:
  keys: [{{key: {key}, tenant: bench, user: bench}}]
store: {{url: "memory://"}}
backends: {{up: {{kind: remote, base_url: "http://127.0.0.1:{port}/v1"}}}}
models: {{"*": up}}
endpoints:
  default: {{mode: request_response}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="of each throughput measurement")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_server("bare") as bare,
        bare_server("upstream") as upstream,
        gateway(CONFIG.format(key=load.KEY, port=upstream), Path(folder)) as ours,
    ):
        figures = measure(bare, upstream, ours, options)
    print(json.dumps(figures, indent=2) if options.json else table(figures))


def measure(bare: int, upstream: int, ours: int, options: argparse.Namespace) -> dict[str, float]:
    """Medians over the rounds."""
    hits = [load.body(f"hit {i}") for i in range(options.prompts)]
    load.one_by_one(ours, hits)
    rounds: dict[str, list[float]] = {}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        misses = [load.body(f"miss {number} {i}") for i in range(options.prompts)]
        figures = {
            "bare_rps": load.throughput(bare, hits, options.seconds),
            "hit_rps": load.throughput(ours, hits, options.seconds),
            "bare_p50_ms": load.one_by_one(bare, hits * 5),
            "hit_p50_ms": load.one_by_one(ours, hits * 5),
            "direct_p50_ms": load.one_by_one(upstream, misses),
            "miss_p50_ms": load.one_by_one(ours, misses),
        }
        for name, value in figures.items():
            rounds.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in rounds.items()}


def table(f: dict[str, float]) -> str:
    rows = [
        ("exact hit, 32 connections", f"{f['hit_rps']:,.0f} req/s", f"{f['bare_rps']:,.0f} req/s", ">= 0.45x"),
        ("exact hit, p50, 1 connection", f"{f['hit_p50_ms']:.3f} ms", f"{f['bare_p50_ms']:.3f} ms", "<= 2x"),
        ("miss, p50, 1 connection", f"{f['miss_p50_ms']:.3f} ms", f"{f['direct_p50_ms']:.3f} ms", "adds <= 1 ms"),
    ]
    results = [
        f"{f['hit_rps'] / f['bare_rps']:.2f}x",
        f"{f['hit_p50_ms'] / f['bare_p50_ms']:.2f}x",
        f"adds {f['miss_p50_ms'] - f['direct_p50_ms']:.2f} ms",
    ]
    lines = ["| | Refrain | bare uvicorn / upstream | result | bar |", "|---|---|---|---|---|"]
    lines += [f"| {a} | {b} | {c} | {r} | {bar} |" for (a, b, c, bar), r in zip(rows, results, strict=True)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
