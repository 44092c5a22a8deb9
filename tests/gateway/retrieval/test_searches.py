"""What a client of `/vector_stores/{id}/search` gets for what it asks."""

import asyncio
import json
from typing import Any

import pytest

from cache.match import Match
from gateway.errors import ApiError
from gateway.retrieval.searches import MAX_QUERIES, MAX_QUERY
from tests.gateway.retrieval.desk import BOB, EVE, PAGE, Desk, turns


@pytest.fixture
def desk() -> Desk:
    return Desk()


LONG = "Parental leave is long."
SHORT = "Unpaid leave is short."
PAY = "Pay during parental leave."


async def test_a_page_is_as_openai_has_it(desk: Desk) -> None:
    reply = await desk.ask("unpaid leave")
    assert reply.status == 200
    assert reply.page == {
        "object": PAGE,
        "search_query": ["unpaid leave"],
        "data": [
            {
                "file_id": "leave.md",
                "filename": "leave.md",
                "score": 1.0,
                "attributes": {"version": "7", "title": "Leave", "position": 1},
                "content": [{"type": "text", "text": SHORT}],
            },
            {
                "file_id": "hr/pay.md",
                "filename": "pay.md",
                "score": 0.5,
                "attributes": {"version": "1", "title": "", "position": 0},
                "content": [{"type": "text", "text": PAY}],
            },
            {
                "file_id": "leave.md",
                "filename": "leave.md",
                "score": 0.5,
                "attributes": {"version": "7", "title": "Leave", "position": 0},
                "content": [{"type": "text", "text": LONG}],
            },
        ],
        "has_more": False,
        "next_page": None,
    }


async def test_a_hit_is_the_same_page_and_says_what_it_is(desk: Desk) -> None:
    first = await desk.ask()
    desk.clock.time += 60
    second = await desk.ask()
    assert second.content == first.content
    assert first.headers["x-refrain-cache"] == "miss"
    assert first.headers["cache-status"] == "retrieval; fwd=miss"
    assert "age" not in first.headers
    assert "x-refrain-saved" not in first.headers
    assert second.headers["x-refrain-cache"] == "exact"
    assert second.headers["cache-status"] == "retrieval; hit; ttl=86340"
    assert second.headers["age"] == "60"
    assert second.headers["x-refrain-saved"].startswith("tokens=0; ms=")
    for reply in (first, second):
        assert reply.headers["x-refrain-documents"] == "handbook/hr/pay.md@1, handbook/leave.md@7"
        assert reply.headers["content-type"] == "application/json"
        assert "retrieval;dur=" in reply.headers["server-timing"]
    assert len(desk.shelf.searches) == 1


async def test_a_page_that_was_not_kept_is_made_again_from_what_was(desk: Desk) -> None:
    """As after a restart: the results are there, the page is not."""
    first = await desk.ask()
    for entry in await desk.cache.entries(Match(), limit=10):
        desk.cache.front.discard(entry.key)
        desk.cache.front.keep(entry)
    second = await desk.ask()
    assert second.content == first.content
    assert second.headers["x-refrain-cache"] == "exact"
    assert len(desk.shelf.searches) == 1


async def test_the_books_have_no_tokens(desk: Desk) -> None:
    for outcome in ("miss", "exact"):
        d = (await desk.ask()).decision
        assert (d.api, d.model, d.backend, d.outcome, d.status) == ("search", "", "", outcome, 200)
        assert d.served == d.saved == d.consumed == d.unserved == 0
        assert d.usd is None
        assert d.usd_saved is None
        assert d.as_dict()["documents"] == ["handbook/hr/pay.md@1", "handbook/leave.md@7"]
    assert [entry.key for entry in await desk.cache.entries(Match(key=d.key), limit=2)] == [d.key]


async def test_a_purged_document_ends_its_pages(desk: Desk) -> None:
    await desk.ask()
    assert await desk.cache.purge(Match(documents=frozenset({"handbook/leave.md@7"}))) == 3
    assert (await desk.ask()).decision.outcome == "miss"


async def test_who_may_not_see_a_document_is_not_given_it(desk: Desk) -> None:
    await desk.ask()
    reply = await desk.ask(principal=BOB)
    assert reply.decision.outcome == "miss"
    assert [id for id, _ in reply.found] == ["leave.md", "leave.md"]
    assert reply.headers["x-refrain-documents"] == "handbook/leave.md@7"


async def test_a_store_of_another_tenant_is_none(desk: Desk) -> None:
    for name in ("handbook", "nothing", "hand\nbook"):
        with pytest.raises(ApiError) as caught:
            await desk.ask(principal=EVE, name=name)
        assert (caught.value.status, caught.value.code) == (404, "vector_store_not_found")
    assert desk.shelf.searches == []


