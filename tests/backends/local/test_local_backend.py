"""The engine as a process that is started, watched, restarted and ended; with a tiny model, so that it is quick."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from backends.base import Call, ConnectFailed
from backends.local.backend import LocalBackend
from backends.supervisor import Supervisor

START = 60.0  # seconds that the engine may take on a busy machine


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
async def backend(tiny_gguf: Path) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend("tiny", model=str(tiny_gguf), precision="fp32")
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()


def completion(**fields: object) -> Call:
    return Call("completions", json.dumps({"prompt": "ab", "temperature": 0, "max_tokens": 5} | fields).encode())


def is_alive(pid: int) -> bool:
    """Not so for a zombie: in a container nobody may collect an orphan."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    for _ in iter(lambda: bool(condition()), True):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.model
async def test_the_life_of_an_engine(backend: LocalBackend) -> None:
    # Calls wait while it starts.
    assert backend.state() == "starting"
    assert await backend.wait_ready(START)
    reply = await backend.send(completion())
    first = await reply.read()
    assert reply.status == 200, first
    assert (backend.state(), backend.detail) == ("ready", "ready")

    # It knows which call is batch.
    batch = await backend.send(replace(completion(stream=True, max_tokens=90_000), priority="batch"))
    pieces = batch.chunks()
    for _ in range(3):  # one step is over, and counted
        await anext(pieces)
    transport = httpx.AsyncHTTPTransport(uds=backend._supervisor.uds)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert 'refrain_engine_running{priority="batch"} 1.0' in (await client.get("/metrics")).text
    await batch.aclose()

    # Killed, it comes back by itself.
    pid = backend.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: backend.state() == "starting")
    assert "SIGKILL" in backend.detail
    assert await backend.wait_ready(START)
    assert backend.pid not in (None, pid)
    again = await backend.send(completion())
    assert json.loads(await again.read())["choices"] == json.loads(first)["choices"]

    # Ended in the middle of an answer, it says so to the client and does not wait for the answer's end.
    stream = await backend.send(completion(stream=True, max_tokens=90_000))
    pieces = stream.chunks()
    await anext(pieces)
    pid = backend.pid
    assert pid is not None
    start = time.monotonic()
    closing = asyncio.create_task(backend.aclose())
    rest = b"".join([piece async for piece in pieces])
    await closing
    assert time.monotonic() - start < 5
    assert b'"engine_stopping"' in rest
    assert b"[DONE]" not in rest
    assert not is_alive(pid)
    assert backend.state() == "down"


async def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    backend = LocalBackend("none", model=str(tmp_path / "nope.gguf"))
    await backend.start()
    try:
        assert not await backend.wait_ready(START)
        assert backend.state() == "down"
        assert "There is no file" in backend.detail
        with pytest.raises(ConnectFailed) as caught:
            await backend.send(completion())
        assert str(tmp_path) not in str(caught.value)
    finally:
        await backend.aclose()


async def test_what_the_engine_is_told(tiny_gguf: Path) -> None:
    settings = {"precision": "bf16", "quantize": "int8", "max_running": 3, "max_queue": 0, "kv_memory": 2**20}
    backend = LocalBackend("tiny", model=str(tiny_gguf), **settings)  # type: ignore[arg-type]
    assert backend.revision.endswith(":bf16:int8")
    await backend.start()
    try:
        await eventually(lambda: backend.pid)
        line = Path(f"/proc/{backend.pid}/cmdline").read_text().split("\0")  # noqa: ASYNC240
    finally:
        await backend.aclose()
    told = {f"--{name.replace('_', '-')}={value}" for name, value in settings.items()}
    assert told | {f"--model={tiny_gguf}", "--any-model"} <= set(line)


@pytest.mark.parametrize("settings", [{"quantize": "int3"}, {"precision": "fp8"}])
def test_a_form_of_weights_that_cannot_be(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"quantize|precision"):
        LocalBackend("none", model="any", **settings)  # type: ignore[arg-type]


async def test_what_the_engine_says_is_logged_and_nothing_is_left_behind(tiny_gguf: Path) -> None:
    lines: list[str] = []
    supervisor = Supervisor(["--model", str(tiny_gguf)], log=lines.append)
    await supervisor.start()
    folder = Path(supervisor.uds).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    await eventually(lambda: lines, START)
    pid = supervisor.pid
    await supervisor.aclose()
    await supervisor.aclose()
    assert lines[0] == "importing torch"
    assert pid is not None
    assert not is_alive(pid)
    assert not folder.exists()
    assert (supervisor.state, supervisor.pid) == ("down", None)


PARENT = """
import asyncio, sys
from backends.supervisor import Supervisor

async def main():
    supervisor = Supervisor(["--model", sys.argv[1]], log=lambda line: print("log", line, flush=True))
    await supervisor.start()
    while supervisor.pid is None:
        await asyncio.sleep(0.01)
    print("pid", supervisor.pid, supervisor.uds, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_no_orphan_when_the_parent_is_killed(tiny_gguf: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tiny_gguf)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        _, number, uds = parent.stdout.readline().split()
        pid = int(number)
        assert parent.stdout.readline() == "log importing torch\n"  # it runs, and is busy
        assert is_alive(pid)
        parent.kill()
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline, "the engine outlives its parent"
        time.sleep(0.02)
    assert not Path(uds).parent.exists()
