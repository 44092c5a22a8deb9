"""Results of searches: found again by whom they are for, and by nobody else, for as long as they hold."""

from dataclasses import replace
from typing import Any

import pytest

from cache.match import Match
from cache.retrieval import LIFE, RetrievalCache
from tests.cache.retrieval.desk import HR, Desk
from tests.support.retrievers import Shelf

DAY = 86_400.0


def found(results: Any) -> list[tuple[str, int]]:
    return [(reference.document, reference.position) for reference in results.references]


async def test_a_second_search_is_answered_from_what_the_first_one_found(desk: Desk) -> None:
    first = await desk.find()
    second = await desk.find()
    assert (first.outcome, second.outcome) == ("miss", "hit")
    assert second.references == first.references
    assert found(first) == [("hr/pay.md", 0), ("leave.md", 0), ("leave.md", 1)]
    assert [r.score for r in first.references] == [1.0, 1.0, 0.5]
    assert len(desk.shelf.searches) == 1


async def test_what_is_found_is_named_and_what_it_took_is_known(desk: Desk) -> None:
    await desk.find()
    results = await desk.find()
    assert results.documents == ("shelf/hr/pay.md", "shelf/leave.md", "shelf/leave.md")
    assert {r.document: (r.version, r.title) for r in results.references} == {
        "leave.md": ("7", "Leave"),
        "hr/pay.md": ("1", ""),
    }
    entry = results.entry
    assert (entry.api, entry.tenant, entry.user, entry.usage.total) == ("search", "acme", "alice", 0)
    assert entry.cost.ms > 0
    assert b"weeks" not in entry.body  # texts are kept apart


async def test_nothing_found_is_kept_as_well(desk: Desk) -> None:
    assert (await desk.find(query="holidays")).references == ()
    again = await desk.find(query="holidays")
    assert (again.outcome, again.references, again.texts) == ("hit", (), None)
    assert (await desk.texts(again)).texts == ()


ANOTHER = {
    "tenant": "globex",
    "retriever": "other",
    "revision": "2",
    "generation": "x",
    "permissions": frozenset[str](),
    "query": "Parental leave",
    "top_k": 3,
}


@pytest.mark.parametrize("name", ANOTHER)
async def test_whatever_decides_what_is_found_is_in_the_key(desk: Desk, name: str) -> None:
    await desk.find()
    assert (await desk.find(**{name: ANOTHER[name]})).outcome == "miss"
    assert (await desk.find()).outcome == "hit"


async def test_who_asks_is_not(desk: Desk) -> None:
    await desk.find()
    other = await desk.find(user="bob")
    assert other.outcome == "hit"
    assert other.search.user == "bob"


async def test_permission_sets_are_partitions(desk: Desk) -> None:
    """Seeing all is none of them, and having no permission is not seeing all."""
    sets: list[frozenset[str] | None] = [None, frozenset(), HR, frozenset({"hr", "eng"}), frozenset({"eng,hr"})]
    keys = [desk.search(permissions=permissions).key for permissions in sets]
    assert len(set(keys)) == len(sets)
    for permissions in sets:
        results = await desk.find(permissions=permissions)
        assert results.outcome == "miss"
        assert ("hr/pay.md", 0) in found(results) or not (permissions is None or "hr" in permissions)
    assert ("hr/pay.md", 0) not in found(await desk.find(permissions=frozenset()))
    assert len(desk.shelf.searches) == len(sets)


def test_fields_do_not_run_into_each_other() -> None:
    desk = Desk(Shelf())
    one = desk.search("b c", retriever="a", revision="x")
    assert one.key != desk.search("c", retriever="a", revision="xb ").key
    assert one.key != desk.search("b c", retriever="ax", revision="").key
    assert desk.search("1", top_k=1).key != desk.search("", top_k=11).key


def test_the_key_is_the_same_in_every_process() -> None:
    """It is in stores, so it must not depend on the order of a set, nor change by accident."""
    search = Desk(Shelf()).search(generation="g", revision="r", permissions=frozenset({"b", "a", "c"}))
    assert search.key.hex() == "63a7fccedaf44c35911a55ec8685568dc4e3ffa60a2d99f58282430f08517742"


async def test_another_generation_is_searched_anew(desk: Desk) -> None:
    await desk.find()
    desk.shelf.put("leave.md", "Parental leave is twenty weeks.", version="8")
    assert (await desk.find()).references[1].version == "8"
    assert len(desk.shelf.searches) == 2


async def test_an_earlier_generation_that_returns_has_its_results(desk: Desk) -> None:
    before = desk.shelf.documents.copy()
    first = await desk.find()
    desk.shelf.put("leave.md", "Nothing.")
    await desk.find()
    desk.shelf.documents = before
    again = await desk.find()
    assert (again.outcome, again.references) == ("hit", first.references)