async def test_results_are_as_many_as_asked_for(desk: Desk) -> None:
    assert len((await desk.ask(max_num_results=1)).data) == 1
    assert len((await desk.ask(max_num_results=2)).data) == 2
    assert len((await desk.ask(max_num_results=None)).data) == 3
    assert len(desk.shelf.searches) == 3


async def test_a_threshold_leaves_results_out_and_shares_the_search(desk: Desk) -> None:
    whole = await desk.ask()
    some = await desk.ask(ranking_options={"score_threshold": 0.75})
    assert some.decision.outcome == "exact"
    assert [item["score"] for item in some.data] == [1.0, 1.0]
    assert (await desk.ask(ranking_options={"score_threshold": 0.5})).content == whole.content
    none = await desk.ask(ranking_options={"score_threshold": 2})
    assert none.data == []
    assert "x-refrain-documents" not in none.headers
    assert (await desk.ask(ranking_options={"score_threshold": None, "ranker": "auto"})).content == whole.content
    assert len(desk.shelf.searches) == 1


async def test_a_threshold_first_leaves_others_their_whole_page(desk: Desk) -> None:
    await desk.ask(ranking_options={"score_threshold": 0.75})
    assert len((await desk.ask()).data) == 3


async def test_nothing_found_is_an_empty_page(desk: Desk) -> None:
    for outcome in ("miss", "exact"):
        reply = await desk.ask("holidays")
        assert (reply.data, reply.decision.outcome) == ([], outcome)
        assert "x-refrain-documents" not in reply.headers


async def test_several_queries_are_merged_the_best_first_and_every_piece_once(desk: Desk) -> None:
    reply = await desk.ask(["unpaid leave", "pay parental leave", "unpaid leave"])
    assert reply.page["search_query"] == ["unpaid leave", "pay parental leave"]
    assert [(text, item["score"]) for (_, text), item in zip(reply.found, reply.data, strict=True)] == [
        (SHORT, 1.0),
        (PAY, 1.0),
        (LONG, pytest.approx(2 / 3)),
    ]
    assert reply.decision.outcome == "miss"
    again = await desk.ask(["unpaid leave", "pay parental leave"])
    assert (again.decision.outcome, again.content) == ("exact", reply.content)
    assert again.headers["cache-status"] == "retrieval; hit; ttl=86400"
    assert (await desk.ask(["unpaid leave", "pay"])).decision.outcome == "miss"
    assert (await desk.ask(["unpaid leave"])).decision.outcome == "exact"
    assert [query for query, _ in desk.shelf.searches] == ["unpaid leave", "pay parental leave", "pay"]
    assert len((await desk.ask(["unpaid leave", "pay parental leave"], max_num_results=2)).data) == 2


async def test_among_equals_the_first_query_comes_first(desk: Desk) -> None:
    for queries in (["unpaid", "long"], ["long", "unpaid"]):
        texts = [text for _, text in (await desk.ask(queries)).found]
        assert texts == ([SHORT, LONG] if queries[0] == "unpaid" else [LONG, SHORT])


async def test_fifty_at_once_are_one_search(desk: Desk) -> None:
    desk.shelf.gate = asyncio.Event()
    tasks = [asyncio.create_task(desk.ask()) for _ in range(50)]
    await turns()
    desk.shelf.gate.set()
    replies = await asyncio.gather(*tasks)
    assert len(desk.shelf.searches) == 1
    assert len({reply.content for reply in replies}) == 1
    outcomes = sorted(reply.headers["x-refrain-cache"] for reply in replies)
    assert outcomes == ["joined"] * 49 + ["miss"]
    joined = next(reply for reply in replies if reply.decision.outcome == "joined")
    assert joined.headers["cache-status"] == "retrieval; fwd=miss; collapsed"
    assert joined.headers["x-refrain-saved"].startswith("tokens=0; ms=")


