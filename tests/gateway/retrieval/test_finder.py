"""Finding for a principal: what it may see, what a request may ask of the cache, what becomes of failures, and what is
written down of each."""

import asyncio
from typing import Any

import pytest

from backends.retrievers import Found, RetrieverError
from cache.exact import ExactCache
from cache.match import Match
from cache.stores.memory import MemoryStore, Slot
from gateway.asgi import Disconnected, Message
from gateway.decisions import Decision
from gateway.directives import Directives
from gateway.errors import ApiError
from gateway.principal import OPEN
from gateway.retrieval.failures import RetrieverFailed
from gateway.retrieval.finder import Terms
from gateway.visit import Visit
from tests.gateway.retrieval.desk import ALICE, BOB, EVE, MIB, Desk, finder_of, turns


@pytest.fixture
def desk() -> Desk:
    return Desk()


def said(decision: Decision) -> list[tuple[str, str | None, int | None]]:
    assert all(tier.name == "retrieval" for tier in decision.tiers)
    return [(tier.result, tier.why, tier.ttl) for tier in decision.tiers]


async def booked(desk: Desk, **asked: Any) -> list[tuple[str, str | None, int | None]]:
    visit = desk.visit(asked.pop("principal", ALICE))
    await desk.find(visit=visit, **asked)
    return said(visit.decision)


async def failing(desk: Desk, visit: Visit | None = None, **asked: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await desk.find(visit=visit, **asked)
    return caught.value


async def test_a_miss_and_a_hit_are_booked_as_such(desk: Desk) -> None:
    visit = desk.visit()
    await desk.find(visit=visit)
    phases = visit.decision.phases
    assert said(visit.decision) == [("miss", None, None)]
    assert list(phases) == ["search", "retrieval"]
    assert 0 < phases["search"] <= phases["retrieval"]
    visit = desk.visit()
    desk.clock.time += 400
    await desk.find(visit=visit)
    assert said(visit.decision) == [("hit", None, 86_000)]
    assert list(visit.decision.phases) == ["retrieval"]


async def test_the_search_is_a_part_of_the_retrieval(desk: Desk) -> None:
    visit = desk.visit()
    await desk.find(visit=visit)
    visit.decision.ms = 1_000.0
    spans = visit.decision.as_dict()["spans"]
    assert [(span["name"], span.get("within")) for span in spans][:2] == [("retrieval", None), ("search", "retrieval")]


async def test_only_permissions_that_matter_are_looked_at(desk: Desk) -> None:
    """Who plays golf or not is given the same documents, so they share what was found."""
    await desk.find(principal=ALICE)
    assert desk.shelf.searches == [("parental leave", frozenset({"hr"}))]
    assert (await desk.find(principal=ALICE)).outcome == "hit"
    assert (await desk.find(principal=BOB)).outcome == "miss"
    assert desk.shelf.searches[1:] == [("parental leave", frozenset())]
    assert {r.document for r in (await desk.find(principal=BOB)).references} == {"leave.md"}


async def test_where_everything_is_open_all_is_seen(desk: Desk) -> None:
    results = await desk.find(principal=OPEN)
    assert desk.shelf.searches == [("parental leave", None)]
    assert "hr/pay.md" in {r.document for r in results.references}


async def test_a_retriever_may_be_for_some_tenants_only(desk: Desk) -> None:
    """In the same words as one that there is not."""
    refused = await failing(desk, principal=EVE)
    unknown = await failing(desk, principal=EVE, name="hanDbook")
    assert (refused.status, refused.code) == (404, "vector_store_not_found")
    assert refused.message == "There is no vector store 'handbook' here."
    assert unknown.envelope() == {**refused.envelope(), "message": "There is no vector store 'hanDbook' here."}
    assert (await desk.find("greetings", principal=EVE, name="open")).outcome == "miss"
    assert desk.shelf.searches == []


async def test_two_retrievers_share_nothing(desk: Desk) -> None:
    desk.open.documents = desk.shelf.documents
    await desk.find()
    assert (await desk.find(name="open")).outcome == "miss"
    assert (await desk.find(name="open")).documents[0].startswith("open/")


FAILURES = {
    "starting": (503, "retriever_starting", {"retry-after": "2"}),
    "busy": (503, "retriever_busy", {"retry-after": "1"}),
    "deadline": (504, "retriever_timeout", {}),
    "unavailable": (502, "retriever_unavailable", {}),
    "bad_results": (502, "retriever_reply_broken", {"x-should-retry": "false"}),
    "failed": (502, "retriever_failed", {"x-should-retry": "false"}),
}


@pytest.mark.parametrize("reason", FAILURES)
async def test_a_failure_says_what_it_is(desk: Desk, reason: Any) -> None:
    desk.shelf.fails = RetrieverError(reason, "In plain words.")
    visit = desk.visit()
    error = await failing(desk, visit)
    assert isinstance(error, RetrieverFailed)
    assert (error.status, error.code, error.headers) == FAILURES[reason]
    assert (error.message, error.reason) == ("In plain words.", reason)
    assert said(visit.decision) == [("miss", reason, None)]
    assert "retrieval" in visit.decision.phases
    assert await desk.cache.entries(Match(), limit=10) == []


async def test_what_nobody_has_foreseen_tells_nothing_of_itself(desk: Desk) -> None:
    desk.shelf.fails = KeyError("secret")
    error = await failing(desk)
    assert (error.status, error.code, error.message) == (
        502,
        "retriever_failed",
        "The retriever failed on this search.",
    )


async def test_a_retriever_that_does_not_keep_its_deadline_is_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.retrieval.running.DEADLINE", 0.05)
    monkeypatch.setattr("gateway.retrieval.running.GRACE", 0.0)

    async def endless(*_: Any, **__: Any) -> list[Found]:
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(desk.shelf, "search", endless)
    assert (await failing(desk)).code == "retriever_timeout"


@pytest.mark.parametrize(
    "found",
    [
        Found("a", "1", 0, "lone \ud800", 1.0),
        Found("a\ud800", "1", 0, "text", 1.0),
        Found("a", "1", 0, "text", float("nan")),
        Found("a", "1", 0, "text", float("inf")),
    ],
    ids=["text", "id", "NaN", "infinite"],
)
async def test_results_that_cannot_be_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    monkeypatch.setattr(desk.shelf, "found", lambda *_: [found])
    assert (await failing(desk)).code == "retriever_reply_broken"
    assert await desk.cache.entries(Match(), limit=10) == []


async def test_more_than_was_asked_for_is_left_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.shelf, "found", lambda *_: [Found("a", "1", n, f"text {n}", 1.0) for n in range(9)])
    assert len((await desk.find()).references) == 4
    assert (await desk.find()).outcome == "hit"


