"""The local embedder: a real model in a real process, and what becomes of its calls when that process goes wrong."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from cache.semantic.embedder import MAX_WAITING, EmbedderError, LocalEmbedder, backoff
from cache.semantic.embedder_wire import HEAD, Embed, frame
from tests.cache.semantic.embedder_tiny import HIDDEN, tiny
from tests.support.process import ROOT, environment

MODEL = "all-MiniLM-L6-v2"
SOON = 60.0  # seconds, on a busy machine


@asynccontextmanager
async def running(model: str | Path, *, hang: float = SOON) -> AsyncIterator[LocalEmbedder]:
    embedder = LocalEmbedder(str(model), hang=hang)
    assert (embedder.state, embedder.identity, embedder.dimensions) == ("starting", "", 0)
    await embedder.start()
    try:
        await until(embedder, "ready")
        yield embedder
    finally:
        pid = embedder.pid
        await embedder.aclose()
        await embedder.aclose()
    assert pid is None or not alive(pid)
    assert (embedder.state, embedder.detail) == ("failed", "stopped")


async def until(embedder: LocalEmbedder, state: str) -> None:
    async with asyncio.timeout(SOON):
        while embedder.state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stop(embedder: LocalEmbedder) -> int:
    """Its process stands still; the pid."""
    assert embedder.pid is not None
    os.kill(embedder.pid, signal.SIGSTOP)
    return embedder.pid


async def reason(call: "asyncio.Task[np.ndarray] | asyncio.Future[np.ndarray]") -> str:
    with pytest.raises(EmbedderError) as caught:
        await call
    return caught.value.reason


def call(embedder: LocalEmbedder, *texts: str, deadline: float = SOON) -> "asyncio.Task[np.ndarray]":
    return asyncio.create_task(embedder.embed(texts, deadline=deadline))


@pytest.mark.model
async def test_vectors_of_the_bundled_model_mean_something() -> None:
    async with running(MODEL) as embedder:
        assert embedder.dimensions == 384
        name, digest, precision = embedder.identity.split(":")
        assert (name, len(digest), precision) == (MODEL, 16, "fp32")
        texts = ["How do I reset my password?", "how can i change my password", "The weather in Rome"]
        vectors = await embedder.embed(texts, deadline=SOON)
        assert vectors.shape == (3, 384)
        assert vectors.dtype == np.float32
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        assert vectors[0] @ vectors[1] > 0.8 > 0.3 > vectors[0] @ vectors[2]
        assert (await embedder.embed([], deadline=SOON)).shape == (0, 384)
        # 254 of these words and two marks are 256 tokens, which is all that the model takes.
        long, longer = "a " * 254, "a " * 255
        results = await asyncio.gather(
            *(embedder.embed([text], deadline=SOON) for text in (long, longer, "a" * 70_000, "\ud800", "fine")),
            return_exceptions=True,
        )
        assert [r.reason if isinstance(r, EmbedderError) else r.shape for r in results] == [
            (1, 384), "too_long", "too_long", "failed", (1, 384),
        ]  # fmt: skip


@pytest.mark.slow
async def test_an_unknown_model_is_a_failure_that_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    embedder = LocalEmbedder("no-such/model")
    await embedder.start()
    assert await reason(call(embedder, "hello")) == "starting"
    await until(embedder, "failed")
    assert "no-such/model" in embedder.detail
    assert "give its folder" in embedder.detail
    assert "give its folder" in caplog.text
    assert await reason(call(embedder, "hello")) == "failed"
    await embedder.aclose()


async def test_many_calls_at_once_and_a_caller_that_has_given_up(tmp_path: Path) -> None:
    async with running(tiny(tmp_path)) as embedder:
        pid = stop(embedder)
        assert await reason(call(embedder, "w1", deadline=0.05)) == "deadline"
        begun = time.monotonic()
        assert await reason(call(embedder, "w2", deadline=0.05)) == "deadline"
        assert time.monotonic() - begun < 1
        calls = [call(embedder, f"w{i}") for i in range(50)]
        left = call(embedder, "w59")
        await asyncio.sleep(0)
        left.cancel()
        os.kill(pid, signal.SIGCONT)
        rows = [(await each)[0] for each in calls]
        for i in (0, 1, 49):
            assert np.allclose(rows[i], (await embedder.embed([f"w{i}"], deadline=SOON))[0], atol=1e-6)
        assert rows[0].shape == (HIDDEN,)


async def test_more_than_may_wait_is_refused_at_once(tmp_path: Path) -> None:
    async with running(tiny(tmp_path)) as embedder:
        pid = stop(embedder)
        first = call(embedder, "w1")
        await asyncio.sleep(0.1)  # it is with the process
        waiting = call(embedder, *(f"w{i} w2" for i in range(MAX_WAITING)))
        await asyncio.sleep(0)
        assert await reason(call(embedder, "one too many")) == "busy"
        os.kill(pid, signal.SIGCONT)
        assert (await first).shape == (1, HIDDEN)
        assert (await waiting).shape == (MAX_WAITING, HIDDEN)


async def test_a_killed_process_fails_its_calls_and_comes_back(tmp_path: Path) -> None:
    async with running(tiny(tmp_path)) as embedder:
        identity, before = embedder.identity, await embedder.embed(["w1"], deadline=SOON)
        for working in (True, False):
            pid = stop(embedder)
            calls = [call(embedder, f"w{i}") for i in range(40 if working else 0)]
            await asyncio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            assert {await reason(each) for each in calls} <= {"unavailable"}
            await until(embedder, "starting")
            assert await reason(call(embedder, "w1")) == "starting"
            await until(embedder, "ready")
            assert embedder.pid != pid
            assert embedder.identity == identity
            assert (await embedder.embed(["w1"], deadline=SOON) == before).all()


async def test_a_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    async with running(tiny(tmp_path), hang=0.3) as embedder:
        pid = stop(embedder)
        with pytest.raises(EmbedderError, match=r"did not answer within 0\.3 s") as caught:
            await embedder.embed(["w1"], deadline=SOON)
        assert caught.value.reason == "unavailable"
        await until(embedder, "ready")
        assert embedder.pid != pid
        assert not alive(pid)


async def test_a_model_that_changes_under_a_running_gateway_is_refused(tmp_path: Path) -> None:
    async with running(tiny(tmp_path, seed=1)) as embedder:
        identity, pid = embedder.identity, embedder.pid
        tiny(tmp_path, seed=2)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(embedder, "failed")
        assert "restart the gateway" in embedder.detail
        assert embedder.identity == identity


def test_the_pauses_between_two_starts_grow() -> None:
    assert [backoff(n) for n in (1, 2, 3, 7, 100)] == [0.5, 1, 2, 30, 30]


def test_the_process_ends_with_its_input_and_not_by_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cache.semantic.embedder_worker", str(tiny(tmp_path))]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert len(process.stdout.read(HEAD)) == HEAD  # it has begun
    process.send_signal(signal.SIGINT)
    process.stdin.write(frame(Embed(["w1"]))[:-1])  # an end in the middle is an end
    process.stdin.close()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()


KILLED = """
import asyncio, sys, time
from cache.semantic.embedder import LocalEmbedder
async def main():
    embedder = LocalEmbedder(sys.argv[1])
    await embedder.start()
    while embedder.state != "ready":
        await asyncio.sleep(0.02)
    print(embedder.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_a_killed_gateway_leaves_no_process_and_loading_prints_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tiny(tmp_path))]
    gateway = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert gateway.stdout is not None
    assert gateway.stderr is not None
    pid = int(gateway.stdout.readline())  # the first line is the script's own
    assert alive(pid)
    gateway.kill()
    gateway.wait()
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)
    assert (gateway.stdout.read(), gateway.stderr.read()) == (b"", b"")
    gateway.stdout.close()
    gateway.stderr.close()
