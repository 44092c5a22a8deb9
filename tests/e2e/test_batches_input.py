"""Input files as people write them, and as they should not: what is wrong is told with its line, and nothing runs."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.batches import (
    CHAT,
    EMBEDDINGS,
    TEXT,
    Json,
    Lane,
    chat_line,
    chat_lines,
    counts,
    jsonl,
    lane,
    lane_config,
    line,
)
from tests.support.gateway import ALICE, Running, running
from tests.support.traffic import error_of, outcome, upstream_calls
from tests.support.upstream import Upstream

MOST = 100 * 1024
"""Bytes of a request."""


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(lane_config(up, tmp_path_factory.mktemp("lane"), extra="server: {max_body: 100KiB}\n")) as gateway:
        yield gateway


@pytest.fixture
def alice(gw: Running) -> Iterator[Lane]:
    with lane(gw) as found:
        yield found


@pytest.fixture
def good(prompt: str) -> bytes:
    """A line as it should be, without its end."""
    return jsonl([chat_line("good", prompt)]).strip()


# Accepted


@pytest.mark.parametrize(
    "spelling",
    [
        lambda lines: b"\xef\xbb\xbf" + b"\n".join(lines) + b"\n",
        lambda lines: b"\r\n".join(lines) + b"\r\n",
        lambda lines: b"\n\n \t\n" + b"\n\r\n\n".join(lines) + b"\n\n\n",
        lambda lines: b"\n".join(lines),
        lambda lines: b"\xef\xbb\xbf\r\n" + b"\r\n\r\n".join(lines),
    ],
    ids=["byte order mark", "CRLF", "blank lines", "no last newline", "all of it"],
)
def test_spellings(gw: Running, alice: Lane, up: Upstream, prompt: str, spelling: Any) -> None:
    lines = [jsonl([line]).strip() for line in chat_lines(f"{prompt} é😀", 3)]
    with upstream_calls(up, 3):
        batch = alice.run(spelling(lines))
        assert outcome(gw.chat(f"{prompt} é😀 2")) == "exact"
    assert counts(batch) == (3, 3, 0)
    assert alice.answers(batch).keys() == {"c1", "c2", "c3"}


def test_a_body_goes_out_as_it_stands_in_the_file(alice: Lane, up: Upstream, prompt: str) -> None:
    """Numbers and spaces too: what a parser would make of them may not be the same."""
    message = json.dumps({"role": "user", "content": prompt})
    body = f'{{"model":"test-model",  "messages": [{message}], "novel": 1.0000000000000000001, "more":1E2}}'
    with upstream_calls(up, 1):
        alice.run(f'{{"body": {body}, "url": "{CHAT}", "method": "POST", "custom_id": "ä"}}'.encode())
    sent = up.seen[-1].raw
    assert b"1.0000000000000000001" in sent
    assert up.seen[-1].body["more"] == 100


def test_lines_with_different_models(alice: Lane, prompt: str) -> None:
    batch = alice.run([chat_line("one", prompt), chat_line("two", prompt, model="other-model")])
    assert (counts(batch), batch.model) == ((2, 2, 0), None)


# Refused


def faults(alice: Lane, content: bytes, url: Any = CHAT) -> list[tuple[int | None, str | None]]:
    """Where something is wrong with a file: (line, field)."""
    batch = alice.ended(alice.start(content, url=url).id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert (batch.in_progress_at, batch.completed_at) == (None, None)
    assert counts(batch)[1:] == (0, 0)
    assert batch.errors is not None
    assert batch.errors.object == "list"
    found = batch.errors.data or []
    assert all(fault.code and fault.message for fault in found)
    return [(fault.line, fault.param) for fault in found]


def changed(**changes: Any) -> bytes:
    return jsonl([{**chat_line("changed", "?"), **changes}]).strip()


def without(name: str) -> bytes:
    return jsonl([{k: v for k, v in chat_line("without", "?").items() if k != name}]).strip()


def in_body(**changes: Any) -> bytes:
    return changed(body={**chat_line("", "?")["body"], **changes})


WRONG: dict[str, tuple[bytes, str | None]] = {
    "no JSON": (b"{", None),
    "two values": (b"{} {}", None),
    "no object": (b"[1]", None),
    "not UTF-8": (b'{"custom_id": "\xff"}', None),
    "a key twice": (b'{"custom_id": "a", "custom_id": "b"}', "custom_id"),
    "NaN": (in_body(temperature=float("nan")), None),
    "no custom_id": (without("custom_id"), "custom_id"),
    "custom_id is no text": (changed(custom_id=1), "custom_id"),
    "custom_id is empty": (changed(custom_id=""), "custom_id"),
    "custom_id is there already": (changed(custom_id="good"), "custom_id"),
    "no method": (without("method"), "method"),
    "another method": (changed(method="GET"), "method"),
    "no url": (without("url"), "url"),
    "another url": (changed(url=TEXT), "url"),
    "a url elsewhere": (changed(url="http://127.0.0.1/v1/chat/completions"), "url"),
    "no body": (without("body"), "body"),
    "body is no object": (changed(body="text"), "body"),
    "no model": (changed(body={"messages": []}), "body.model"),
    "a stream": (in_body(stream=True), "body.stream"),
    "too long": (in_body(padding="x" * 2 * MOST), None),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_told_with_its_line(alice: Lane, up: Upstream, good: bytes, wrong: str) -> None:
    """Lines are counted from 1, blank ones too; and what is right does not run."""
    bad, param = WRONG[wrong]
    with upstream_calls(up, 0):
        assert faults(alice, b"\n\r\n" + good + b"\n" + bad) == [(4, param)]


def test_everything_that_is_wrong_is_told(alice: Lane, up: Upstream, good: bytes) -> None:
    lines = [good, b"{", without("url"), b"", good, in_body(stream=True), changed(method="PUT", url="/v1/other")]
    with upstream_calls(up, 0):
        found = faults(alice, b"\n".join(lines))
    assert sorted(found, key=str) == sorted(
        [(2, None), (3, "url"), (5, "custom_id"), (6, "body.stream"), (7, "custom_id"), (7, "method"), (7, "url")],
        key=str,
    )


@pytest.mark.parametrize("content", [b"\n", b"\xef\xbb\xbf", b"\r\n \r\n"], ids=["a newline", "a mark", "blanks"])
def test_a_file_without_requests(alice: Lane, content: bytes) -> None:
    assert faults(alice, content) == [(None, None)]


def test_a_list_shows_the_first_of_very_many_faults(alice: Lane) -> None:
    batch = alice.ended(alice.start(b"{}\n" * 100).id)
    assert batch.errors is not None
    whole = batch.errors.data or []
    assert [fault.line for fault in whole] == [n for n in range(1, 101) for _ in range(4)]
    (listed,) = alice.client.batches.list(limit=1).data
    assert listed.errors is not None
    assert listed.errors.data == whole[:100]


def test_the_words_of_a_fault_are_short(alice: Lane) -> None:
    """What was sent is not sent back."""
    batch = alice.ended(alice.start(changed(custom_id="i" * 600) + b"\n" + changed(url="\n\x1b[31m" * 500)).id)
    assert batch.errors is not None
    for fault in batch.errors.data or []:
        assert fault.message is not None
        assert len(fault.message) < 300
        assert fault.message.isprintable()


def test_too_many_requests(alice: Lane, up: Upstream) -> None:
    body = json.dumps({"model": "test-model", "input": "?"})
    content = "".join(
        f'{{"custom_id": "{n}", "method": "POST", "url": "{EMBEDDINGS}", "body": {body}}}\n' for n in range(50_001)
    )
    with upstream_calls(up, 0):
        assert faults(alice, content.encode(), EMBEDDINGS)[0][0] == 50_001


def test_too_many_inputs(alice: Lane, up: Upstream) -> None:
    lines = [line(f"{n}", EMBEDDINGS, input=["?"] * 1_000) for n in range(51)]
    with upstream_calls(up, 0):
        assert faults(alice, jsonl(lines), EMBEDDINGS) == [(51, "body.input")]


# What a batch is asked for with


@pytest.fixture(scope="module")
def file(gw: Running) -> str:
    with lane(gw) as alice:
        return alice.upload(b"{}").id


CREATIONS: dict[str, tuple[Json, str]] = {
    "no file": ({"input_file_id": None}, "input_file_id"),
    "a file that is no text": ({"input_file_id": 1}, "input_file_id"),
    "no endpoint": ({"endpoint": None}, "endpoint"),
    "an endpoint that is none": ({"endpoint": "/v1/moderations"}, "endpoint"),
    "another window": ({"completion_window": "1h"}, "completion_window"),
    "no window": ({"completion_window": None}, "completion_window"),
    "an unknown field": ({"priority": "high"}, "priority"),
    "metadata that is none": ({"metadata": ["a"]}, "metadata"),
    "empty metadata of another kind": ({"metadata": []}, "metadata"),
    "too many pairs": ({"metadata": {f"{n}": "" for n in range(17)}}, "metadata"),
    "a long name": ({"metadata": {"n" * 65: ""}}, "metadata.n"),
    "a long text": ({"metadata": {"n": "x" * 513}}, "metadata.n"),
    "a text that is none": ({"metadata": {"n": 1}}, "metadata.n"),
    "lives that are none": ({"output_expires_after": 3600}, "output_expires_after"),
    "another anchor": ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after"),
    "too short a life": (
        {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
        "output_expires_after.seconds",
    ),
    "too long a life": (
        {"output_expires_after": {"anchor": "created_at", "seconds": 2_592_001}},
        "output_expires_after.seconds",
    ),
    "half a second": ({"output_expires_after": {"anchor": "created_at", "seconds": 3600.5}}, "output_expires_after.s"),
}


@pytest.mark.parametrize("what", CREATIONS)
def test_a_batch_that_cannot_be(gw: Running, file: str, what: str) -> None:
    changes, param = CREATIONS[what]
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **changes}
    error = error_of(create(gw, {k: v for k, v in body.items() if v is not None}), 400)
    assert str(error["param"]).startswith(param)


def test_the_most_metadata(gw: Running, file: str) -> None:
    most = {"n" * (64 - len(str(n))) + str(n): "é" * 512 for n in range(16)}
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", "metadata": most}
    assert create(gw, body).json()["metadata"] == most


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"endpoint": NaN}'], ids=["nothing", "a list", "half", "NaN"])
def test_what_is_no_object(gw: Running, body: bytes) -> None:
    head = {"authorization": f"Bearer {ALICE}", "content-type": "application/json"}
    assert error_of(gw.client.post("/v1/batches", content=body, headers=head), 400)


def create(gw: Running, body: Json) -> httpx.Response:
    return gw.client.post("/v1/batches", json=body, headers={"authorization": f"Bearer {ALICE}"})


def test_what_is_wrong_with_its_headers_is_told_at_once(gw: Running, file: str) -> None:
    """And not by each of its lines."""
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    for name, value in (("x-refrain-ttl", "nonsense"), ("cache-control", "max-age=soon")):
        head = {"authorization": f"Bearer {ALICE}", name: value}
        assert error_of(gw.client.post("/v1/batches", json=asked, headers=head), 400)["param"] == name


ALICES = {"authorization": f"Bearer {ALICE}"}


def test_batches_come_in_one_order(gw: Running) -> None:
    assert gw.client.get("/v1/batches", params={"order": "desc"}, headers=ALICES).status_code == 200
    assert error_of(gw.client.get("/v1/batches", params={"order": "asc"}, headers=ALICES), 400)["param"] == "order"