async def test_all_who_wait_are_told_of_a_failure(desk: Desk) -> None:
    desk.shelf.gate = asyncio.Event()
    desk.shelf.fails = RetrieverError("unavailable", "Gone.")
    tasks = [asyncio.create_task(desk.find()) for _ in range(3)]
    await turns()
    desk.shelf.gate.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [RetrieverFailed] * 3
    assert len({id(error) for error in errors}) == 3
    assert len(desk.shelf.searches) == 1


async def test_who_joins_says_so(desk: Desk) -> None:
    desk.shelf.gate = asyncio.Event()
    visits = [desk.visit(), desk.visit()]
    tasks = [asyncio.create_task(desk.find(visit=visit)) for visit in visits]
    await turns()
    desk.shelf.gate.set()
    await asyncio.gather(*tasks)
    assert [said(visit.decision) for visit in visits] == [[("miss", None, None)], [("miss", "joined", None)]]
    assert ["search" in visit.decision.phases for visit in visits] == [True, False]


async def test_a_search_ends_with_the_last_client_that_waits_for_it(desk: Desk) -> None:
    desk.shelf.gate = asyncio.Event()
    gone = [asyncio.Event(), asyncio.Event()]

    async def one(gone: asyncio.Event, query: str) -> None:
        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        await desk.finder.find_all(desk.visit(), "handbook", (query, "other"), Terms(4, receive=receive))

    tasks = [asyncio.create_task(one(event, query)) for event, query in zip(gone, ("leave", "pay"), strict=True)]
    await turns()
    assert sorted(query for query, _ in desk.shelf.searches) == ["leave", "other", "pay"]
    gone[0].set()
    with pytest.raises(Disconnected):
        await tasks[0]
    desk.shelf.gate.set()
    await tasks[1]
    desk.shelf.searches.clear()
    assert [(await desk.find(query)).outcome for query in ("pay", "other", "leave")] == ["hit", "hit", "miss"]


async def test_no_cache_searches_anew_and_replaces_what_was_kept(desk: Desk) -> None:
    await desk.find()
    desk.clock.time += 60
    assert await booked(desk, directives=Directives(no_cache=True)) == [("skipped", "no_cache", None)]
    assert len(desk.shelf.searches) == 2
    assert (await desk.find()).age == 0


@pytest.mark.parametrize(
    ("directives", "why"),
    [(Directives(no_store=True), "no_store"), (Directives(tiers=frozenset({"exact"})), "tier_not_asked")],
    ids=["no-store", "another tier"],
)
async def test_who_wants_nothing_of_the_cache_has_and_leaves_nothing_there(
    desk: Desk, directives: Directives, why: str
) -> None:
    assert await booked(desk, directives=directives) == [("skipped", why, None)]
    assert await desk.cache.entries(Match(), limit=10) == []
    await desk.find()
    assert await booked(desk, directives=directives) == [("skipped", why, None)]
    assert len(desk.shelf.searches) == 3


