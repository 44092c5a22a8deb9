"""A gateway with the real local model, and its engine's process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.gateway import KEYS, Running, running
from tests.support.traffic import until

MODEL = "SmolLM2-135M-Instruct"
START = 110.0
"""Seconds that an engine may take; the first time it converts its weights."""


def engine_of(pid: int) -> int | None:
    """The child of this process that is an engine; None between two. There may be other children."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                if b"backends.local" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
            except OSError:
                continue
    return None


@contextmanager
def local_gateway(endpoints: str = "", *, settings: str = "") -> Iterator[Running]:
    """In this process, with a store in memory and the keys of every test gateway; ready."""
    text = f"""
backends: {{local: {{kind: local, model: {MODEL}, precision: fp32{settings}}}}}
store: {{url: "memory://"}}
{KEYS}
endpoints:
  default: {{}}
{endpoints}
"""
    with running(text) as gw:
        until(lambda: readiness(gw) == (200, "ready"), START)
        yield gw


def readiness(gw: Running) -> tuple[int, str]:
    response = gw.client.get("/readyz")
    return response.status_code, response.json()["status"]


def own_engine() -> int:
    """Of the gateway in this process; there must be one."""
    pid = engine_of(os.getpid())
    assert pid is not None
    return pid
