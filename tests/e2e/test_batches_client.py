"""The life of files and batches with the official `openai` client, changed in nothing but its base URL."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from gateway.batch.records import Url
from tests.support.batches import (
    CHAT,
    DAY,
    EMBEDDINGS,
    MODEL,
    TEXT,
    TOKENS,
    Json,
    Lane,
    chat_line,
    chat_lines,
    counts,
    held,
    jsonl,
    lane,
    lane_config,
    line,
    replies,
    text_in,
)
from tests.support.gateway import ALICE, BOB, EVE, Running, running
from tests.support.traffic import error_of, until, upstream_calls
from tests.support.upstream import Reply, Upstream, vector_of


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(lane_config(up, tmp_path_factory.mktemp("lane"))) as gateway:
        yield gateway


@pytest.fixture
def alice(gw: Running) -> Iterator[Lane]:
    with lane(gw) as found:
        yield found


def test_from_upload_to_answers(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    lines = chat_lines(prompt, 5)
    file = alice.upload(jsonl(lines), "tickets.jsonl")
    assert (file.object, file.filename, file.purpose, file.bytes) == (
        "file",
        "tickets.jsonl",
        "batch",
        len(jsonl(lines)),
    )
    assert file.expires_at == file.created_at + 30 * DAY
    assert alice.client.files.wait_for_processing(file.id).id == file.id
    metadata = {"team": "night"}
    with upstream_calls(up, 5):
        begun = alice.client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata=metadata
        )
        assert (begun.object, begun.status, counts(begun)) == ("batch", "validating", (0, 0, 0))
        assert (begun.endpoint, begun.completion_window, begun.input_file_id) == (CHAT, "24h", file.id)
        assert begun.expires_at == begun.created_at + DAY
        assert (begun.output_file_id, begun.error_file_id, begun.errors) == (None, None, None)
        batch = alice.ended(begun.id)
    assert (batch.status, counts(batch), batch.model, batch.metadata) == (
        "completed",
        (5, 5, 0),
        MODEL,
        {"team": "night"},
    )
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert None not in times
    assert times == sorted(times, key=lambda time: time or 0)
    assert {batch.failed_at, batch.expired_at, batch.cancelling_at, batch.cancelled_at, batch.error_file_id} == {None}
    answers = alice.answers(batch)
    assert answers.keys() == {line["custom_id"] for line in lines}
    assert sorted(text_in(a) for a in answers.values()) == sorted(
        f"This is answer number {n}." for n in range(up.calls - 4, up.calls + 1)
    )
    for answer in answers.values():
        response = answer["response"]
        assert response.keys() == {"status_code", "request_id", "body"}
        assert response["status_code"] == 200
        record = gw.admin("GET", "/admin/decisions", params={"id": response["request_id"]}).json()
        assert (record["outcome"], record["user"], record["status"]) == ("miss", "alice", 200)


def test_the_output_is_a_file(alice: Lane, prompt: str) -> None:
    batch = alice.run(chat_lines(prompt, 2))
    assert batch.output_file_id is not None
    file = alice.client.files.retrieve(batch.output_file_id)
    assert (file.object, file.purpose, file.bytes) == ("file", "batch_output", len(alice.content(file.id)))
    assert file.filename == f"{batch.id}_output.jsonl"
    assert file.expires_at == file.created_at + 30 * DAY


GIVEN: dict[Url, tuple[Json, type[openai.BaseModel], tuple[int, int]]] = {
    CHAT: ({"messages": [{"role": "user", "content": "?"}]}, ChatCompletion, TOKENS),
    TEXT: ({"prompt": "Once"}, Completion, (5, 3)),
    EMBEDDINGS: ({"input": ["once", "upon"]}, CreateEmbeddingResponse, (8, 0)),
}


@pytest.mark.parametrize("url", GIVEN, ids=["chat", "completions", "embeddings"])
def test_each_api(alice: Lane, url: Url) -> None:
    body, kind, (given, made) = GIVEN[url]
    batch = alice.run([line("one", url, **body)], url=url)
    answer = alice.answers(batch)["one"]["response"]["body"]
    kind.model_validate(answer, strict=True)
    if url == EMBEDDINGS:
        assert [item["embedding"] for item in answer["data"]] == [pytest.approx(vector_of(x)) for x in body["input"]]
    assert batch.usage is not None
    usage = (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens)
    assert usage == (given, made, given + made)


def test_good_lines_and_bad_ones_go_to_two_files(alice: Lane, up: Upstream, prompt: str) -> None:
    error = {"message": "Too long.", "type": "invalid_request_error", "param": "messages", "code": "too_long"}
    refusal = Reply([json.dumps({"error": error}).encode()], status=400)
    up.script = replies(lambda content: refusal if "bad" in content else None)
    lines = [chat_line(f"{kind} {n}", f"{prompt} {kind} {n}") for n in range(2) for kind in ("good", "bad")]
    batch = alice.run(lines)
    assert counts(batch) == (4, 2, 2)
    assert alice.answers(batch).keys() == {"good 0", "good 1"}
    failures = alice.failures(batch)
    assert failures.keys() == {"bad 0", "bad 1"}
    for failure in failures.values():
        assert failure["error"] is None
        assert (failure["response"]["status_code"], failure["response"]["body"]) == (400, {"error": error})
    assert batch.usage is not None
    assert batch.usage.total_tokens == 2 * sum(TOKENS)
    assert batch.error_file_id is not None
    assert alice.client.files.retrieve(batch.error_file_id).filename == f"{batch.id}_error.jsonl"


def test_headers(alice: Lane, prompt: str) -> None:
    file = alice.client.files.with_raw_response.create(file=("a", jsonl(chat_lines(prompt, 1))), purpose="batch")
    batch = alice.client.batches.with_raw_response.create(
        input_file_id=file.parse().id, endpoint=CHAT, completion_window="24h"
    )
    raw: list[Any] = [
        file,
        batch,
        alice.client.batches.with_raw_response.list(),
        alice.client.files.with_raw_response.list(),
    ]
    for answer in raw:
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "private, no-store"
    content: Any = alice.client.files.with_raw_response.content(file.parse().id)
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["content-length"] == str(file.parse().bytes)
    assert len({answer.headers["x-request-id"] for answer in (*raw, content)}) == 5


@pytest.mark.parametrize("escaped", [False, True], ids=["as it is", "escaped"])
def test_the_longest_metadata(gw: Running, alice: Lane, escaped: bool) -> None:
    metadata = {"😀" * 62 + f"{n:02}": "😀" * 512 for n in range(16)}
    assert _made(gw, alice, metadata, escaped).json()["metadata"] == metadata


def test_a_body_that_no_batch_needs(gw: Running, alice: Lane) -> None:
    """Is not parsed: that would stop everybody else."""
    assert error_of(_made(gw, alice, {"n": "x" * 128 * 1024}, escaped=False), 413)["code"] == "request_too_large"


def _made(gw: Running, alice: Lane, metadata: Json, escaped: bool) -> httpx.Response:
    file = alice.upload(b"{}").id
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", "metadata": metadata}
    body = json.dumps(asked, ensure_ascii=escaped).encode()
    head = {"authorization": f"Bearer {ALICE}", "content-type": "application/json"}
    return gw.client.post("/v1/batches", content=body, headers=head)


# Lists


def test_batches_are_listed_in_pages_newest_first(gw: Running, prompt: str) -> None:
    with lane(gw, key=BOB) as bob:
        assert bob.client.batches.list().data == []
        made = [bob.start(chat_lines(f"{prompt} {n}", 1)).id for n in range(5)]
        assert [batch.id for batch in bob.client.batches.list()] == made[::-1]
        page = bob.client.batches.list(limit=2)
        assert ([batch.id for batch in page.data], page.has_more) == (made[:2:-1], True)
        assert [batch.id for batch in page] == made[::-1]  # the client asks for the others
        last = bob.client.batches.list(limit=2, after=made[1])
        assert ([batch.id for batch in last.data], last.has_more) == ([made[0]], False)
        with pytest.raises(openai.NotFoundError):
            bob.client.batches.list(after="batch_of_nobody")


def test_files_are_listed_in_pages_both_ways_and_by_purpose(gw: Running, prompt: str) -> None:
    with lane(gw, key=EVE) as eve:
        batch = eve.run(chat_lines(prompt, 1))
        made = [batch.input_file_id, str(batch.output_file_id), *(eve.upload(b"{}", f"{n}").id for n in range(3))]
        files = eve.client.files
        assert [file.id for file in files.list(limit=2, order="asc")] == made
        assert [file.id for file in files.list(limit=2)] == made[::-1]
        assert [file.id for file in files.list(purpose="batch_output")] == [batch.output_file_id]
        assert [file.id for file in files.list(purpose="batch", order="asc", after=made[2])] == made[3:]
        with pytest.raises(openai.NotFoundError):
            files.list(after="file-of-nobody")


# Ends before the last line


def started(alice: Lane, up: Upstream, prompt: str) -> str:
    """A batch of 40 lines of which 3 are answered, and the others hang."""
    up.script = replies(lambda content: held() if int(content.rsplit(" ", 1)[1]) > 3 else None)
    id = alice.start(chat_lines(prompt, 40)).id
    alice.done(id, 3)
    return id


def test_cancelled(alice: Lane, up: Upstream, prompt: str) -> None:
    id = started(alice, up, prompt)
    assert alice.client.batches.cancel(id).status in ("cancelling", "cancelled")
    batch = alice.ended(id)
    assert (batch.status, counts(batch)) == ("cancelled", (40, 3, 37))
    assert batch.cancelling_at is not None
    assert batch.cancelled_at is not None
    assert batch.created_at <= batch.cancelling_at <= batch.cancelled_at
    assert alice.answers(batch).keys() == {"c1", "c2", "c3"}
    failures = alice.failures(batch)
    assert failures.keys() == {f"c{n}" for n in range(4, 41)}
    assert {failure["error"]["code"] for failure in failures.values()} == {"batch_cancelled"}
    until(lambda: up.open == 0)  # nobody is asked any more
    assert alice.client.batches.cancel(id) == batch


def test_expired(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    id = started(alice, up, prompt)
    gw.clock.offset = DAY + 1
    batch = alice.ended(id)
    assert (batch.status, counts(batch)) == ("expired", (40, 3, 37))
    assert batch.expired_at is not None
    assert batch.expires_at is not None
    assert batch.expired_at >= batch.expires_at
    assert alice.answers(batch).keys() == {"c1", "c2", "c3"}
    assert {failure["error"]["code"] for failure in alice.failures(batch).values()} == {"batch_expired"}
    until(lambda: up.open == 0)