async def test_what_was_found_while_the_generation_changed_is_not_kept(desk: Desk) -> None:
    """It may be of the new one, and the old one may come back."""
    before, search = desk.shelf.documents.copy(), desk.search()
    desk.shelf.put("leave.md", "Parental leave is secret now.", needs=["board"])
    assert found(await desk.find(search)) == [("hr/pay.md", 0)]
    desk.shelf.documents = before
    again = await desk.find()
    assert again.outcome == "miss"
    assert ("leave.md", 0) in found(again)


@pytest.mark.parametrize(("lasting", "life"), [(300.0, 300.0), (float("inf"), LIFE), (10 * DAY, LIFE)])
async def test_results_live_as_long_as_the_retriever_says_but_a_day_at_most(
    desk: Desk, lasting: float, life: float
) -> None:
    desk.shelf.lasting = lasting
    assert (await desk.find()).ttl == life
    desk.clock.time += life - 1
    results = await desk.find()
    assert (results.outcome, results.ttl, results.age) == ("hit", 1, life - 1)
    desk.clock.time += 1
    assert (await desk.find()).outcome == "miss"


async def test_results_that_do_not_last_are_not_kept(desk: Desk) -> None:
    desk.shelf.lasting = 0.0
    assert (await desk.find()).slot is None
    assert (await desk.find()).outcome == "miss"


async def test_while_the_clock_is_set_back_results_age_on(desk: Desk) -> None:
    await desk.find()
    desk.clock.time -= 3_600
    results = await desk.find()
    assert (results.outcome, results.age) == ("hit", 0)
    assert LIFE - 2 <= results.ttl <= LIFE


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
async def test_what_seems_to_be_made_in_the_future_is_not_used(desk: Desk) -> None:
    """After a restart nobody knows how old it is."""
    await desk.find()
    desk.clock.time -= 3_600
    await desk.restart()
    assert (await desk.find()).outcome == "miss"


async def test_a_request_may_want_younger_results(desk: Desk) -> None:
    search = desk.search()
    await desk.find(search)
    desk.clock.time += 60
    assert await desk.results.recall(search, max_age=60) is not None
    assert await desk.results.recall(search, max_age=59) is None


async def test_a_search_of_its_own_replaces_what_was_kept(desk: Desk) -> None:
    search = desk.search()
    await desk.find(search)
    desk.clock.time += 60
    renewed = await desk.results.renew(search, lambda: desk.run(search))
    assert (renewed.outcome, len(desk.shelf.searches)) == ("miss", 2)
    assert (await desk.find()).age == 0


async def test_a_search_that_is_not_to_be_kept_leaves_nothing(desk: Desk) -> None:
    search = desk.search()
    results = await desk.results.renew(search, lambda: desk.run(search), keep=False)
    assert results.texts is not None
    assert results.slot is None
    assert await desk.cache.entries(Match(), limit=10) == []


async def test_results_over_the_bound_are_given_and_not_kept(desk: Desk) -> None:
    desk.cache.max_entry = 16
    assert len((await desk.find()).references) == 3
    assert (await desk.find()).outcome == "miss"


async def test_an_entry_of_another_kind_is_no_result(desk: Desk) -> None:
    search = desk.search()
    await desk.find(search)
    slot = await desk.cache.get(search.key)
    assert slot is not None
    await desk.cache.put(replace(slot.entry, api="chat"), since=desk.cache.mark())
    assert await desk.results.recall(search) is None


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
async def test_a_purge_by_document_finds_results_and_texts(desk: Desk, soft: bool) -> None:
    await desk.find()
    await desk.find(query="holidays")
    purged = await desk.cache.purge(Match(documents=frozenset({"shelf/leave.md"})), soft=soft)
    assert purged == 3  # the results, and two texts
    assert (await desk.find()).outcome == "miss"
    assert (await desk.find(query="holidays")).outcome == "hit"


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
async def test_after_a_restart_results_and_texts_are_there(desk: Desk) -> None:
    first = await desk.find()
    await desk.restart()
    again = await desk.find()
    assert (again.outcome, again.references, again.texts) == ("hit", first.references, None)
    assert (await desk.texts(again)).texts == first.texts
    assert len(desk.shelf.searches) == 1


async def test_a_cache_can_be_used_by_two(desk: Desk) -> None:
    """Nothing but the entries is shared: what one has kept the other finds."""
    await desk.find()
    desk.results = RetrievalCache(desk.cache, desk.clock)
    assert (await desk.find()).outcome == "hit"
