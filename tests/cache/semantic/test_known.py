"""What is known over a restart, within its bytes, and no longer than the cache has it."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cache.match import Match
from cache.question import Question
from cache.semantic.known import LEAST, PAGE, Known
from cache.semantic.questions import ROW_OVERHEAD, Row
from cache.stores.base import StoreUnavailable
from tests.contract.stores import START, Clock, key_of
from tests.support.embedders import DIMENSIONS
from tests.support.tiers import MIB, RESET, RIVERS, SAME, Paced, context_of, memory_cache, tiered

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


async def written(path: Path, clock: Clock, **more: float) -> None:
    """Three questions of one context: a and b have one answer, z another."""
    async with tiered(clock, path) as t:
        await t.tell("b", RESET, "Click on it.", **more)
        await t.tell("z", RIVERS, "Danube and Wien.", **more)
        t.tier.learn(await t.ask("a", SAME, threshold=9.0), await t.put("a", "Click on it.", **more))
        await t.tier.compared()
        assert t.group("a") == {key_of("a"), key_of("b")}
        await t.cache.flush()


# Over a restart


async def test_questions_vectors_and_groups_are_there_again(path: Path, clock: Clock) -> None:
    await written(path, clock)
    async with tiered(clock, path) as t:
        assert await t.tier.restore() == 3
        assert (len(t.tier.known.questions), t.tier.known.vectors) == (3, 3)
        assert t.group("a") == t.group("b") == {key_of("a"), key_of("b")}
        assert t.served(await t.ask("c", SAME)) == "Click on it."
        assert t.embedded == [SAME]


@pytest.mark.parametrize("names", ["abcd", "dcba", "bdac"])
async def test_groups_are_there_again_in_whatever_order_they_are_read(path: Path, clock: Clock, names: str) -> None:
    """Keys are digests, so whether the later of two is read first is chance."""
    async with tiered(clock, path) as t:
        for name in names:
            t.tier.learn(await t.ask(name, threshold=9.0), await t.put(name, "Click on it."))
            await t.tier.compared()
        whole = t.group("a")
        assert len(whole) == 4
        await t.cache.flush()
    async with tiered(clock, path) as t:
        await t.tier.restore()
        assert t.group("a") == whole


async def test_vectors_of_another_embedder_are_made_again(path: Path, clock: Clock) -> None:
    await written(path, clock)
    async with tiered(clock, path, embedder=Paced(identity="another")) as t:
        assert await t.tier.restore() == 3
        assert t.tier.known.vectors == 0
        assert t.group("a") == {key_of("a"), key_of("b")}
        assert t.served(await t.ask("c", SAME)) == "Click on it."
        assert len(t.embedded) == 4
        assert t.tier.known.vectors == 3
        await t.tier.compared()
        await t.cache.flush()
        assert {q.embedder for q in await t.cache.questions(after=b"", limit=9)} == {"another"}


@pytest.mark.parametrize(
    "vector",
    [
        b"",
        HERE.tobytes()[:-4],
        HERE.tobytes() + bytes(4),
        np.full(DIMENSIONS, np.nan, np.float32).tobytes(),
        np.full(DIMENSIONS, np.inf, np.float32).tobytes(),
        np.full(DIMENSIONS, 1e30, np.float32).tobytes(),
        (HERE * 1.01).tobytes(),
        (HERE * 0.99).tobytes(),
        bytes(4 * DIMENSIONS),
    ],
    ids=["none", "short", "long", "nan", "inf", "huge", "over", "under", "zero"],
)
async def test_a_damaged_vector_is_made_again(path: Path, clock: Clock, vector: bytes) -> None:
    async with tiered(clock, path) as t:
        await t.put("a", "Click on it.")
        await t.cache.note(Question(key_of("a"), context_of("c"), RESET, "placed", vector))
        await t.cache.flush()
        assert await t.tier.restore() == 1
        assert t.tier.known.vectors == 0
        assert t.served(await t.ask("c", SAME)) == "Click on it."


async def test_what_is_there_is_not_disturbed(path: Path, clock: Clock) -> None:
    await written(path, clock)
    async with tiered(clock, path) as t:
        finding = await t.ask("b", "What else?", context="d")
        t.tier.learn(finding, await t.put("b", "Something else."))
        t.tier.learn(await t.ask("y", RIVERS, context="d"), await t.put("y", "Danube and Wien."))
        now = t.tier.known.questions.get(key_of("b"))
        await t.tier.compared()
        await t.tier.restore()
        assert t.tier.known.questions.get(key_of("b")) is now
        assert t.group("a") == {key_of("a")}, "what b says now is not what it said"
        assert t.served(await t.ask("q", "What else?", context="d")) == "Something else."
        found = await t.ask("c", SAME)
        assert found.slot is not None
        assert found.slot.entry.key == key_of("a"), "b has left this context"


async def test_many_pages_are_read_and_others_have_their_turns(path: Path, clock: Clock) -> None:
    count = 2 * PAGE + 1
    async with tiered(clock, path, max_bytes=8 * MIB) as t:
        for n in range(count):
            await t.put(f"{n}", "Click on it.")
            await t.cache.note(Question(key_of(f"{n}"), context_of(f"{n % 100}"), RESET, "placed", HERE.tobytes()))
        await t.cache.flush()
        turns, reading = 0, asyncio.create_task(t.tier.restore())
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert await reading == count
        assert turns > 3
        assert (len(t.tier.known.questions), t.tier.known.vectors) == (count, count)


async def test_a_store_that_is_down_says_so_and_leaves_what_is_known(path: Path, clock: Clock) -> None:
    await written(path, clock)
    async with tiered(clock, path) as t:
        await t.tier.restore()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DROP TABLE questions")
        with pytest.raises(StoreUnavailable):
            await t.tier.restore()
        await t.cache.aclose()
        with pytest.raises(StoreUnavailable):
            await t.tier.known.sweep()
        assert len(t.tier.known.questions) == 3


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
