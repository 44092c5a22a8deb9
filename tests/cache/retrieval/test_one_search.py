"""One search for all who want the same at the same time, whoever of them leaves, and whatever is purged meanwhile."""

import asyncio
from collections import Counter

import pytest

from backends.retrievers import RetrieverError
from cache.match import Match
from cache.retrieval import Results
from tests.cache.retrieval.desk import Desk

IN_MEMORY = pytest.mark.parametrize("desk", ["memory"], indirect=True)
LEAVE = Match(documents=frozenset({"shelf/leave.md"}))


@pytest.fixture
def gate(desk: Desk) -> asyncio.Event:
    """While it is closed no search ends."""
    desk.shelf.gate = asyncio.Event()
    return desk.shelf.gate


async def begun(desk: Desk, searches: int = 1) -> None:
    while len(desk.shelf.searches) < searches:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def turns() -> None:
    """All that need no thread have come as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_fifty_at_once_are_one_search(desk: Desk) -> None:
    found = await asyncio.gather(*(desk.find(user=f"user {n}") for n in range(50)))
    assert len(desk.shelf.searches) == 1
    outcomes = Counter(results.outcome for results in found)
    assert outcomes["miss"] == 1
    assert outcomes["miss"] + outcomes["joined"] + outcomes["hit"] == 50
    assert len({results.references for results in found}) == 1
    assert [results.search.user for results in found] == [f"user {n}" for n in range(50)]


@IN_MEMORY
async def test_whoever_joins_has_the_texts_too(desk: Desk, gate: asyncio.Event) -> None:
    both = [asyncio.create_task(desk.find()) for _ in range(2)]
    await turns()
    gate.set()
    first, second = await asyncio.gather(*both)
    assert (first.outcome, second.outcome) == ("miss", "joined")
    assert first.texts == second.texts is not None


async def test_others_do_not_join(desk: Desk, gate: asyncio.Event) -> None:
    changes = [{}, {"tenant": "globex"}, {"permissions": None}, {"permissions": frozenset[str]()}, {"top_k": 1}]
    tasks = [asyncio.create_task(desk.find(**change)) for change in changes]
    await begun(desk, len(changes))
    gate.set()
    assert {results.outcome for results in await asyncio.gather(*tasks)} == {"miss"}


@IN_MEMORY
async def test_the_search_goes_on_when_who_began_it_leaves(desk: Desk, gate: asyncio.Event) -> None:
    leader = asyncio.create_task(desk.find())
    await begun(desk)
    other = asyncio.create_task(desk.find())
    await turns()
    leader.cancel()
    await turns()
    gate.set()
    assert (await other).outcome == "joined"
    assert leader.cancelled()
    assert (await desk.find()).outcome == "hit"
    assert len(desk.shelf.searches) == 1


@IN_MEMORY
async def test_the_search_ends_when_all_have_left(desk: Desk, gate: asyncio.Event) -> None:
    tasks = [asyncio.create_task(desk.find()) for _ in range(3)]
    await begun(desk)
    await turns()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gate.set()
    assert (await desk.find()).outcome == "miss"
    assert len(desk.shelf.searches) == 2


@IN_MEMORY
async def test_a_failure_reaches_all_and_nothing_is_kept(desk: Desk, gate: asyncio.Event) -> None:
    tasks = [asyncio.create_task(desk.find()) for _ in range(3)]
    await begun(desk)
    await turns()
    desk.shelf.fails = RetrieverError("unavailable", "The shelf has fallen.")
    gate.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(end is desk.shelf.fails for end in ends)
    assert len(desk.shelf.searches) == 1
    assert await desk.cache.entries(Match(), limit=10) == []
    desk.shelf.fails = None
    assert (await desk.find()).outcome == "miss"


async def test_what_a_purge_has_met_is_given_and_not_kept(desk: Desk, gate: asyncio.Event) -> None:
    task = asyncio.create_task(desk.find())
    await begun(desk)
    await desk.cache.purge(LEAVE)
    gate.set()
    results = await task
    assert (results.outcome, results.slot, len(results.references)) == ("miss", None, 3)
    kept = [entry.documents for entry in await desk.cache.entries(Match(), limit=10)]
    assert kept == [("shelf/hr/pay.md",)], "the text that the purge was not on"
    assert (await desk.find()).outcome == "miss"


async def test_nobody_joins_a_search_that_a_purge_has_met(desk: Desk, gate: asyncio.Event) -> None:
    before = asyncio.create_task(desk.find())
    await begun(desk)
    await desk.cache.purge(LEAVE)
    after = asyncio.create_task(desk.find())
    await begun(desk, 2)
    gate.set()
    found: list[Results] = await asyncio.gather(before, after)
    assert [results.outcome for results in found] == ["miss", "miss"]
    assert (found[0].slot, found[1].slot is not None) == (None, True)
    assert (await desk.find()).outcome == "hit"


async def test_a_purge_of_something_else_takes_nothing_away(desk: Desk, gate: asyncio.Event) -> None:
    task = asyncio.create_task(desk.find())
    await begun(desk)
    await desk.cache.purge(Match(documents=frozenset({"shelf/other.md"})))
    gate.set()
    assert (await task).slot is not None
    assert (await desk.find()).outcome == "hit"


async def test_a_dead_store_costs_a_search_and_no_error(desk: Desk) -> None:
    await desk.find()
    await desk.cache.aclose()
    desk.forget_front(*(entry.key for entry in await desk.cache.front.entries(Match(), limit=10)))
    assert (await desk.find()).outcome == "miss"
    assert (await desk.find()).outcome == "hit", "memory has it"
