"""The latency model beside the local engine: what it has learnt from so many requests of all lengths, streams and whole
ones, and how far off it is with the next ones, which it may not learn from.

A gateway with its engine runs as it does for users; requests come one after another. The text of the prompts is fixed,
and which pieces of it are asked and how long answers may be is drawn with a fixed seed.
"""

import json
import random
import statistics
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import load
from benchmarks.procs import gateway
from benchmarks.report import Figures, Row
from benchmarks.rounds import QUICK, Size, say

TEXT = Path(__file__).with_name("engine_text.txt")
MODEL = "SmolLM2-135M-Instruct"
CONFIG = """
auth:
  keys: [{{key: {key}, tenant: bench, user: bench, role: admin}}]
store: {{url: "memory://"}}
backends: {{local: {{kind: local, model: {model}}}}}
endpoints:
  default: {{mode: stream, cache: {{semantic: off}}}}
  whole: {{mode: request_response, cache: {{semantic: off}}}}
"""
ENGINE_START = 240.0
"""Seconds; the first time it converts its weights."""
PATHS = (load.PATH, f"/whole{load.PATH}")


class Amount(NamedTuple):
    """Requests that are learnt, and that are foretold; words of a prompt and tokens of an answer, at most."""

    learnt: int = 50
    foretold: int = 30
    words: int = 300
    tokens: int = 48


LITTLE = Amount(learnt=10, foretold=6, words=60, tokens=12)


def measure(size: Size) -> Figures:
    amount = LITTLE if size.prompts <= QUICK.prompts else Amount()
    requests = _requests(amount)
    with tempfile.TemporaryDirectory() as folder:
        say("latency: starting a gateway and its engine")
        with gateway(CONFIG.format(key=load.KEY, model=MODEL), Path(folder), patience=ENGINE_START) as server:
            _ask(server.port, *next(requests))  # the first one finds cold caches
            for _ in range(amount.learnt):
                _ask(server.port, *next(requests))
            say(f"latency: {amount.learnt} requests are learnt")
            known = _known(server.port)
            calls = [_ask(server.port, *next(requests)) for _ in range(amount.foretold)]
            own = _known(server.port)["error"]
    errors = [abs(_foretold(known, call) - _taken(call)) / _taken(call) for call in calls]
    blind = [abs(call["predicted_ms"] - call["phases"]["upstream"]) / call["phases"]["upstream"] for call in calls]
    return {
        "error": statistics.median(errors),
        "error_p90": statistics.quantiles(errors, n=10)[-1],
        "own_error": own,
        "blind_error": statistics.median(blind),
        "shortest_ms": min(map(_taken, calls)),
        "longest_ms": max(map(_taken, calls)),
        **{name: float(known[name] or 0) for name in ("overhead_ms", "prefill_tps", "decode_tps", "samples")},
    }


def rows(f: Figures) -> list[Row]:
    speeds = f"{f['overhead_ms']:.0f} ms, {f['prefill_tps']:.0f} and {f['decode_tps']:.1f} tokens/s"
    return [
        Row(
            f"latency model after {f['samples']:.0f} requests, error of the next ones, median",
            speeds,
            f"{f['shortest_ms']:.0f} to {f['longest_ms']:.0f} ms, 9 of 10 within {f['error_p90']:.0%}",
            f"{f['error']:.1%}",
            "<= 15 %",
        ),
        Row("its own word on its error", f"{f['own_error']:.1%}", "", ""),
        Row("expected before the call, without its tokens", f"{f['blind_error']:.1%}", "", ""),
    ]


def _requests(amount: Amount) -> Iterator[tuple[str, bytes]]:
    rnd, words = random.Random(7), TEXT.read_text().split()
    for number in range(amount.learnt + amount.foretold + 1):
        count = rnd.randint(amount.words // 20, amount.words)
        start = rnd.randrange(len(words) - count)
        messages = [{"role": "user", "content": f"{number}: {' '.join(words[start : start + count])}"}]
        tokens = rnd.randint(amount.tokens // 12, amount.tokens)
        body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        yield PATHS[number % 2], json.dumps({**body, "stream": number % 4 < 2}).encode()


def _ask(port: int, path: str, body: bytes) -> dict[str, Any]:
    """The decision on this request, which the engine must have answered."""
    headers = {"authorization": f"Bearer {load.KEY}", "content-type": "application/json"}
    asked = urllib.request.Request(load.url(port, path), data=body, headers=headers)
    with urllib.request.urlopen(asked, timeout=300) as response:
        response.read()
        found: dict[str, Any] = _get(port, f"/admin/decisions?id={response.headers['x-request-id']}")
    return found


def _known(port: int) -> dict[str, Any]:
    found: dict[str, Any] = _get(port, "/admin/stats")["backends"]["local"]["models"][MODEL]
    return found


def _get(port: int, path: str) -> Any:
    asked = urllib.request.Request(load.url(port, path), headers={"authorization": f"Bearer {load.KEY}"})
    with urllib.request.urlopen(asked, timeout=30) as response:
        return json.load(response)


def _foretold(known: dict[str, Any], call: dict[str, Any]) -> float:
    """From its tokens, by what is known; a speed of null is one that takes no time."""
    tokens, ms = call["tokens"], float(known["overhead_ms"])
    for count, speed in ((tokens["input"] - tokens["cached"], "prefill_tps"), (tokens["output"], "decode_tps")):
        ms += 1000 * count / known[speed] if known[speed] else 0.0
    return ms


def _taken(call: dict[str, Any]) -> float:
    phases = call["phases"]
    return float(phases["upstream"] - phases.get("upstream_queue", 0.0))