async def test_who_wants_cached_results_only_searches_nothing(desk: Desk) -> None:
    only = Directives(only_if_cached=True)
    visit = desk.visit()
    error = await failing(desk, visit, directives=only)
    assert (error.status, error.code, error.headers) == (504, "not_cached", {"x-should-retry": "false"})
    assert not isinstance(error, RetrieverFailed)
    assert said(visit.decision) == [("miss", None, None)]
    assert desk.shelf.searches == []
    await desk.find()
    assert await booked(desk, directives=only) == [("hit", None, 86_400)]
    assert (await failing(desk, directives=Directives(only_if_cached=True, no_cache=True))).code == "not_cached"


async def test_a_request_may_shorten_the_life_of_results_and_never_lengthen_it(desk: Desk) -> None:
    assert (await desk.find(directives=Directives(ttl=60.0))).ttl == 60
    assert (await desk.find("leave", directives=Directives(ttl=10.0**9))).ttl == 86_400
    await desk.find("unpaid", directives=Directives(ttl=0.0))
    assert (await desk.find("unpaid")).outcome == "miss"
    desk.clock.time += 60
    assert (await desk.find()).outcome == "miss"


async def test_a_request_may_want_younger_results(desk: Desk) -> None:
    await desk.find()
    desk.clock.time += 60
    assert (await desk.find(directives=Directives(max_age=60.0))).outcome == "hit"
    assert (await desk.find(directives=Directives(max_age=59.0))).outcome == "miss"


async def test_results_are_purged_by_the_tags_of_who_made_them(desk: Desk) -> None:
    await desk.find(directives=Directives(tags=("project",)))
    await desk.cache.purge(Match(tags=frozenset({"project"})))
    assert (await desk.find()).outcome == "miss"


async def test_several_queries_are_one_look_up_in_the_books(desk: Desk) -> None:
    visit = desk.visit()
    found = await desk.finder.find_all(visit, "handbook", ("leave", "unpaid"), Terms(4))
    assert [results.search.query for results in found] == ["leave", "unpaid"]
    assert said(visit.decision) == [("miss", None, None)]
    visit = desk.visit()
    await desk.finder.find_all(visit, "handbook", ("leave", "pay"), Terms(4))
    assert said(visit.decision) == [("miss", None, None)], "one of them was searched"
    visit = desk.visit()
    await desk.finder.find_all(visit, "handbook", ("leave", "pay"), Terms(4))
    assert said(visit.decision) == [("hit", None, 86_400)]
    assert [query for query, _ in desk.shelf.searches] == ["leave", "unpaid", "pay"]


async def test_when_one_of_several_fails_all_do(desk: Desk) -> None:
    await desk.find("leave")
    desk.shelf.fails = RetrieverError("unavailable", "Gone.")
    visit = desk.visit()
    with pytest.raises(RetrieverFailed):
        await desk.finder.find_all(visit, "handbook", ("leave", "unpaid", "pay"), Terms(4))
    assert said(visit.decision) == [("miss", "unavailable", None)]


async def test_texts_that_are_gone_make_a_hit_a_miss(desk: Desk) -> None:
    await desk.find()
    visit = desk.visit()
    results = await desk.find(visit=visit)
    visit.tier("exact", "miss")
    await desk.cache.purge(Match(key=results.search.text_key(results.references[0])))
    before = visit.decision.phases["retrieval"]
    full = await desk.finder.texts(visit, results)
    assert full.texts is not None
    tiers = [(tier.name, tier.result, tier.why) for tier in visit.decision.tiers]
    assert tiers == [("retrieval", "miss", "text_gone"), ("exact", "miss", None)]
    assert visit.decision.phases["retrieval"] > before
    assert visit.decision.phases["search"] > 0


async def test_texts_that_are_gone_when_nobody_can_be_asked(desk: Desk) -> None:
    await desk.find()
    visit = desk.visit()
    results = await desk.find(visit=visit)
    await desk.cache.purge(Match(key=results.search.text_key(results.references[0])))
    desk.shelf.fails = RetrieverError("unavailable", "Gone.")
    with pytest.raises(RetrieverFailed):
        await desk.finder.texts(visit, results)
    assert said(visit.decision) == [("miss", "unavailable", None)]


class Broken(MemoryStore):
    """Fails in a way that nobody has foreseen."""

    def peek(self, key: bytes, now: float | None = None) -> Slot | None:
        raise RuntimeError("no such thing")


async def test_a_cache_that_fails_is_a_miss(desk: Desk) -> None:
    expected = await desk.find()
    desk.finder = finder_of(ExactCache(Broken(MIB), max_entry=MIB), desk.clock)
    for _ in range(2):
        results = await desk.find()
        assert (results.outcome, results.references, results.texts) == ("miss", expected.references, expected.texts)
