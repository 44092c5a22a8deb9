"""`python -m benchmarks.semantic FILE...`: how often the semantic tier answers, and how often wrongly.

Each file is played against a real gateway with its shipped defaults (`adapt: false`), in front of a stub whose answers
are prose in varying words. A file of your own works like those of the published sets, one JSON object a line:

    {"text": "...", "answer": "id of the right answer"}            a stream of requests, in their order
    {"a": "...", "b": "...", "label": 1}                           may the answer to `a` serve `b`? 1: yes, 0: no
    {"conversation_a": [...], "conversation_b": [...], "label": 0} the same for whole conversations

`benchmarks/semantic_eval.py` is the evaluator; it knows nothing of Refrain.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Literal

from benchmarks.procs import Server, free_port, gateway

Json = dict[str, Any]
Mode = Literal["stream", "pairs", "multiturn"]
EVALUATOR = Path(__file__).with_name("semantic_eval.py")
CONFIG = """
store: {{url: "memory://"}}
backends: {{stub: {{kind: remote, base_url: "http://127.0.0.1:{port}/v1"}}}}
models: {{"*": stub}}
endpoints: {{default: {{mode: request_response, cache: {{semantic: {{adapt: false}}}}}}}}
"""
HEAD = "| file | requests | served | wrong of all requests (95% bound) | wrong of what must not be served | ceiling |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.semantic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, help="only so many lines of each file")
    parser.add_argument("--json", action="store_true", help="all figures instead of the table")
    parser.add_argument(
        "--max-wrong", type=float, help="exit 1 when more than this share of a file's requests is wrong"
    )
    options = parser.parse_args()
    found = []
    for path in options.files:
        print(f"{path.name} ...", file=sys.stderr)
        found.append(evaluate(path, options.limit))
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join([HEAD, "|---" * 6 + "|", *map(row, found)]))
    if options.max_wrong is not None and any(f["false_hits"] > options.max_wrong for f in found):
        sys.exit(1)


def evaluate(path: Path, limit: int | None = None) -> Json:
    """What the evaluator measures of one file, with a gateway of its own."""
    mode = mode_of(path)
    port = free_port()
    command = [sys.executable, str(EVALUATOR), mode, str(path), "--stub-port", str(port), "--json"]
    command += ["--scope-in-system"] if mode != "stream" else []
    command += ["--limit", str(limit)] if limit is not None else []
    with tempfile.TemporaryDirectory() as folder, gateway(CONFIG.format(port=port), Path(folder)) as server:
        wait_for_tier(server)
        done = subprocess.run([*command, "--base-url", f"http://127.0.0.1:{server.port}/v1"], stdout=subprocess.PIPE)
        if done.returncode:
            sys.exit(f"the evaluator failed on {path}")
        return {**json.loads(done.stdout), "mode": mode, "tier": stats(server)}


def mode_of(path: Path) -> Mode:
    with path.open() as lines:
        first = json.loads(next(lines, "{}"))
    modes: list[tuple[str, Mode]] = [("answer", "stream"), ("a", "pairs"), ("conversation_a", "multiturn")]
    for field, mode in modes:
        if field in first:
            return mode
    sys.exit(f"{path}: the first line has none of the fields {', '.join(field for field, _ in modes)}")


def wait_for_tier(server: Server) -> None:
    """Until the embedder is there: what is asked before is a miss."""
    deadline = time.monotonic() + 120
    while stats(server)["state"] != "ready":
        if time.monotonic() > deadline:
            sys.exit(f"the semantic tier did not become ready: {stats(server)}")
        time.sleep(0.2)


def stats(server: Server) -> Json:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/admin/stats", timeout=5) as response:
        return dict(json.load(response)["semantic"])


def row(found: Json) -> str:
    cells = [found["file"], f"{found['requests']:,}"]
    if found["mode"] == "stream":
        cells += [share(found["hit_rate"]), f"{share(found['false_hits'])} ({share(found['false_hi95'])})", "", ""]
        cells[-1] = share(found["ceiling"])
    else:
        served = f"{share(found['recall'])} of what may be"
        cells += [served, f"{share(found['false_hits'])} ({share(found['false_hi95'])})"]
        cells += [share(found["false_positive_rate"]), ""]
    return "| " + " | ".join(cells) + " |"


def share(value: float) -> str:
    return f"{100 * value:.2f} %"


if __name__ == "__main__":
    main()