@pytest.mark.parametrize(
    ("headers", "outcome", "status"),
    [
        ({"cache-control": "no-cache"}, "miss", "retrieval; fwd=request"),
        ({"cache-control": "no-store"}, "bypass", "retrieval; fwd=bypass"),
        ({"x-refrain-tier": "exact"}, "bypass", "retrieval; fwd=bypass"),
        ({"x-refrain-tier": "exact, retrieval"}, "exact", "retrieval; hit; ttl=86400"),
        ({"cache-control": "only-if-cached"}, "exact", "retrieval; hit; ttl=86400"),
        ({"cache-control": "max-age=0"}, "miss", "retrieval; fwd=request"),
    ],
    ids=lambda value: " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
async def test_a_request_may_say_what_it_wants_of_the_cache(
    desk: Desk, headers: dict[str, str], outcome: str, status: str
) -> None:
    await desk.ask()
    reply = await desk.ask(headers=headers)
    assert (reply.headers["x-refrain-cache"], reply.headers["cache-status"]) == (outcome, status)
    assert len(desk.shelf.searches) == (1 if outcome == "exact" else 2)
    assert len(reply.data) == 3


async def test_the_body_may_say_it_too(desk: Desk) -> None:
    await desk.ask()
    assert (await desk.ask(cache={"no-cache": True})).decision.outcome == "miss"
    assert (await desk.ask(cache={"no-store": True})).decision.outcome == "bypass"


async def test_an_error_has_an_outcome_too(desk: Desk) -> None:
    with pytest.raises(ApiError) as caught:
        await desk.ask(headers={"cache-control": "only-if-cached"})
    assert (caught.value.status, caught.value.code) == (504, "not_cached")


QUERY = {"query": "leave"}
BAD: list[tuple[Any, str | None]] = [
    ({}, "query"),
    ({"query": None}, "query"),
    ({"query": 3}, "query"),
    ({"query": {"text": "leave"}}, "query"),
    ({"query": ""}, "query"),
    ({"query": " \n\t"}, "query"),
    ({"query": "x" * (MAX_QUERY + 1)}, "query"),
    ({"query": []}, "query"),
    ({"query": ["leave"] * (MAX_QUERIES + 1)}, "query"),
    ({"query": ["leave", ""]}, "query[1]"),
    ({"query": ["leave", 7]}, "query[1]"),
    ({"query": [["leave"]]}, "query[0]"),
    ({**QUERY, "max_num_results": 0}, "max_num_results"),
    ({**QUERY, "max_num_results": 51}, "max_num_results"),
    ({**QUERY, "max_num_results": -1}, "max_num_results"),
    ({**QUERY, "max_num_results": 2.5}, "max_num_results"),
    ({**QUERY, "max_num_results": "4"}, "max_num_results"),
    ({**QUERY, "max_num_results": True}, "max_num_results"),
    ({**QUERY, "filters": {"type": "eq", "key": "a", "value": "b"}}, "filters"),
    ({**QUERY, "filters": {}}, "filters"),
    ({**QUERY, "filters": False}, "filters"),
    ({**QUERY, "rewrite_query": "yes"}, "rewrite_query"),
    ({**QUERY, "ranking_options": []}, "ranking_options"),
    ({**QUERY, "ranking_options": {"ranker": 1}}, "ranking_options.ranker"),
    ({**QUERY, "ranking_options": {"score_threshold": "0.5"}}, "ranking_options.score_threshold"),
    ({**QUERY, "ranking_options": {"score_threshold": True}}, "ranking_options.score_threshold"),
    ({**QUERY, "ranking_options": {"hybrid_search": {}}}, "ranking_options.hybrid_search"),
    ({**QUERY, "filter": {"type": "eq"}}, "filter"),
    ({**QUERY, "max_results": 4}, "max_results"),
    ({**QUERY, "tenant": "globex"}, "tenant"),
    ({**QUERY, "permissions": ["hr"]}, "permissions"),
    ({**QUERY, "cache": 1}, "cache"),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=[f"{n} {param}" for n, (_, param) in enumerate(BAD)])
async def test_what_is_wrong_is_named(desk: Desk, body: Any, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        await desk.send(json.dumps(body).encode())
    error = caught.value
    assert (error.status, error.param, error.type) == (400, param, "invalid_request_error")
    assert f"`{param}`" in error.message
    assert desk.shelf.searches == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'"leave"',
        b"{",
        b'{"query": "a", "query": "b"}',
        b'{"query": "\\ud800"}',
        b'{"query": "leave", "ranking_options": {"score_threshold": NaN}}',
        b'{"query": "leave", "ranking_options": {"score_threshold": 1e999}}',
        b'{"query": "\xff"}',
        b'{"query": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    ],
    ids=["empty", "list", "text", "cut", "twice", "surrogate", "NaN", "too large", "not UTF-8", "deep"],
)
async def test_what_is_no_good_json_is_refused(desk: Desk, raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        await desk.send(raw)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"filters": None},
        {"rewrite_query": True},
        {"rewrite_query": False},
        {"rewrite_query": None},
        {"max_num_results": 10},
        {"ranking_options": None},
        {"ranking_options": {}},
        {"ranking_options": {"ranker": "none"}},
    ],
    ids=str,
)
async def test_what_changes_nothing_is_the_same_search(desk: Desk, fields: dict[str, Any]) -> None:
    first = await desk.ask()
    assert (await desk.ask(**fields)).content == first.content
    assert len(desk.shelf.searches) == 1


async def test_large_queries_are_read(desk: Desk) -> None:
    queries = [f"leave {n} " + "\N{GRINNING FACE}" * (MAX_QUERY - 10) for n in range(MAX_QUERIES)]
    assert (await desk.ask(queries)).page["search_query"] == queries
