"""Another server's vector store, over a real connection."""

from typing import Any

import pytest

from backends.retrievers import Found
from backends.retrievers.openai import OpenAIRetriever
from backends.retrievers.pieces import LONGEST_NAME, text_version
from tests.backends.retrievers.search_server import (
    KEY,
    QUESTION,
    failure,
    said,
    says,
    search,
    sends,
    store,
)


def text(*texts: Any) -> list[Any]:
    return [{"type": "text", "text": text} for text in texts]


def item(**more: Any) -> dict[str, Any]:
    return {
        "file_id": "file-1", "filename": "leave.md", "score": 0.9, "attributes": None, "content": text("A text."),
    } | more  # fmt: skip


def page(*items: Any) -> Any:
    answer = {"object": "vector_store.search_results.page", "search_query": [QUESTION], "data": items}
    return says({**answer, "has_more": False, "next_page": None})


async def test_a_search_in_the_shape_of_openai() -> None:
    items = [
        item(score=0.4, attributes={"version": "v7", "author": "x"}, content=text("One.", "Two.")),
        item(file_id="file-2", filename="", score=0.8),
        item(score=0.3, content=[{"type": "image"}, *text("Three.")]),
    ]
    async with store(page(*items), store="vs 1/ü") as (server, retriever):
        assert await search(retriever) == [
            Found("file-2", text_version("A text."), 0, "A text.", 0.8, "file-2"),
            Found("file-1", "v7", 0, "One.\nTwo.", 0.4, "leave.md"),
            Found("file-1", text_version("Three."), 1, "Three.", 0.3, "leave.md"),
        ]
        (asked,) = server.asked
        assert asked.line == "POST /v1/vector_stores/vs%201%2F%C3%BC/search HTTP/1.1"
        assert asked.body == {"query": QUESTION, "max_num_results": 4, "rewrite_query": False}
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        assert asked.headers["content-type"] == "application/json"


async def test_no_more_than_openai_gives() -> None:
    async with store(page(*(item(file_id=f"{i}", score=i) for i in range(60))), api_key=None) as (server, retriever):
        assert len(await search(retriever, top_k=55)) == 55
        assert len(await search(retriever, top_k=1)) == 1
        assert [asked.body["max_num_results"] for asked in server.asked] == [50, 1]
        assert "authorization" not in server.asked[0].headers


def test_everybody_who_may_use_it_finds_the_same() -> None:
    retriever = OpenAIRetriever("files", base_url="http://x/v1", api_key=None, store="a")
    assert retriever.effective(frozenset({"hr"})) == frozenset()
    assert (retriever.state, retriever.lasting, repr(retriever)) == ("ready", 300, "OpenAIRetriever('files', ready)")


def test_revisions_and_generations() -> None:
    def retriever(base_url: str, store: str, api_key: str | None = None) -> OpenAIRetriever:
        return OpenAIRetriever("files", base_url=base_url, api_key=api_key, store=store)

    same = [retriever("http://x/v1", "a"), retriever("http://x/v1", "a", KEY), retriever("http://u:p@x/v1", "a")]
    others = [retriever("http://x/v2", "a"), retriever("http://x/v1", "b")]
    assert len({r.revision for r in same}) == 1
    assert len({r.revision for r in same + others}) == 3
    assert len({r.generation for r in same}) == 3


async def test_what_is_gone_is_not_found() -> None:
    async with store(page(item(), item(file_id="file-2"))) as (_, retriever):
        before = retriever.generation
        await retriever.changed("file-1", version=None, deleted=True)
        assert retriever.generation != before
        assert [f.document for f in await search(retriever)] == ["file-2"]
        await retriever.changed("file-1", version="v2", deleted=False)
        assert [f.document for f in await search(retriever)] == ["file-1", "file-2"]


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ({"file_id": None}, "file_id is no id"),
        ({"score": "high"}, "score is no number"),
        ({"content": "A text."}, "content is no list"),
        ({"content": None}, "content is no list"),
        ({"content": []}, "content is no text, or an empty one"),
        ({"content": [5]}, "content is no text, or an empty one"),
        ({"content": text("")}, "content is no text, or an empty one"),
        ({"content": text("a", None)}, "content[].text is no text"),
        ({"attributes": {"version": ["v"]}}, "attributes.version is no version"),
    ],
    ids=ascii,
)
async def test_a_malformed_result_is_left_out(defect: dict[str, Any], message: str) -> None:
    async with store(page(item(**defect), item(file_id="good"))) as (server, retriever):
        assert [f.document for f in await search(retriever)] == ["good"]
        server.answer = page(item(**defect))
        reason, text = await said(retriever)
        assert reason == "bad_results"
        assert text.startswith(f"the vector store answered with results that cannot be used: {message}")


@pytest.mark.parametrize("name", [None, 5, " ", "x" * (LONGEST_NAME + 1)], ids=lambda value: ascii(value)[:10])
async def test_a_name_that_cannot_be_shown_is_not(name: Any) -> None:
    async with store(page(item(filename=name))) as (_, retriever):
        assert [f.title for f in await search(retriever)] == ["file-1"]


@pytest.mark.parametrize("value", [{}, [], "data", {"data": None}, {"data": {}}, {"error": {}}], ids=ascii)
async def test_an_answer_without_results(value: Any) -> None:
    async with store(says(value)) as (_, retriever):
        assert await said(retriever) == ("bad_results", "the vector store answered without a list at data")


async def test_its_faults_have_its_name() -> None:
    async with store(sends(b"", status=b"401 No")) as (server, retriever):
        assert await said(retriever) == ("failed", "the vector store refused the credential (status 401)")
        server.answer = sends(b"{")
        assert await said(retriever) == ("bad_results", "the answer of the vector store is not JSON")
        error = await failure(retriever, "lone \ud800")
        assert (error.reason, str(error)) == ("failed", "the question is not valid Unicode")
