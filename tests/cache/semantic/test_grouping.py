"""Which questions have one answer: compared in the background, and no longer than the answer is what it was."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cache.entry import Entry
from cache.match import Match
from cache.semantic.grouping import LONG_ANSWER, MAX_WAITING
from cache.semantic.known import MAX_SAME
from cache.semantic.questions import Row
from tests.contract.stores import START, Clock, key_of, make_entry
from tests.support.tiers import RESET, RIVERS, SAME, Tiered, context_of, tiered

CLICK, WRITE = "Click on it.", "Write to the support."
ALL = {key_of(name) for name in "ab"}


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


async def answered(t: Tiered, name: str, answer: str, text: str = RESET, **changes: float) -> Entry:
    """A question near all the others that is answered anew. What is compared is compared later."""
    finding = await t.ask(name, text, threshold=9.0)
    entry = await t.put(name, answer, **changes)
    t.tier.learn(finding, entry)
    return entry


async def pair(t: Tiered, first: str = CLICK, second: str = CLICK) -> None:
    await t.tell("z", RIVERS, "Danube and Wien.")
    await answered(t, "a", first)
    await answered(t, "b", second, SAME)


@pytest.mark.parametrize(
    ("second", "same"), [(CLICK, True), ("click on it", True), (WRITE, False), ("Do not click on it.", False)]
)
async def test_neighbours_with_the_same_answer_become_one_group(t: Tiered, second: str, same: bool) -> None:
    await pair(t, CLICK, second)
    await t.tier.compared()
    assert (t.group("a") == ALL) == (t.group("b") == ALL) == same
    assert t.group("z") == {key_of("z")}


async def test_long_answers_are_compared_too(t: Tiered) -> None:
    long = "Click on it, and then on it. " * (LONG_ANSWER // 25)
    await pair(t, long, f" {long}")
    await t.tier.compared()
    assert t.group("a") == ALL


async def test_the_store_is_told(t: Tiered) -> None:
    await pair(t)
    await t.tier.compared()
    await t.cache.flush()
    noted = {q.key: q for q in await t.cache.questions(after=b"", limit=9)}
    assert noted.keys() == {key_of(name) for name in "abz"}
    assert all(len(q.vector) == 32 and q.context == context_of("c") for q in noted.values())
    a, b, z = (t.name(name) for name in "abz")
    assert len({a, b, z}) == 3
    assert {noted[key_of(name)].same for name in "abz"} == {(a,), (b, a), (z,)}, "its own answer first"
    assert noted[key_of("b")].text == SAME


async def test_the_store_is_told_of_so_many_and_no_more(t: Tiered) -> None:
    known, names = t.tier.known, [f"m{n}" for n in range(MAX_SAME + 9)]
    await t.tell("z", RIVERS, "Danube and Wien.")
    await answered(t, "a", CLICK)
    for name in names:
        known.add(Row(key_of(name), context_of(name), RESET, key_of(f"answer of {name}")), None)
        known.questions.merge(key_of("a"), key_of(name))
    await answered(t, "b", CLICK, SAME)
    await t.tier.compared()
    await t.cache.flush()
    [noted] = [q for q in await t.cache.questions(after=b"", limit=9) if q.key == key_of("b")]
    assert len(set(noted.same)) == len(noted.same) == MAX_SAME
    assert noted.same[0] == t.name("b")
    assert set(noted.same[1:]) <= {t.name("a"), *map(t.name, names)}


async def test_what_another_embedder_has_found_says_nothing_of_neighbours(t: Tiered) -> None:
    """A configuration was put in force between the look-up and the answer."""
    await t.tell("z", RIVERS, "Danube and Wien.")
    await t.tell("a", RESET, CLICK)
    finding = replace(await t.ask("b", SAME, threshold=9.0), embedder="another")
    t.tier.learn(finding, await t.put("b", CLICK))
    await t.tier.compared()
    assert t.group("b") == {key_of("b")}
    assert t.tier.known.questions.get(key_of("b")) is not None
    assert t.tier.known.vectors == 2


async def test_a_store_that_is_down_costs_only_the_note(t: Tiered, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE questions")
    await pair(t)
    await t.tier.compared()
    assert t.group("a") == ALL


# An answer that is replaced


@pytest.mark.parametrize("name", ["a", "b"])
async def test_an_answer_that_is_replaced_leaves_its_group(t: Tiered, name: str) -> None:
    await pair(t)
    await t.tier.compared()
    t.tier.learn(None, await t.put(name, WRITE))
    assert t.group("a") == {key_of("a")}
    assert t.group("b") == {key_of("b")}
    await answered(t, "c", WRITE)
    await t.tier.compared()
    assert t.group(name) == {key_of(name), key_of("c")}, "compared by the new answer, not by what was kept of the old"


async def test_one_that_is_learnt_anew_is_compared_anew(t: Tiered) -> None:
    await pair(t)
    await t.tier.compared()
    await answered(t, "b", WRITE, SAME)
    await t.tier.compared()
    assert t.group("b") == {key_of("b")}
    await answered(t, "b", CLICK, SAME)
    await t.tier.compared()
    assert t.group("b") == ALL


async def replaced_while_read(t: Tiered, name: str = "a") -> None:
    """An answer is replaced while that of a is read (in a thread, since it is long) to be compared with that of b, as
    that of c has just been."""
    await t.tell("z", RIVERS, "Danube and Wien.")
    for each, answer in (("c", CLICK), ("a", CLICK + " " * LONG_ANSWER)):
        await answered(t, each, answer)
        await t.tier.compared()
    t.renew("a")  # so that it has to be read again
    await answered(t, "b", CLICK, SAME)
    waiting = asyncio.create_task(t.tier.compared())
    for _ in range(2):
        await asyncio.sleep(0)
    assert not waiting.done()
    t.cache.front.keep(make_entry(name, body=WRITE.encode()))
    t.renew(name)
    await waiting


@pytest.mark.parametrize("name", ["a", "b", "c"])
async def test_an_answer_that_is_replaced_while_it_is_compared_is_in_no_group(t: Tiered, name: str) -> None:
    await replaced_while_read(t, name)
    assert t.group(name) == {key_of(name)}


async def test_what_was_read_of_the_former_answer_is_not_used_for_the_new_one(t: Tiered) -> None:
    await replaced_while_read(t)
    t.renew("b")  # whatever group it is in
    await answered(t, "d", CLICK)
    await t.tier.compared()
    assert key_of("a") not in t.group("d")


@pytest.mark.parametrize("changed", ["a", "b"])
async def test_a_group_that_was_left_is_not_there_again_after_a_restart(clock: Clock, path: Path, changed: str) -> None:
    async with tiered(clock, path) as t:
        await t.tell("z", RIVERS, "Danube and Wien.")
        for name in "ba":  # in the order of their keys
            await answered(t, name, CLICK)
            await t.tier.compared()
        clock.time += 1
        t.tier.learn(None, await t.put(changed, WRITE))
        assert t.group("b") == {key_of("b")}
        await t.tier.compared()
        await t.cache.flush()
    async with tiered(clock, path) as t:
        await t.tier.restore()
        assert t.group("b") == {key_of("b")}


# What is known to differ


async def test_a_pair_that_was_reported_is_not_compared(t: Tiered) -> None:
    t.tier.report(key_of("b"), key_of("a"))
    await pair(t)
    await t.tier.compared()
    assert t.group("a") == {key_of("a")}


@pytest.mark.parametrize("names", ["abc", "acb", "cab"])
async def test_a_pair_that_was_reported_does_not_meet_through_a_third(t: Tiered, names: str) -> None:
    """The group is what says whose answers speak for each other."""
    t.tier.report(key_of("b"), key_of("a"))
    await t.tell("z", RIVERS, "Danube and Wien.")
    for name in names:
        await answered(t, name, CLICK)
        await t.tier.compared()
    assert t.group("a") != t.group("b")


# Bounds and ends


async def test_more_than_may_wait_is_not_compared(t: Tiered) -> None:
    await t.tell("z", RIVERS, "Danube and Wien.")
    await answered(t, "a", CLICK)
    await t.tier.compared()
    found = {name: await t.ask(name, SAME, threshold=9.0) for name in "bc"}
    entries = {name: await t.put(name, CLICK) for name in "bc"}
    for _ in range(MAX_WAITING):
        t.tier.learn(found["b"], entries["b"])
    t.tier.learn(found["c"], entries["c"])
    await t.tier.compared()
    assert t.group("b") == ALL
    assert t.group("c") == {key_of("c")}
    assert t.tier.known.questions.get(key_of("c")) is not None, "it is known all the same"


@pytest.mark.parametrize("change", ["purged", "expired", "forgotten"])
async def test_what_has_gone_meanwhile_is_not_compared(t: Tiered, clock: Clock, change: str) -> None:
    await t.tell("z", RIVERS, "Danube and Wien.")
    await answered(t, "a", CLICK, expires=START + 10, keep_until=START + 10)
    await t.tier.compared()
    t.renew("a")
    await answered(t, "b", CLICK, SAME)
    match change:
        case "purged":
            await t.cache.purge(Match(key=key_of("a")))
        case "expired":
            clock.time += 10
        case "forgotten":
            t.tier.known.forget(key_of("a"))
    await t.tier.compared()
    assert t.group("b") == {key_of("b")}
