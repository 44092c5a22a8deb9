"""`python -m benchmarks [GROUP]`: what Refrain is held to, as ratios within one run.

Every server is a process of its own on loopback. Read the ratios: the machine decides the rest.
"""

import argparse
import json

from benchmarks import batches, burst, embedding, engine, hits, index, latency, meaning, retrieval, seeing, streams
from benchmarks.report import table
from benchmarks.rounds import QUICK, Size

GROUPS = {
    "hits": hits,
    "streams": streams,
    "embedding": embedding,
    "index": index,
    "meaning": meaning,
    "retrieval": retrieval,
    "engine": engine,
    "latency": latency,
    "seeing": seeing,
    "batches": batches,
    "burst": burst,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("group", nargs="?", choices=GROUPS, help="all unless one is named")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")
    parser.add_argument("--rounds", type=int, help="how often what takes turns does")
    parser.add_argument("--json", action="store_true", help="the figures instead of the table")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    if options.rounds is not None:
        size = size._replace(rounds=options.rounds)
    groups = {name: group for name, group in GROUPS.items() if options.group in (None, name)}
    figures = {name: group.measure(size) for name, group in groups.items()}
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print(table(row for name, group in groups.items() for row in group.rows(figures[name])))


if __name__ == "__main__":
    main()
