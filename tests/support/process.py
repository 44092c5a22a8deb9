"""`refrain serve` as users start it: a process of its own, ended by pid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.upstream import free_port

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Served:
    port: int
    process: "subprocess.Popen[str]" = field(repr=False)
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, seconds: float = 100, *, path: str = "/readyz") -> None:
        """Wait until the gateway and a backend are ready; `path` /healthz: until the gateway alone is."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"refrain serve ended with {self.process.returncode}:\n{self.log.read_text()}")
            try:
                if httpx.get(f"{self.url}{path}", timeout=2, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"refrain serve was not ready in time:\n{self.log.read_text()}")

    def stop(self, sig: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(timeout=30)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", **more}


def refrain(*arguments: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    command = [sys.executable, "-m", "gateway.cli", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=120, check=False
    )


@contextmanager
def serve(cwd: Path, *arguments: str, port: int | None = None, **env: str) -> Iterator[Served]:
    """A gateway in `cwd`, not waited for."""
    port = port or free_port()
    log = cwd / f"serve-{port}.log"
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port", str(port), *arguments]
    with log.open("a") as out:
        process = subprocess.Popen(command, cwd=cwd, env=environment(**env), stdout=out, stderr=out, text=True)
    served = Served(port, process, log)
    try:
        yield served
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
