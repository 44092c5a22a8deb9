"""The batch lane: what its lines cost the backend, what they cost everybody else, how fast a large file is taken."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import httpx

from benchmarks import load
from benchmarks.latency import ENGINE_START
from benchmarks.procs import PATIENCE, Server, bare_server, gateway
from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, Steps, in_turns, say
from benchmarks.streaming import Pace

LINES, DISTINCT = 10_000, 6_000
MOST = 50_000
SHORT = Pace(tokens=50, pause=0, first=50)
"""An answer that takes a twentieth of a second."""
ENDED = ("completed", "failed", "expired", "cancelled")
CONFIG = """
auth:
  keys: [{{key: {key}, tenant: bench, user: bench, role: admin}}]
store: {{url: "sqlite:///{folder}/cache.db"}}
backends: {{up: {backend}}}
models: {{"*": up}}
endpoints:
  default: {{mode: request_response, cache: {{semantic: off}}}}
  nightly: {{mode: batch, cache: {{semantic: off}}}}
"""


def measure(size: Size) -> Figures:
    scale = 1 if size.rounds > 1 else 20
    figures: Figures = {}
    with bare_server("streaming:app") as upstream, _serving(f"http://127.0.0.1:{upstream.port}/v1") as server:
        figures |= _duplicates(server, upstream, LINES // scale, DISTINCT // scale)
        remote = Beside("remote", requests=100 if size.rounds > 1 else 20, lines=LINES, body=_short)
        figures |= in_turns("batch beside a remote", size.rounds, partial(_steps, server, remote), remote.compare)
        figures |= _large(server, MOST // scale)
    if size.rounds == 1:
        return figures | {"local_alone_ms": nan, "local_beside_ms": nan, "local_ratio": nan}  # an engine takes too long
    with _serving("") as server:
        local = Beside("local", requests=20, lines=1_000, body=_model)
        return figures | in_turns("batch beside the engine", 3, partial(_steps, server, local), local.compare)


@contextmanager
def _serving(url: str) -> Iterator[Server]:
    """A gateway before the server at this URL, or else before its local engine."""
    backend = f'{{kind: remote, base_url: "{url}"}}' if url else "{kind: local, model: SmolLM2-135M-Instruct}"
    with tempfile.TemporaryDirectory() as folder:
        config = CONFIG.format(key=load.KEY, folder=folder, backend=backend)
        with gateway(config, Path(folder), patience=PATIENCE if url else ENGINE_START) as server:
            yield server


def _duplicates(server: Server, upstream: Server, lines: int, distinct: int) -> Figures:
    say(f"batch: {lines} lines of which {distinct} differ")
    before = load.calls(upstream.port)
    begun = time.perf_counter()
    with _client(server) as client:
        bodies = (_short(f"twice {n % distinct}") for n in range(lines))
        batch = _until(client, _create(client, _lines(bodies)), ENDED)
    taken = time.perf_counter() - begun
    assert batch["request_counts"] == {"total": lines, "completed": lines, "failed": 0}, batch
    calls = load.calls(upstream.port) - before
    return {"lines": lines, "distinct": distinct, "calls": calls, "lines_per_s": lines / taken}


@dataclass(frozen=True)
class Beside:
    """So many interactive requests, one after another, alone and beside a batch of so many lines; `body` makes a
    request of which each seed's is another one."""

    name: str
    requests: int
    lines: int
    body: Callable[[str], bytes]

    def compare(self, f: Figures) -> Figures:
        return {f"{self.name}_ratio": f[f"{self.name}_beside_ms"] / f[f"{self.name}_alone_ms"]}


def _short(seed: str) -> bytes:
    return load.body(f"{seed} {SHORT}")


def _model(seed: str) -> bytes:
    """For a real model: a prompt of some 30 tokens, 16 tokens of answer."""
    messages = [{"role": "user", "content": f"{seed}: {load.prompt(seed, 12)}"}]
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 16, "ignore_eos": True}).encode()


def _steps(server: Server, what: Beside, number: int) -> Steps:
    def alone() -> float:
        return _p99(server, what, f"alone {number}")

    def beside() -> float:
        with _client(server) as client:
            bodies = (what.body(f"beside {number} line {n}") for n in range(what.lines))
            id = _create(client, _lines(bodies))
            _until(client, id, ("in_progress", *ENDED))
            p99 = _p99(server, what, f"beside {number}")
            state = client.post(f"/batches/{id}/cancel").json()["status"]
            assert state == "cancelling", f"the batch was to be running all the time, and is {state}"
            _until(client, id, ENDED)
        return p99

    return [(f"{what.name}_alone_ms", alone), (f"{what.name}_beside_ms", beside)]


