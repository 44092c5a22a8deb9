"""Malformed answers of a search service: one bad result is left out, and of a bad answer nothing is used."""

import json
from typing import Any

import pytest

from backends.retrievers.pieces import LONGEST_NAME, LONGEST_TEXT, MOST_RESULTS
from tests.backends.retrievers.search_server import failure, result, results, said, says, search, sends, service


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        *[
            ({"id": value}, "$.id is no id (text of at most 1000 characters, or a whole number)")
            for value in (None, "", " ", "x" * (LONGEST_NAME + 1), 1.5, True, 2**64, [], {})
        ],
        *[({"text": value}, "$.text is no text, or an empty one") for value in (None, "", " \n", 5, ["x"], {})],
        ({"text": "x" * (LONGEST_TEXT + 1)}, f"$.text is a text of more than {LONGEST_TEXT} characters"),
        *[({"score": value}, "$.score is no number") for value in (None, "0.5", True, [], 10**400)],
    ],
    ids=lambda value: ascii(value)[:40],
)
async def test_a_malformed_result_is_left_out_and_if_all_are_the_search_fails(
    defect: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = result() | defect
    async with service(results(bad, result("good"))) as (server, retriever):
        assert [f.document for f in await search(retriever)] == ["good"]
        assert caplog.messages == [f"retriever wiki: 1 results left out, of one {message}"]
        server.answer = results(bad, bad)
        prefix = "the search service answered with results that cannot be used: "
        assert await said(retriever) == ("bad_results", prefix + message)
        assert retriever.state == "ready"


@pytest.mark.parametrize("item", [None, "x", 5, [], ["a"], {}], ids=ascii)
async def test_an_item_that_is_no_object(item: Any) -> None:
    async with service(results(item)) as (_, retriever):
        assert (await failure(retriever)).reason == "bad_results"


NO_LIST = "the search service answered without a list at $.results"
NO_JSON = "the answer of the search service is not JSON"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{}", NO_LIST),
        (b"[]", NO_LIST),
        (b"null", NO_LIST),
        (b'{"results": null}', NO_LIST),
        (b'{"results": {"id": "a"}}', NO_LIST),
        (b'{"results": "[]"}', NO_LIST),
        (b'"{\\"results\\": []}"', NO_LIST),
        (b"", NO_JSON),
        (b"<html>what is secret</html>", NO_JSON),
        (b'{"results": [', NO_JSON),
        (b'{"results": []} x', NO_JSON),
        (b'{"results": [{"id": "a", "text": "t", "score": NaN}]}', NO_JSON),
        (b'{"results": [{"id": "a", "text": "t", "score": Infinity}]}', NO_JSON),
        (b'{"results": [{"id": "a", "text": "t", "score": 1e999}]}', NO_JSON),
        (b'{"results": [{"id": "a", "text": "\\ud800", "score": 1}]}', NO_JSON),
        (b'{"results": [{"id": "a", "text": "\xff", "score": 1}]}', NO_JSON),
        ('{"results": []}'.encode("utf-16"), NO_JSON),
        (b"[" * 100_000 + b"]" * 100_000, NO_JSON),
        (b'{"results": ' + b"[" * 500 + b"]" * 500 + b"}", "the search service answered with results that cannot be "
         "used: $.id is no id (text of at most 1000 characters, or a whole number)"),
        (b"[" + b"{}," * 300_000 + b"{}]", "the answer of the search service holds too many values"),
        (json.dumps({"results": [0] * (MOST_RESULTS + 1)}).encode(),
         f"the search service answered with more than {MOST_RESULTS} results"),
    ],
    ids=lambda value: ascii(value[:30]),
)  # fmt: skip
async def test_an_answer_that_cannot_be_used(body: bytes, message: str) -> None:
    async with service(sends(body)) as (server, retriever):
        assert await said(retriever) == ("bad_results", message)
        # It says nothing about the next one.
        for _ in range(6):
            assert await said(retriever) == ("bad_results", message)
        server.answer = results(result())
        assert len(await search(retriever)) == 1


async def test_many_values_by_a_path_that_leads_to_many() -> None:
    answer = says([[0] * 100] * (MOST_RESULTS // 100 + 1))
    async with service(answer, results="$[*][*]") as (_, retriever):
        assert str(await failure(retriever)).endswith(f"more than {MOST_RESULTS} results")
