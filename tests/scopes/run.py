"""Many sequences, one after the other; and the shortest way to what one of them found."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import structlog

from tests.scopes.harness import Course
from tests.scopes.leaks import LEAKS, planted
from tests.scopes.loop import HurriedLoop
from tests.scopes.model import Leak
from tests.scopes.plan import plan
from tests.scopes.steps import Step
from tests.scopes.world import World

STORED_EVERY = 50
"""Every so many-th sequence has a store behind the memory, every second one of them behind next to none. They take
a real thread's time, so they are fewer."""

EXPECTED = (
    *(
        "exact",
        "byte_identical",
        "joined",
        "stale",
        "semantic",
        "remembered",
        "miss",
        "bypass",
        "refused",
        "not_allowed",
    ),
    *("not_cached", "failed", "left", "opportunities", "likes", "purges", "reports", "expiries", "reloads", "revoked"),
)


@dataclass
class Found:
    """A broken rule, and the steps that lead to it."""

    seed: int
    leak: Leak
    world: World
    steps: list[Any]


@dataclass
class Result:
    counts: Counter[str] = field(default_factory=Counter)
    found: Found | None = None
    seconds: float = 0.0
    expected: Sequence[str] = EXPECTED

    @property
    def unseen(self) -> list[str]:
        """What should have happened and did not: a gateway that reuses nothing leaks nothing either."""
        return [name for name in self.expected if not self.counts[name]]


def run(
    sequences: int, *, seed: int = 0, leak: str | None = None, progress: Callable[[int], None] = lambda done: None
) -> Result:
    """Run sequences with the seeds from `seed` on, up to the first that breaks a rule; with this leak planted."""
    result, begun = Result(), perf_counter()
    with planted(leak), _runs(leak) as runs:
        for number in range(seed, seed + sequences):
            world, steps = runs.plan(number)
            result.counts["sequences"] += 1
            found = runs.take(number, world, steps, result.counts)
            progress(number - seed + 1)
            if found is not None:
                result.found = shortest(number, world, steps, found, runs.take)
                break
    result.seconds = perf_counter() - begun
    return result


class Runs:
    """Runs sequences, each with an event loop of its kind."""

    def __init__(self, *, hurried: asyncio.Runner, patient: asyncio.Runner, directory: Path, stored: bool) -> None:
        self._hurried = hurried
        self._patient = patient
        self._directory = directory
        self._stored = stored
        self._files = 0

    def plan(self, seed: int) -> tuple[World, list[Step]]:
        return plan(seed, stored=self._has_store(seed))

    def take(self, seed: int, world: World, steps: Sequence[Step], counts: Counter[str]) -> Leak | None:
        file, runner = None, self._hurried
        if self._has_store(seed):
            self._files += 1
            file, runner = self._directory / f"{self._files}.db", self._patient
        counts["stored"] += file is not None
        small = file is not None and seed // STORED_EVERY % 2 == 0
        try:
            runner.run(Course(world, counts, file, small=small).run(steps))
        except Leak as leak:
            return leak
        return None

    def _has_store(self, seed: int) -> bool:
        return self._stored or seed % STORED_EVERY == STORED_EVERY - 1


def shortest(seed: int, world: World, steps: Sequence[Any], leak: Leak, take: Callable[..., Leak | None]) -> Found:
    """Leave out what follows, and then each step that it does not need; `take` runs a sequence."""
    needed = list(steps[: leak.at + 1])
    for at in reversed(range(len(needed))):
        fewer = needed[:at] + needed[at + 1 :]
        still = take(seed, world, fewer, Counter())
        if still is not None and still.rule == leak.rule:
            needed, leak = fewer, still
    return Found(seed, leak, world, needed)


@contextmanager
def _runs(leak: str | None) -> Iterator[Runs]:
    with ExitStack() as stack:
        stack.enter_context(silence())
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="refrain-scopes-")))
        hurried = stack.enter_context(asyncio.Runner(loop_factory=HurriedLoop))
        patient = stack.enter_context(asyncio.Runner())
        stored = leak is not None and LEAKS[leak].stored
        yield Runs(hurried=hurried, patient=patient, directory=directory, stored=stored)


@contextmanager
def silence() -> Iterator[None]:
    """The gateway logs every request that fails, and here many do."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
