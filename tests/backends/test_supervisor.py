"""What the supervisor takes for a hang, and what not; with a program in the engine's place that answers by a script."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends import pulse
from backends.supervisor import MAX_BACKOFF, Supervisor, backoff

LONG = 60.0  # seconds that nothing takes
PROGRAM = (str(Path(__file__).with_name("engine_stand_in.py")),)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "WATCH", 0.02)
    monkeypatch.setattr(pulse, "POLL", 0.02)


class Watched:
    """A supervisor, what it has warned of and in which state it was then, and the questions its engines were asked."""

    def __init__(self, words: tuple[str, ...], hang_after: float) -> None:
        self.warnings: list[str] = []
        self.states: list[str] = []
        self.questions: list[str] = []
        self.supervisor = Supervisor(
            words, log=self.questions.append, warn=self._warned, hang_after=hang_after, program=PROGRAM
        )

    def _warned(self, text: str) -> None:
        self.warnings.append(text)
        self.states.append(self.supervisor.state)


@asynccontextmanager
async def watched(*words: str, hang_after: float = LONG) -> AsyncIterator[Watched]:
    seen = Watched(words, hang_after)
    await seen.supervisor.start()
    try:
        yield seen
    finally:
        await seen.supervisor.aclose()


async def eventually(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        await asyncio.sleep(0.01)


async def test_who_waits_for_an_engine_that_ends_as_soon_as_it_is_ready_waits_for_the_next() -> None:
    supervisor = Supervisor((), log=str, warn=str, hang_after=LONG, program=PROGRAM)
    supervisor._set("starting", "")
    waits = asyncio.create_task(supervisor.wait_ready(LONG))
    await turns()
    supervisor._set("ready", "")
    supervisor._set("starting", "")
    await turns()
    assert not waits.done()
    supervisor._set("ready", "")
    assert await waits


async def turns() -> None:
    """Others get all that they want."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_engine_that_says_that_it_is_stalled_is_killed_and_another_one_started() -> None:
    async with watched("loading", "ready", "stalled") as engine:
        assert await engine.supervisor.wait_ready(LONG)
        first = engine.supervisor.pid
        assert await engine.supervisor.wait_unready(LONG)
        await eventually(lambda: engine.warnings)
        reason = "the engine hung: the model does not come to the end of a step"
        assert engine.warnings == [f"{reason}; next start in 0.5 s"]
        assert engine.states == ["starting"]  # it is expected back
        assert engine.supervisor.detail == reason
        assert engine.questions == ["loading", "ready", *["stalled"] * pulse.MISSES]
        assert await engine.supervisor.wait_ready(LONG)
        assert engine.supervisor.pid not in (None, first)


async def test_an_engine_that_answers_nothing_is_killed_and_another_one_started() -> None:
    async with watched("ready", "silent", hang_after=0.3) as engine:
        assert await engine.supervisor.wait_ready(LONG)
        begun = time.monotonic()
        await eventually(lambda: engine.warnings)
        assert time.monotonic() - begun >= 0.3
        assert engine.warnings == ["the engine hung: it has answered nothing for 0.3 s; next start in 0.5 s"]
        assert await engine.supervisor.wait_ready(LONG)


@pytest.mark.parametrize(
    ("words", "hang_after"),
    [
        (("ready", *("stalled", "stalled", "ready") * 3), LONG),  # long steps, but they end
        (("ready", "silent", "ready", "silent", "ready", "ready", "ready"), 0.9),  # asked anew after a pause
        (("ready", *["late"] * 4), 6.0),
    ],
    ids=["long steps", "pauses", "late answers"],
)
async def test_a_busy_engine_is_left_alone(words: tuple[str, ...], hang_after: float) -> None:
    async with watched(*words, hang_after=hang_after) as engine:
        assert await engine.supervisor.wait_ready(LONG)
        pid = engine.supervisor.pid
        await eventually(lambda: len(engine.questions) >= len(words) + 2)
        assert (engine.warnings, engine.supervisor.pid, engine.supervisor.state) == ([], pid, "ready")


async def test_a_kill_by_somebody_else_may_be_for_want_of_memory() -> None:
    async with watched("ready", "killed") as engine:
        assert await engine.supervisor.wait_ready(LONG)
        await eventually(lambda: engine.warnings)
        reason = (
            "the engine was killed by SIGKILL (out of memory?): try a lower kv_memory, quantize, or a smaller model"
        )
        assert engine.warnings == [f"{reason}; next start in 0.5 s"]


async def test_an_engine_that_is_killed_before_it_is_ready_is_down() -> None:
    async with watched("killed") as engine:
        assert not await engine.supervisor.wait_ready(LONG)
        assert engine.supervisor.state == "down"
        assert "out of memory?" in engine.supervisor.detail


async def test_a_stopped_engine_is_killed_too_and_the_end_does_not_wait_for_it() -> None:
    async with watched("ready", hang_after=0.3) as engine:
        assert await engine.supervisor.wait_ready(LONG)
        assert engine.supervisor.pid is not None
        os.kill(engine.supervisor.pid, signal.SIGSTOP)
        await eventually(lambda: engine.warnings)
        assert "answered nothing" in engine.warnings[0]


@pytest.mark.parametrize(("crashes", "seconds"), [(1, 0.5), (2, 1), (3, 2), (7, MAX_BACKOFF), (10_000, MAX_BACKOFF)])
def test_backoff(crashes: int, seconds: float) -> None:
    assert backoff(crashes) == seconds
