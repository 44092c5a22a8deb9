"""The semantic tier: answers that were reported wrong, that are none to reuse, and whose store is down."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from cache.match import Match
from cache.semantic.embedder import EmbedderError
from cache.semantic.questions import Row
from cache.semantic.vectors import BATCH
from tests.contract.stores import START, Clock, key_of
from tests.support.tiers import AGAIN, CLICK, MIB, RESET, RIVERS, SAME, Paced, Tiered, context_of, grouped, tiered

WRITE = "Write to the support."


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
async def t(clock: Clock, path: Path) -> AsyncIterator[Tiered]:
    async with tiered(clock, path) as made:
        yield made


# Reported wrong


@pytest.mark.parametrize("served", ["a", "b"])
async def test_a_wrong_answer_is_not_served_again_to_who_asked_by_any_of_its_group(t: Tiered, served: str) -> None:
    await grouped(t)
    pairs = t.tier.report(key_of("q"), key_of(served))
    assert sorted(pairs) == sorted((key_of("q"), key_of(name)) for name in "ab")
    found = await t.ask("q", SAME)
    assert (found.slot, found.reason) == (None, "reported_wrong")
    assert found.similarity == pytest.approx(1.0)
    assert t.served(await t.ask("another", SAME)) == CLICK
    assert t.served(await t.ask(served, AGAIN)) == CLICK


@pytest.mark.parametrize("change", ["purged", "evicted", "replaced", "expired"])
async def test_it_is_not_served_either_when_the_one_that_was_served_is_no_longer_there(t: Tiered, change: str) -> None:
    """What it said was wrong, and another one says it still."""
    await grouped(t)
    t.tier.report(key_of("q"), key_of("a"))
    match change:
        case "purged":
            await t.cache.purge(Match(key=key_of("a")))
            await t.tier.known.sweep()
        case "evicted":
            t.tier.known.forget(key_of("a"))
        case "replaced":
            t.tier.learn(None, await t.put("a", WRITE))
            await t.tier.compared()
        case "expired":
            await t.put("a", CLICK, expires=START)
    assert t.served(await t.ask("q", SAME)) != CLICK


async def test_one_of_a_group_that_is_wrong_for_another_leaves_it(t: Tiered) -> None:
    await grouped(t)
    assert t.tier.report(key_of("b"), key_of("a")) == [(key_of("b"), key_of("a"))]
    assert (t.group("a"), t.group("b")) == ({key_of("a")}, {key_of("b")})


@pytest.mark.parametrize("evicted", ["", "ab"])
async def test_one_that_joins_a_group_that_was_reported_is_not_served_either(t: Tiered, evicted: str) -> None:
    await t.tell("c", RESET, WRITE)
    await grouped(t)
    t.tier.report(key_of("q"), key_of("a"))
    t.tier.learn(await t.ask("c", threshold=9.0), await t.put("c", CLICK))
    await t.tier.compared()
    assert t.group("c") == {key_of(name) for name in "abc"}
    for name in evicted:
        t.tier.known.forget(key_of(name))
    assert (await t.ask("q", SAME)).slot is None


async def test_the_right_answer_of_its_own_is_served_after_a_wrong_one(t: Tiered) -> None:
    """Who was answered wrongly is answered by the backend then, and that is for others, too."""
    await grouped(t)
    t.tier.report(key_of("q"), key_of("a"))
    finding = await t.ask("q", "Where do I reset my password?")
    t.tier.learn(finding, await t.put("q", WRITE))
    await t.tier.compared()
    assert t.group("q") == {key_of("q")}
    assert t.served(await t.ask("another", "Where do I reset my password")) == WRITE


async def test_a_report_while_the_answer_is_fetched_is_in_time(t: Tiered) -> None:
    await grouped(t)
    await t.cache.flush()
    for turns in range(8):
        for name in "ab":
            t.cache.front.discard(key_of(name))  # so that it is read from the file
        asking = asyncio.create_task(t.ask(f"q{turns}", SAME))
        for _ in range(turns):
            await asyncio.sleep(0)
        if asking.done():
            break
        for name in "ab":
            t.tier.report(key_of(f"q{turns}"), key_of(name))
        assert (await asking).slot is None, f"reported after {turns} turns of the loop"


# No answer to reuse


async def test_what_has_no_text_is_not_learnt(t: Tiered) -> None:
    await t.tell("a", RESET, "")
    assert len(t.tier.known.questions) == 0
    assert (await t.ask("b", SAME)).reason == "first_in_context"


@pytest.mark.parametrize("asked", [True, False])
async def test_an_answer_without_a_text_in_place_of_one_is_not_served_to_others(
    t: Tiered, clock: Clock, asked: bool
) -> None:
    """Asked anew after its life, or renewed without the tier being asked: the backend refused, or called a tool."""
    await grouped(t, expires=START + 10)
    clock.time += 11
    for name in "ba":
        if asked:
            await t.tell(name, RESET, "")
        else:
            await t.put(name, "")
            t.renew(name)
    assert list(t.tier.known.questions) == [key_of("z")]
    assert t.tier.known.vectors == 1
    found = await t.ask("q", SAME)
    assert found.slot is None, "an answer that would not have been learnt"
    assert t.group("b") == {key_of("b")}


async def test_without_its_question_an_answer_is_not_learnt(t: Tiered) -> None:
    await t.put("a", CLICK)
    t.renew("a")
    assert len(t.tier.known.questions) == 0


async def test_one_that_is_learnt_twice_is_one(t: Tiered) -> None:
    await t.tell("z", RIVERS, "Danube and Wien.")
    for answer in (CLICK, WRITE):
        t.tier.learn(await t.ask("a", threshold=9.0), await t.put("a", answer))
        await t.tier.compared()
    assert (len(t.tier.known.questions), t.tier.known.vectors) == (2, 2)
    assert t.served(await t.ask("q", SAME)) == WRITE


async def test_what_is_kept_of_a_vector_is_not_lost_by_an_answer_without_one(t: Tiered) -> None:
    await grouped(t)
    t.embedder.fails = "busy"
    await t.tell("a")
    await t.cache.flush()
    assert all(q.vector for q in await t.cache.questions(after=b"", limit=9))


# A store that is down


async def test_while_the_store_is_down_nothing_is_served_and_nothing_forgotten(t: Tiered, path: Path) -> None:
    await grouped(t)
    await t.cache.flush()
    for name in "ab":
        t.cache.front.discard(key_of(name))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("ALTER TABLE entries RENAME TO elsewhere")
        assert (await t.ask("q", SAME)).slot is None
        other.execute("ALTER TABLE elsewhere RENAME TO entries")
    assert await t.cache.get(key_of("a")) is not None
    assert t.served(await t.ask("q", SAME)) == CLICK


# All that are near, wherever


async def test_similar_looks_through_all_contexts(t: Tiered) -> None:
    await grouped(t)
    await t.tell("other", RESET, CLICK, context="d")
    await t.tell("river", RIVERS, CLICK, context="e")
    found = await t.tier.similar(SAME, above=0.9, seconds=5)
    assert set(found) == {key_of(name) for name in ("a", "b", "other")}
    assert len(await t.tier.similar(SAME, above=-1.0, seconds=5)) == 5
    t.embedder.fails = "unavailable"
    with pytest.raises(EmbedderError):
        await t.tier.similar(SAME, above=0.9, seconds=5)


async def test_similar_ends_in_time(t: Tiered) -> None:
    assert isinstance(t.embedder, Paced)
    t.embedder.held = asyncio.Event()
    with pytest.raises(EmbedderError) as caught:
        await t.tier.similar(SAME, above=0.9, seconds=0.05)
    assert caught.value.reason == "deadline"


async def test_similar_lets_others_have_their_turns(clock: Clock) -> None:
    count = 10 * BATCH
    async with tiered(clock, max_bytes=8 * MIB) as t:
        vector = await t.embedder.embed([RESET], deadline=1)
        for n in range(count):
            t.tier.known.add(Row(key_of(f"{n}"), context_of(f"{n}"), RESET), vector[0])
        turns, looking = 0, asyncio.create_task(t.tier.similar(SAME, above=0.9, seconds=30))
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(await looking) == count
        assert turns > 10
