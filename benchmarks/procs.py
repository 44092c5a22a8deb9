"""Servers as processes of their own, one core each as far as the machine has them; ended by pid."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

UVICORN = ("--http", "httptools", "--loop", "uvloop", "--no-access-log", "--log-level", "error", "--lifespan", "off")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def bare_server(app: str, **env: str) -> Iterator[int]:
    """`app` of benchmarks.apps under a bare uvicorn; gives its port."""
    port = free_port()
    with _process(
        [sys.executable, "-m", "uvicorn", f"benchmarks.apps:{app}", "--port", str(port), *UVICORN], port, env=env
    ):
        yield port


@contextmanager
def gateway(config: str, folder: Path) -> Iterator[int]:
    """`refrain serve` with this configuration; gives its port."""
    port, path = free_port(), folder / "refrain.yaml"
    path.write_text(config)
    command = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(path), "--port", str(port)]
    with _process(command, port, ready="/readyz"):
        yield port


@contextmanager
def _process(
    command: list[str], port: int, ready: str | None = None, env: Mapping[str, str] | None = None
) -> Iterator[None]:
    full = {**os.environ, "PYTHONPATH": os.getcwd(), **(env or {})}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=full)
        try:
            _wait(process, port, ready, said)
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: "subprocess.Popen[bytes]", port: int, ready: str | None, said: TextIO) -> None:
    deadline = time.monotonic() + 60
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
    sys.exit("a server did not become ready in a minute")
