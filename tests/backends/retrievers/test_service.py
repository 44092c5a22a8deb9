"""What a search service is asked, and what becomes of its results."""

from hashlib import blake2b
from math import inf
from typing import Any
from urllib.parse import parse_qsl

import pytest

from backends.retrievers import Found
from backends.retrievers.noticed import MOST_GONE, Noticed
from backends.retrievers.pieces import LONGEST_NAME
from backends.retrievers.service import ServiceRetriever
from tests.backends.retrievers.search_server import (
    KEY,
    QUESTION,
    failure,
    result,
    results,
    says,
    search,
    service,
)


def version_of(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


async def test_without_settings_it_posts_the_question_and_reads_plain_results() -> None:
    answer = results(result("b.md", "Second.", 0.5), result("a/ü.md", "First.", 1))
    async with service(answer) as (server, retriever):
        assert (retriever.state, retriever.detail, retriever.lasting) == ("ready", "ready", 300)
        assert await search(retriever) == [
            Found("a/ü.md", version_of("First."), 0, "First.", 1.0, "a/ü.md"),
            Found("b.md", version_of("Second."), 0, "Second.", 0.5, "b.md"),
        ]
        await search(retriever, permissions=None)
        first, second = server.asked
        assert first.line == "POST /find HTTP/1.1"
        assert first.body == {"query": QUESTION, "top_k": 4, "permissions": ["hr", "it"]}
        assert second.body["permissions"] is None
        assert first.headers["authorization"] == f"Bearer {KEY}"
        assert first.headers["content-type"] == "application/json"
        assert first.headers["accept-encoding"] == "identity"
        assert server.raw.connections == 1


async def test_a_template_and_paths_of_its_own() -> None:
    hit = {"_id": 7, "_score": 2, "_source": {"body": "Text.", "rev": 3}}
    async with service(
        says({"hits": {"hits": [hit]}}),
        body='{"match": {"body": {query}}, "size": {top_k}}',
        headers={"Content-Type": "application/x-ndjson"},
        results="$.hits.hits",
        id="$._id",
        text="$._source.body",
        score="$._score",
        version="$._source.rev",
    ) as (server, retriever):
        assert await search(retriever, 'a "b" {top_k}') == [Found("7", "3", 0, "Text.", 2.0, "7")]
        assert server.asked[0].body == {"match": {"body": 'a "b" {top_k}'}, "size": 4}
        assert server.asked[0].headers["content-type"] == "application/x-ndjson"


@pytest.mark.parametrize("query", ["", "?", "?index=a%20b&x=%2B", "?a=ü"], ids=ascii)
async def test_by_get_the_question_is_added_to_the_url(query: str) -> None:
    async with service(results(), method="GET", query=query) as (server, retriever):
        assert await search(retriever, "a&top_k=99 +#%", top_k=3) == []
        method, target, _ = server.asked[0].line.split(" ")
        path, _, sent = target.partition("?")
        assert (method, path, server.asked[0].body) == ("GET", "/find", None)
        assert parse_qsl(sent) == [
            *parse_qsl(query[1:]), ("query", "a&top_k=99 +#%"), ("top_k", "3"), ("permissions", "hr"),
            ("permissions", "it")
        ]  # fmt: skip
        assert "content-type" not in server.asked[0].headers


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_question_that_is_no_unicode_is_not_sent(method: str) -> None:
    async with service(results(), method=method) as (server, retriever):
        error = await failure(retriever, "lone \ud800")
        assert (error.reason, str(error)) == ("failed", "the question is not valid Unicode")
        assert server.asked == []


async def test_the_best_of_more_results_than_were_asked_for() -> None:
    scores = [0.1, -5, 0.9, 0.9, 3e300, 0]
    answer = results(*(result(f"{i}", score=score) for i, score in enumerate(scores)))
    async with service(answer) as (_, retriever):
        assert [(f.document, f.score) for f in await search(retriever, top_k=4)] == [
            ("4", 3e300), ("2", 0.9), ("3", 0.9), ("0", 0.1)
        ]  # fmt: skip


async def test_pieces_of_one_document_are_numbered() -> None:
    answer = results(result("a", "one", 3), result("b", "two", 2), result("a", "three", 1), result("a", "one", 0))
    async with service(answer) as (_, retriever):
        assert [(f.document, f.position, f.text) for f in await search(retriever)] == [
            ("a", 0, "one"), ("b", 0, "two"), ("a", 1, "three"), ("a", 2, "one")
        ]  # fmt: skip


async def test_a_version_is_that_of_the_service_or_of_the_text() -> None:
    versions = ["v1", 5, 2.5, "", None, True, ["v"], "x" * (LONGEST_NAME + 1)]
    items = [result(f"{i}", f"text {i}", v=version) for i, version in enumerate(versions)]
    async with service(results(*items, result("no", "text")), version="$.v") as (_, retriever):
        assert [(f.document, f.version) for f in await search(retriever, top_k=10)] == [
            ("0", "v1"), ("1", "5"), ("2", "2.5"), ("3", version_of("text 3")), ("4", version_of("text 4")),
            ("no", version_of("text"))
        ]  # fmt: skip


# Permissions


@pytest.mark.parametrize(
    ("needed", "seen"),
    [
        ([], True),
        (["hr"], True),
        (["hr", "it"], True),
        (["hr", "it", "ceo"], False),
        (["ceo"], False),
        ("hr", True),
        ("ceo", False),
        ("hr it", False),
        ("", False),
        ([""], False),
        (["hr", None], False),
        (["hr", 1], False),
        ([["hr"]], False),
        ({"hr": True}, False),
        ({}, False),
        (None, False),
        (0, False),
        (False, False),
        (["HR"], False),
        (["hr "], False),
    ],
    ids=lambda value: ascii(value),
)
async def test_results_that_need_a_permission_that_is_not_there_are_dropped(needed: Any, seen: bool) -> None:
    answer = results(result("x", acl={"names": needed}), result("open", score=0.1, acl={"names": []}))
    async with service(answer, permissions="$.acl.names") as (_, retriever):
        found = [f.document for f in await search(retriever)]
        assert found == (["x", "open"] if seen else ["open"])
        # Where nobody is asked who he is, everything is for everybody.
        assert len(await search(retriever, permissions=None)) == 2


async def test_a_result_that_names_no_permissions_is_dropped() -> None:
    async with service(results(result("x"), "x", 5), permissions="$.acl") as (_, retriever):
        assert await search(retriever) == []


async def test_what_is_dropped_leaves_no_trace() -> None:
    hidden = [result("a", acl=["ceo"]), result(None, acl=["ceo"]), {"acl": ["ceo"], "score": "x"}, {"acl": 5}]
    async with service(results(*hidden, result("a", "seen", acl=[])), permissions="$.acl") as (server, retriever):
        # No error for its defects, no gap in the numbers of its document.
        assert [(f.document, f.position) for f in await search(retriever)] == [("a", 0)]
        server.answer = results(*hidden)
        assert await search(retriever) == []


def test_which_permissions_matter() -> None:
    mine = frozenset({"hr"})

    def effective(**settings: Any) -> frozenset[str]:
        return ServiceRetriever("x", url="http://x/", **settings).effective(mine)

    assert effective() == mine
    assert effective(method="GET") == mine
    assert effective(body='{"q": {query}, "p": {permissions}}') == mine
    assert effective(body='{"q": {query}}', permissions="$.acl") == mine
    # They are neither sent nor named: everybody finds the same.
    assert effective(body='{"q": {query}}') == frozenset()


# Documents change


async def test_each_notice_is_a_new_generation_and_what_is_gone_is_not_found() -> None:
    answer = results(result("a", score=3), result(7, score=2), result("c", score=1))
    async with service(answer) as (_, retriever):
        generations = [retriever.generation]

        async def changed(document: str, deleted: bool) -> list[str]:
            await retriever.changed(document, version=None if deleted else "2", deleted=deleted)
            generations.append(retriever.generation)
            return [f.document for f in await search(retriever, top_k=2)]

        assert await changed("b", False) == ["a", "7"]
        assert await changed("a", True) == ["7", "c"]
        assert await changed("7", True) == ["c"]
        assert await changed("7", True) == ["c"]
        assert await changed("a", False) == ["a", "c"]
        assert len(set(generations)) == 6


async def test_what_is_gone_is_kept_in_the_list_that_it_was_given() -> None:
    gone = {"b": None}
    async with service(results(result("a"), result("b"), result("c")), gone=gone) as (_, retriever):
        assert [f.document for f in await search(retriever)] == ["a", "c"]
        await retriever.changed("a", version=None, deleted=True)
        await retriever.changed("b", version="2", deleted=False)
        assert [f.document for f in await search(retriever)] == ["b", "c"]
    assert list(gone) == ["a"]


async def test_who_only_wants_a_document_read_anew_does_not_bring_it_back() -> None:
    async with service(results(result("a"), result("b"))) as (_, retriever):
        await retriever.changed("a", version=None, deleted=True)
        before = retriever.generation
        await retriever.changed("a", version=None, deleted=False)
        assert retriever.generation != before
        assert [f.document for f in await search(retriever)] == ["b"]


async def test_a_search_that_began_before_the_notice_does_not_find_what_is_gone() -> None:
    async with service(results(result("a"), result("b"))) as (server, retriever):
        honest = server.answer

        async def during(connection: Any) -> None:
            await retriever.changed("a", version=None, deleted=True)
            await honest(connection)

        server.answer = during
        assert [f.document for f in await search(retriever)] == ["b"]


async def test_a_search_that_began_before_a_new_version_was_named_does_not_find_what_was_gone() -> None:
    """The service may have found the old text before it had the new one."""
    async with service(results(result("a"), result("b"))) as (server, retriever):
        await retriever.changed("a", version=None, deleted=True)
        honest = server.answer

        async def during(connection: Any) -> None:
            await retriever.changed("a", version="2", deleted=False)
            await honest(connection)

        server.answer = during
        assert [f.document for f in await search(retriever)] == ["b"]
        server.answer = honest
        assert [f.document for f in await search(retriever)] == ["a", "b"]


async def lasting(retriever: ServiceRetriever) -> dict[str, float]:
    return {found.document: found.lasting for found in await search(retriever)}


async def test_a_version_that_a_notice_has_ended_is_not_used_again(caplog: pytest.LogCaptureFixture) -> None:
    """The search service may lag behind who tells of changes; not for ever, since it may spell versions otherwise."""
    now = 0.0
    both = results(result("a", v="7"), result("b", v="7"))
    async with service(both, version="$.v", mono=lambda: now) as (server, retriever):
        await retriever.changed("a", version="8", deleted=False)
        generation = retriever.generation
        assert await lasting(retriever) == {"a": 0, "b": inf}
        server.answer = results(result("a", v="8"))
        assert await lasting(retriever) == {"a": inf}
        server.answer = both
        assert await lasting(retriever) == {"a": inf, "b": inf}, "it has been there"
        assert retriever.generation == generation
        await retriever.changed("a", version="9", deleted=False)
        assert await lasting(retriever) == {"a": 0, "b": inf}
        now = 301.0
        assert await lasting(retriever) == {"a": inf, "b": inf}
    assert "version '9' of 'a'" in caplog.text


def test_so_many_deleted_documents_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    noticed = Noticed("wiki")
    for number in range(MOST_GONE):
        noticed.changed(f"{number}", None, True)
    noticed.changed("0", None, True)  # the youngest now
    now = noticed.mark()
    assert (noticed.gone("0", now), noticed.gone("1", now), caplog.messages) == (True, True, [])
    noticed.changed("new", None, True)
    now = noticed.mark()
    assert (noticed.gone("0", now), noticed.gone("1", now), noticed.gone("new", now)) == (True, False, True)
    assert len(caplog.messages) == 1


def test_a_generation_does_not_come_again_and_a_revision_does() -> None:
    def retriever(**settings: Any) -> ServiceRetriever:
        return ServiceRetriever("x", **({"url": "http://x/a"} | settings))

    same = [retriever(), retriever(headers={"x-key": KEY}), retriever(url="http://u:p@x/a")]
    assert len({r.generation for r in same}) == 3
    assert len({r.revision for r in same}) == 1
    others = [
        retriever(url="http://x/b"),
        retriever(method="GET"),
        retriever(body='{"q": {query}}'),
        *(retriever(**{name: "$.x"}) for name in ("results", "id", "text", "score", "version", "permissions")),
    ]
    assert len({r.revision for r in (*same, *others)}) == 10


@pytest.mark.parametrize("setting", ["results", "id", "text", "score", "version", "permissions", "body"])
def test_settings_that_cannot_be_used(setting: str) -> None:
    with pytest.raises(ValueError, match="must"):
        ServiceRetriever("x", url="http://x/", **{setting: "nothing"})
