"""Servers as processes of their own, one core each as far as the machine has them; ended by pid."""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

UVICORN = ("--http", "httptools", "--loop", "uvloop", "--no-access-log", "--log-level", "error", "--lifespan", "off")
PATIENCE = 60.0
"""Seconds that a server may take to become ready."""
FILES = 4096
"""Open files that a server may need: a gateway has two connections for each stream."""


class Server(NamedTuple):
    port: int
    pid: int

    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def bare_server(app: str, **env: str) -> Iterator[Server]:
    """`app` ("module:name" in this package) under a bare uvicorn."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.{app}", "--port", str(port), *UVICORN]
    with _process(command, port, env=env) as server:
        yield server


@contextmanager
def gateway(config: str, folder: Path, module: str = "gateway.cli", patience: float = PATIENCE) -> Iterator[Server]:
    """`refrain serve` with this configuration, ready within so many seconds."""
    port, path = free_port(), folder / "refrain.yaml"
    path.write_text(config)
    command = [sys.executable, "-m", module, "serve", "--config", str(path), "--port", str(port)]
    with _process(command, port, ready="/readyz", patience=patience) as server:
        yield server


@contextmanager
def server(command: list[str], port: int, ready: str) -> Iterator[Server]:
    """Any server; `ready` is a path that it answers with 200 when it is."""
    with _process(command, port, ready=ready) as started:
        yield started


@contextmanager
def _process(
    command: list[str],
    port: int,
    ready: str | None = None,
    env: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> Iterator[Server]:
    _raise_limit()
    full = {**os.environ, "PYTHONPATH": os.getcwd(), **(env or {})}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=full)
        try:
            _wait(process, port, ready, said, patience)
            yield Server(port, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _raise_limit() -> None:
    """Of open files, here and in what is started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        enough = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def _wait(process: "subprocess.Popen[bytes]", port: int, ready: str | None, said: TextIO, patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said.seek(0)
            sys.exit(f"a server did not start:\n{said.read()}")
        try:
            if ready is None:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            else:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    sys.exit(f"a server did not become ready within {patience:.0f} s")
