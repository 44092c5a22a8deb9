"""Statements 17 and 25: a flight that fails, before or after its first bytes."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import Running
from tests.support.live import (
    SSE,
    answer_of,
    call,
    error_event,
    gate,
    gated,
    listening,
    not_kept,
    settled,
    spoken,
    together,
)
from tests.support.traffic import error_of, fixed, outcome, until, upstream_calls
from tests.support.upstream import Reply, Script, Seen, Upstream, chat_answer, chat_chunks, reply_for, sse

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


# Statement 17

HALF = chat_chunks(chat_answer("one two three"), include_usage=True)
NO_END = [c for c in HALF if not c["choices"] or c["choices"][0]["finish_reason"] is None]


@pytest.mark.parametrize("cut", [False, True], ids=["end", "cut"])
@pytest.mark.parametrize("done", [False, True], ids=["no DONE", "DONE"])
def test_statement_17_a_flight_that_did_not_finish_is_not_stored(
    gw: Running, up: Upstream, prompt: str, done: bool, cut: bool
) -> None:
    """Statement 17: without a finish_reason all who listened get an error for an end, and nothing is stored."""
    with gate() as go:
        pieces = [sse([c], done=False) for c in NO_END] + [b"data: [DONE]\n\n" if done else b""]
        up.script = fixed(Reply(pieces, content_type=SSE, gates={3: go}, cut=cut))
        with upstream_calls(up, 1):
            callers = together(gw, prompt, ["sse", "sse+usage", "json", "sse"])
            go.set()
            results = [c.result() for c in callers]
    for form, result in zip(["sse", "sse+usage", "json", "sse"], results, strict=True):
        assert (error_of(result, 502) if form == "json" else error_event(result))["message"]
    settled(gw)
    not_kept(gw, up, prompt)


# Statement 25

BEFORE = {
    "500": Reply([b'{"error": {"message": "no"}}'], status=500),
    "503": Reply([b"busy"], status=503),
    "cut": Reply([], cut=True),
    "garbage": Reply([b"<html>"]),
    "garbage in a stream": Reply([b"data: {no\n\n"], content_type=SSE),
    "error event": Reply([b'data: {"error": {"message": "no"}}\n\n'], content_type=SSE),
    "nothing": Reply([b""], content_type=SSE),
}


def failing(first: Reply, go: threading.Event, then: Script, base: int) -> Script:
    """The first call from here fails when the gate opens; the next ones go their way."""

    def script(seen: Seen, number: int) -> Reply:
        return _copy(first, go) if number == base + 1 else then(seen, number)

    return script


def _copy(reply: Reply, go: threading.Event) -> Reply:
    return Reply(reply.pieces, status=reply.status, content_type=reply.content_type, cut=reply.cut, gate=go)


@MODES
@pytest.mark.parametrize("leader", ["json", "sse"])
@pytest.mark.parametrize("failure", BEFORE)
def test_statement_25_one_follower_takes_over_before_the_first_byte(
    gw: Running, up: Upstream, prompt: str, path: str, leader: str, failure: str
) -> None:
    """Statement 25: the leader has its error; of four who wait the oldest asks again, once, and all have an answer."""
    with gate() as go:
        then: Script = lambda seen, number: reply_for(seen, chat_answer(f"well {number}"))  # noqa: E731
        up.script = failing(BEFORE[failure], go, then, up.calls)
        with upstream_calls(up, 2):
            callers = together(gw, prompt, [leader, "sse", "json", "sse+usage", "json"], path=path)
            go.set()
            results = [c.result() for c in callers]
    error_of(results[0], 503 if failure == "503" else 500 if failure == "500" else 502)
    assert [outcome(r) for r in results[1:]] == ["miss", "joined", "joined", "joined"]
    assert {answer_of(r)["choices"][0]["message"]["content"] for r in results[1:]} == {f"well {up.calls}"}
    with upstream_calls(up, 0):
        assert outcome(gw.chat(prompt, path=path)) == "exact"


@MODES
def test_statement_25_the_next_in_line_takes_over(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Statement 25: whoever has left is passed over, the leader too; and who comes meanwhile joins the second call."""
    with gate() as go, gate() as again:
        then: Script = lambda seen, number: gated(reply_for(seen, chat_answer(f"well {number}")), again)  # noqa: E731
        up.script = failing(BEFORE["500"], go, then, up.calls)
        with upstream_calls(up, 2):
            leader, oldest, next_one, last = together(gw, prompt, ["sse", "sse", "json", "sse"], path=path)
            leader.leave()
            oldest.leave()
            listening(gw, 2)
            calls = up.calls
            go.set()
            until(lambda: up.calls == calls + 1)
            newcomer = call(gw, prompt, path=path)
            listening(gw, 3)
            again.set()
            results = [c.result() for c in (next_one, last, newcomer)]
    assert [outcome(r) for r in results] == ["miss", "joined", "joined"]
    assert len({answer_of(r)["choices"][0]["message"]["content"] for r in results}) == 1


