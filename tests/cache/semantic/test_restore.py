"""What is known again after a restart: questions, their vectors, which have one answer, and what was wrong."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cache.match import Match
from cache.question import Question
from cache.semantic.known import PAGE
from cache.stores.base import StoreUnavailable
from tests.contract.stores import Clock, key_of
from tests.support.embedders import DIMENSIONS
from tests.support.tiers import CLICK, MIB, RESET, RIVERS, SAME, Paced, context_of, grouped, tiered, written

HERE = np.eye(DIMENSIONS, dtype=np.float32)[0]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


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


@pytest.mark.slow
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


async def test_when_it_is_full_the_rest_is_left_out_and_what_is_there_stays(path: Path, clock: Clock) -> None:
    async with tiered(clock, path) as t:
        for n in range(100):
            await t.tell(f"{n}", context=f"{n}")
        await t.cache.flush()
    async with tiered(clock, path, max_bytes=50_000) as t:
        await t.tell("live")
        taken = await t.tier.restore()
        assert 0 < taken < 100
        assert len(t.tier.known.questions) == taken + 1, "none came in place of another"
        assert t.tier.known.questions.get(key_of("live")) is not None


# Which have one answer, and what was wrong


@pytest.mark.parametrize("lost", ["", "a", "b"])
@pytest.mark.parametrize("early", [True, False])
async def test_the_report_holds_over_a_restart(path: Path, clock: Clock, early: bool, lost: str) -> None:
    """Also where the answer that was served is no longer there to say who shared it."""
    async with tiered(clock, path) as t:
        await grouped(t)
        pairs = t.tier.report(key_of("q"), key_of("a"))
        if lost:
            await t.cache.purge(Match(key=key_of(lost)))
        await t.cache.flush()
    async with tiered(clock, path) as t:
        if early:
            t.tier.recall(pairs)
        assert await t.tier.restore() == (2 if lost else 3)
        if not early:
            t.tier.recall(pairs)
        found = await t.ask("q", SAME)
        assert (found.slot, found.reason) == (None, "reported_wrong")
        assert t.served(await t.ask("another", SAME)) == CLICK


@pytest.mark.parametrize("early", [True, False])
async def test_one_of_a_group_that_was_wrong_for_another_is_not_in_it_again(
    path: Path, clock: Clock, early: bool
) -> None:
    """What the store has kept is older than the report."""
    await written(path, clock)
    pairs = [(key_of("b"), key_of("a"))]
    async with tiered(clock, path) as t:
        if early:
            t.tier.recall(pairs)
        await t.tier.restore()
        if not early:
            assert t.group("a") == {key_of("a"), key_of("b")}
            t.tier.recall(pairs)
        assert (t.group("a"), t.group("b")) == ({key_of("a")}, {key_of("b")})


async def test_an_answer_that_was_replaced_while_the_tier_was_off_is_in_no_group(path: Path, clock: Clock) -> None:
    """Or the process ended between the answer and the note of it."""
    await written(path, clock)
    async with tiered(clock, path) as t:
        clock.time += 1
        await t.put("b", "Write to the support.")
        await t.cache.flush()
    async with tiered(clock, path) as t:
        await t.tier.restore()
        assert t.group("a") == {key_of("a")}
