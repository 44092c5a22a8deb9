"""What is known, within its bytes, and no longer than the cache has it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from cache.match import Match
from cache.semantic.known import LEAST, PAGE, Known
from cache.semantic.questions import ROW_OVERHEAD, Row
from tests.contract.stores import START, Clock, key_of
from tests.support.embedders import DIMENSIONS
from tests.support.tiers import MIB, RESET, SAME, Paced, context_of, memory_cache, tiered, written

HERE = np.eye(DIMENSIONS, dtype=np.float32)[0]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


def known(clock: Clock, *, max_bytes: int = MIB) -> Known:
    return Known(memory_cache(clock), Paced(), max_bytes)


def row(name: str, context: str = "c") -> Row:
    return Row(key_of(name), context_of(context), RESET)


# No longer than the cache has it


@pytest.mark.parametrize("change", ["purge", "expire"])
async def test_the_sweep_forgets_what_the_cache_has_lost(path: Path, clock: Clock, change: str) -> None:
    await written(path, clock, expires=START + 10, keep_until=START + 10)
    async with tiered(clock, path) as t:
        await t.tier.restore()
        assert await t.tier.known.sweep() == 0
        clock.time += 5
        await t.tell("y", RESET, "Click on it.", context="d")
        if change == "purge":
            await t.cache.purge(Match(older_than=START + 1))
        else:
            clock.time += 5
        assert await t.tier.known.sweep() == 3
        assert list(t.tier.known.questions) == [key_of("y")]
        assert t.tier.known.vectors == 0
        assert (await t.ask("c", SAME)).reason == "first_in_context"


@pytest.mark.parametrize("turns", range(6))
async def test_one_that_is_answered_anew_during_a_sweep_stays(path: Path, clock: Clock, turns: int) -> None:
    await written(path, clock, expires=START + 10, keep_until=START + 10)
    async with tiered(clock, path) as t:
        await t.tier.restore()
        clock.time += 10
        finding = await t.ask("a", threshold=9.0)
        sweeping = asyncio.create_task(t.tier.known.sweep())
        for _ in range(turns):
            await asyncio.sleep(0)
        t.tier.learn(finding, await t.put("a", "Click on it.", expires=START + 99, keep_until=START + 99))
        await sweeping
        assert t.tier.known.questions.get(key_of("a")) is not None


async def test_a_long_sweep_does_not_hold_up_the_loop(clock: Clock) -> None:
    many = known(clock, max_bytes=64 * MIB)
    for n in range(20_000):
        many.add(row(f"{n}", f"{n}"), None)
    turns, sweeping = 0, asyncio.create_task(many.sweep())
    while not sweeping.done():
        await asyncio.sleep(0)
        turns += 1
    assert await sweeping == 20_000
    assert turns >= 20_000 / PAGE, "others had too few turns"


# Bytes


def test_both_go_when_one_has_no_more_room(clock: Clock) -> None:
    few = known(clock, max_bytes=100_000)  # texts: 30,000; vectors: LEAST or 70,000
    for n in range(200):
        few.add(row(f"{n}"), HERE)
        assert len(few.questions) == few.vectors
        assert few.questions.bytes <= 30_000
        assert few.size <= 30_000 + max(LEAST, 70_000)
    assert 0 < len(few.questions) <= 30_000 // ROW_OVERHEAD
    assert few.questions.get(key_of("199")) is not None
    few.close()


def test_when_vectors_go_their_questions_go(clock: Clock) -> None:
    wide = Paced()
    wide.dimensions = 2000
    few = Known(memory_cache(clock), wide, 200_000)
    for n in range(40):
        few.add(row(f"{n}"), np.eye(2000, dtype=np.float32)[0])
    assert 0 < len(few.questions) == few.vectors < 20
    few.close()


def test_a_vector_that_comes_late_is_only_for_the_question_it_is_of(clock: Clock) -> None:
    few, former = known(clock), row("a")
    few.add(former, None)
    few.forget(key_of("a"))
    assert not few.embedded(former, HERE)
    few.add(row("a"), None)
    assert not few.embedded(former, HERE), "another question under the same key"
    assert few.vectors == 0
    few.forget(key_of("unknown"))
    few.close()