def _p99(server: Server, what: Beside, seed: str) -> float:
    """Milliseconds of interactive misses."""
    taken = []
    with httpx.Client(headers=_headers(), trust_env=False, timeout=60) as client:
        for n in range(what.requests):
            begun = time.perf_counter()
            client.post(load.url(server.port), content=what.body(f"{seed} {n}")).raise_for_status()
            taken.append((time.perf_counter() - begun) * 1000)
    return statistics.quantiles(taken, n=100, method="inclusive")[98]


def _large(server: Server, lines: int) -> Figures:
    """From the first byte of the upload to the moment from which its lines run."""
    data = _lines(_short(f"large {n}") for n in range(lines))
    before = peak = server.memory()
    say(f"batch: {lines} lines, {len(data) / 1e6:.0f} MB")
    begun = time.perf_counter()
    with _client(server) as client:
        id = _create(client, data)
        created = time.perf_counter() - begun
        while (batch := client.get(f"/batches/{id}").json())["status"] == "validating":
            peak = max(peak, server.memory())
            time.sleep(0.02)
        accepted = time.perf_counter() - begun
        assert batch["status"] == "in_progress", batch
        client.post(f"/batches/{id}/cancel").raise_for_status()
        _until(client, id, ENDED)
    mb = (max(peak, server.memory()) - before) / 1e6
    return {"large": lines, "large_mb": len(data) / 1e6, "created_s": created, "accepted_s": accepted, "grown_mb": mb}


def _lines(bodies: Iterable[bytes]) -> bytes:
    """An input file of these requests."""
    asked = {"method": "POST", "url": load.PATH}
    lines = ({"custom_id": f"line-{n}", **asked, "body": json.loads(body)} for n, body in enumerate(bodies))
    return "\n".join(map(json.dumps, lines)).encode()


@contextmanager
def _client(server: Server) -> Iterator[httpx.Client]:
    base = f"http://127.0.0.1:{server.port}/nightly/v1"
    with httpx.Client(base_url=base, headers=_headers(), trust_env=False, timeout=120) as client:
        yield client


def _headers() -> dict[str, str]:
    return {"authorization": f"Bearer {load.KEY}"}


def _create(client: httpx.Client, data: bytes) -> str:
    sent = client.post("/files", data={"purpose": "batch"}, files={"file": ("bench.jsonl", data)})
    asked = {"input_file_id": sent.json()["id"], "endpoint": load.PATH, "completion_window": "24h"}
    return str(client.post("/batches", json=asked).json()["id"])


def _until(client: httpx.Client, id: str, states: Iterable[str]) -> dict[str, Any]:
    wanted = frozenset(states)
    while (batch := client.get(f"/batches/{id}").json())["status"] not in wanted:
        time.sleep(0.05)
    return dict(batch)


def rows(f: Figures) -> list[Row]:
    def beside(name: str, what: str, bar: str) -> Row:
        alone, ratio = f"{f[f'{name}_alone_ms']:,.1f} ms", f"{f[f'{name}_ratio']:.2f}x"
        return Row(what, f"{f[f'{name}_beside_ms']:,.1f} ms", alone, ratio, bar)

    lines = f"batch of {f['lines']:,.0f} lines, {f['distinct']:,.0f} of them different"
    calls = (f"{f['lines_per_s']:,.0f} lines/s", "", f"{f['calls']:,.0f} upstream calls", f"{f['distinct']:,.0f}")
    large = f"batch of {f['large']:,.0f} lines, {f['large_mb']:.0f} MB, until it runs"
    took = (f"created after {f['created_s']:.1f} s", "", f"{f['accepted_s']:.1f} s, +{f['grown_mb']:.0f} MB")
    return [
        Row(lines, *calls),
        beside("remote", "interactive miss beside a full batch / alone, p99, remote", "<= 1.3x"),
        beside("local", "the same on the local engine", "<= 2x"),
        Row(large, *took, "<= 10 s, 300 MB"),
    ]
