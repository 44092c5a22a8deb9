"""What it costs to see: exact hits with the ring, the ledger, the metrics and an open dashboard, against the same
gateway without any of them; and the memory of a full ring."""

import os
import signal
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import load
from benchmarks.procs import Server, bare_server, gateway
from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, Steps, in_turns

RING = 100_000
ROUNDS = 3
"""Times those of other benchmarks: single rounds differ by a tenth, and the bar is seven hundredths away."""
CONFIG = """
auth:
  keys: [{{key: {key}, tenant: bench, user: bench, role: admin}}]
store: {{url: "sqlite:///{folder}/cache.db"}}
backends: {{up: {{kind: remote, base_url: "http://127.0.0.1:{port}/v1"}}}}
models: {{"*": up}}
endpoints:
  default: {{mode: request_response, cache: {{semantic: off}}}}
decisions: {{ring: {ring}}}
"""


def measure(size: Size) -> Figures:
    ring, rounds = (RING, size.rounds * ROUNDS) if size.rounds > 1 else (RING // 20, 1)
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_server("apps:upstream") as upstream,
        gateway(_config(folder, upstream, ring), Path(folder), "benchmarks.blind") as server,
    ):
        hits = [load.body(f"hit {i}") for i in range(size.prompts)]
        load.one_by_one(server.port, hits)
        load.one_by_one(server.port, hits, "exact")
        ring_mb = _fill(server, hits, ring)  # first, so that what follows is measured with a ring that is full
        figures = in_turns("seeing", rounds, lambda _: _steps(server, hits, size), _compare)
        return figures | {"ring": float(ring), "ring_mb": ring_mb}


def _config(folder: str, upstream: Server, ring: int) -> str:
    return CONFIG.format(key=load.KEY, folder=folder, port=upstream.port, ring=ring)


def _steps(server: Server, hits: list[bytes], size: Size) -> Steps:
    def blind() -> float:
        os.kill(server.pid, signal.SIGUSR1)
        try:
            return load.throughput(server.port, hits, size.seconds)
        finally:
            os.kill(server.pid, signal.SIGUSR1)

    def seeing() -> float:
        with _dashboard(server.port):
            return load.throughput(server.port, hits, size.seconds)

    return [("blind_rps", blind), ("seeing_rps", seeing)]


def _compare(f: Figures) -> Figures:
    return {"seeing_ratio": f["seeing_rps"] / f["blind_rps"]}


def _fill(server: Server, hits: list[bytes], ring: int) -> float:
    """MB by which the process grows while its ring fills."""
    before, began = server.memory(), load.requests(server.port, "exact")
    while load.requests(server.port, "exact") - began < ring:
        load.throughput(server.port, hits, 1)
    return (server.memory() - before) / 1e6


@contextmanager
def _dashboard(port: int) -> Iterator[None]:
    """An open dashboard, which takes what the gateway sends it."""
    asked = urllib.request.Request(
        load.url(port, "/admin/live?range=1h&decisions=no"), headers={"authorization": f"Bearer {load.KEY}"}
    )
    seen, done = 0, threading.Event()

    def read() -> None:
        nonlocal seen
        with urllib.request.urlopen(asked, timeout=30) as stream:
            for line in stream:
                seen += line.startswith(b"event: overview")
                if done.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    yield
    done.set()
    reader.join()  # the next line, a heartbeat at the latest, ends it
    if not seen:
        sys.exit("the dashboard was sent nothing")


def rows(f: Figures) -> list[Row]:
    rps = (f"{f['seeing_rps']:,.0f} req/s", f"{f['blind_rps']:,.0f} req/s", f"{f['seeing_ratio']:.2f}x", ">= 0.93x")
    ring = ("", "", f"{f['ring_mb']:,.0f} MB", "<= 200 MB")
    return [
        Row("exact hit with an open dashboard / no record", *rps),
        Row(f"ring of {f['ring']:,.0f} decisions, hits", *ring),
    ]