@MODES
def test_statement_25_nobody_takes_over_for_nobody(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Statement 25: a failure that met the leader alone is followed by no call."""
    with gate() as go:
        up.script = failing(BEFORE["500"], go, up.script, up.calls)
        with upstream_calls(up, 1):
            caller = call(gw, prompt, path=path)
            listening(gw, 1)
            go.set()
            error_of(caller.result(), 500)
            settled(gw)


@MODES
@pytest.mark.parametrize("second", ["500", "cut", "garbage"])
def test_statement_25_a_second_failure_goes_to_all(
    gw: Running, up: Upstream, prompt: str, path: str, second: str
) -> None:
    """Statement 25: no third call is made for those who waited."""
    with gate() as go:
        up.script = failing(BEFORE["503"], go, fixed(BEFORE[second]), up.calls)
        with upstream_calls(up, 2):
            callers = together(gw, prompt, ["sse", "sse", "json", "sse"], path=path)
            go.set()
            results = [c.result() for c in callers]
    error_of(results[0], 503)
    for result in results[1:]:
        error_of(result, 500 if second == "500" else 502)
    settled(gw)
    not_kept(gw, up, prompt, path=path)


@MODES
@pytest.mark.parametrize("status", [400, 404, 429])
def test_statement_25_a_refusal_goes_to_all_at_once(
    gw: Running, up: Upstream, prompt: str, path: str, status: int
) -> None:
    """Statement 25: a 4xx would be the same for whoever asks again, so nobody does."""
    body = b'{"error": {"message": "no", "type": "t", "param": null, "code": "c"}}'
    with gate() as go:
        up.script = fixed(Reply([body], status=status, headers={"retry-after": "7"}, gate=go))
        with upstream_calls(up, 1):
            callers = together(gw, prompt, ["sse", "sse", "json"], path=path)
            go.set()
            for caller in callers:
                result = caller.result()
                assert error_of(result, status)["code"] == "c"
                assert result.headers["retry-after"] == "7"


@pytest.mark.parametrize("end", ["cut", "error event", "garbage"])
@pytest.mark.parametrize("leader", ["json", "sse"])
def test_statement_25_after_the_first_bytes_nobody_asks_again(
    gw: Running, up: Upstream, prompt: str, leader: str, end: str
) -> None:
    """Statement 25: who has half an answer gets an error for its end; the other half of another answer is no end."""
    tail = {"cut": b"", "error event": b'data: {"error": {"message": "no"}}\n\n', "garbage": b"data: {no\n\n"}[end]
    forms = [leader, "sse", "json", "sse+usage"]
    with gate() as go:
        pieces = [sse([c], done=False) for c in HALF[:3]] + [tail]
        up.script = fixed(Reply(pieces, content_type=SSE, gates={3: go}, cut=end == "cut"))
        with upstream_calls(up, 1):
            callers = together(gw, prompt, forms)
            callers[1].hears("one two ")
            go.set()
            results = [c.result() for c in callers]
    for form, result in zip(forms, results, strict=True):
        assert (error_of(result, 502) if form == "json" else error_event(result))["message"]
        assert form == "json" or spoken(result.content) == "one two "
    settled(gw)
    not_kept(gw, up, prompt)
    up.script = lambda seen, number: reply_for(seen, chat_answer("well"))
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt)) == "miss"


def test_statement_25_half_a_plain_object_was_no_first_byte(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 25: in request_response mode nobody has anything before the whole: a cut in its middle is made good."""
    whole = json.dumps(chat_answer("well")).encode()
    with gate() as go:
        broken = Reply([whole[:50], whole[50:80]], gates={1: go}, cut=True)
        base = up.calls
        up.script = lambda seen, number: broken if number == base + 1 else Reply([whole])
        with upstream_calls(up, 2):
            callers = together(gw, prompt, ["json", "sse", "json"], path="/rr/v1")
            go.set()
            results = [c.result() for c in callers]
    error_of(results[0], 502)
    assert [outcome(r) for r in results[1:]] == ["miss", "joined"]
