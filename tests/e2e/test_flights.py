"""Joining a flight: what has come at once, the rest live, in whichever form it was asked for."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import ALICE, Running
from tests.support.live import (
    FORMS,
    SSE,
    TOKENS,
    Caller,
    answer_of,
    call,
    gate,
    gated,
    holding,
    listening,
    settled,
    streaming,
    together,
)
from tests.support.traffic import chunks, decision, essence, events, fixed, outcome, until, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, reply_for, sse

Json = dict[str, Any]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


# What has come at once, the rest live


def test_a_late_joiner_gets_what_has_come_at_once(gw: Running, up: Upstream, prompt: str) -> None:
    """While the upstream is silent in the middle of its answer, the joiner has all that the leader has."""
    with gate() as go:
        up.script = fixed(streaming(chat_answer("word " * 50 + "end"), {41: go}))
        leader = call(gw, prompt).hears("word " * 40)
        joiner = call(gw, prompt).hears("word " * 40)
        assert joiner.pieces[-1][0] - joiner.begun < 0.5
        assert [leader.outcome, joiner.outcome] == ["miss", "joined"]
        assert not leader.ended
        go.set()
        assert leader.result().content == joiner.result().content


def test_then_the_rest_live(gw: Running, up: Upstream, prompt: str) -> None:
    """Word for word: whoever joined before it has each word while the next is not yet made."""
    with gate() as one, gate() as two, gate() as three:
        up.script = fixed(streaming(chat_answer("a b c d"), {2: one, 3: two, 4: three}))
        callers: list[Caller] = []
        for go, text in ((one, "a "), (two, "a b "), (three, "a b c ")):
            callers.append(call(gw, prompt))
            for caller in callers:
                caller.hears(text)
            go.set()
        results = [c.result() for c in callers]
    assert [outcome(r) for r in results] == ["miss", "joined", "joined"]
    assert len({r.content for r in results}) == 1


def test_joining_when_only_the_end_is_missing(gw: Running, up: Upstream, prompt: str) -> None:
    """All words are there, the end marker is not: still a flight, and the joiner gets the whole answer."""
    with gate() as go:
        up.script = fixed(streaming(chat_answer("a b"), {5: go}))
        leader = call(gw, prompt).hears("a b")
        joiner = call(gw, prompt).hears("a b")
        assert not joiner.content.endswith(b"data: [DONE]\n\n")
        go.set()
        assert leader.result().content == joiner.result().content
    assert outcome(joiner.result()) == "joined"


# Forms


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
@pytest.mark.parametrize(("leader", "joiner"), [*itertools.product(FORMS, FORMS)])
def test_any_form_joins_any_other(gw: Running, up: Upstream, prompt: str, path: str, leader: str, joiner: str) -> None:
    """The accumulated objects are equal; usage is there for those who asked, whatever the leader did."""
    original = chat_answer("one two three")
    with gate() as go:
        up.script = holding(go, original)
        with upstream_calls(up, 1):
            callers = together(gw, prompt, [leader, joiner], path=path)
            go.set()
            results = [c.result() for c in callers]
            results.append(gw.chat(prompt, path=path, **FORMS[joiner]))
    assert [outcome(r) for r in results] == ["miss", "joined", "exact"]
    for form, result in zip((leader, joiner, joiner), results, strict=True):
        answer = answer_of(result)
        assert essence(answer) == essence(original)
        assert answer.get("usage") == (None if form == "sse" else USAGE)
        if form == "sse+usage":
            *before, last = chunks(result.text)
            assert last["choices"] == []
            assert [c["usage"] for c in before] == [None] * len(before)
        if form == "sse":
            assert "usage" not in "".join(events(result.text))


HEAD = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 1_700_000_123, "model": "test-model"}


def piece(index: int, delta: Json, finish: str | None = None) -> Json:
    return {**HEAD, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]}


def part(index: int, arguments: str, **first: Any) -> Json:
    function = {**({"name": first.pop("name")} if first else {}), "arguments": arguments}
    return {"tool_calls": [{"index": index, **first, "function": function}]}


INTERLEAVED = [
    piece(2, {"role": "assistant", "content": ""}),
    piece(0, {"role": "assistant", "content": None}),
    piece(0, part(0, "", id="call_a", type="function", name="f")),
    piece(1, {"role": "assistant", "content": "", "reasoning_content": "hm"}),
    piece(1, {"content": "B1 é"}),
    piece(0, part(1, "", id="call_b", type="function", name="g")),
    piece(0, part(0, '{"x"')),
    piece(2, {"content": "C1 "}),
    piece(0, part(1, '{"y"')),
    piece(1, {"content": "東"}),
    piece(0, part(1, ": 2}")),
    piece(2, {"refusal": "no"}),
    piece(2, {}, "stop"),
    piece(0, part(0, ": 1}")),
    piece(1, {}, "stop"),
    piece(0, {}, "tool_calls"),
    {**HEAD, "choices": [], "usage": USAGE},
]
WHOLE = [
    {"index": 0, "message": {"role": "assistant", "tool_calls": [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": '{"y": 2}'}},
    ]}, "finish_reason": "tool_calls"},
    {"index": 1, "message": {"role": "assistant", "content": "B1 é東", "reasoning_content": "hm"},
     "finish_reason": "stop"},
    {"index": 2, "message": {"role": "assistant", "content": "C1 ", "refusal": "no"}, "finish_reason": "stop"},
]  # fmt: skip


def test_many_in_all_forms_at_every_stage_of_an_interleaved_answer(gw: Running, up: Upstream, prompt: str) -> None:
    """Three choices in turns, one with two parallel tool calls; with each piece another client of each form comes."""
    pieces = [sse([p], done=False) for p in INTERLEAVED] + [b"data: [DONE]\n\n"]
    callers: list[tuple[str, Caller]] = []
    with gate() as a, gate() as b, gate() as c, gate() as d:
        up.script = fixed(Reply(pieces, content_type=SSE, gates={0: a, 4: b, 10: c, 15: d}))
        with upstream_calls(up, 1):
            for go in (a, b, c, d):
                for form in (*FORMS, *FORMS):
                    callers.append((form, call(gw, prompt, n=3, **FORMS[form])))
                    listening(gw, len(callers))
                go.set()
            results = [(form, caller.result()) for form, caller in callers]
    assert [outcome(r) for _, r in results] == ["miss"] + ["joined"] * 23
    for form, result in results:
        answer = answer_of(result)
        assert essence(answer)["choices"] == WHOLE
        assert answer.get("usage") == (None if form == "sse" else USAGE)
        assert answer["id"] == "chatcmpl-9"
    for form in FORMS:
        assert len({r.content for f, r in results if f == form}) == 1
        hit = gw.chat(prompt, n=3, **FORMS[form])
        assert outcome(hit) == "exact"
        assert essence(answer_of(hit))["choices"] == WHOLE


def test_a_plain_answer_that_came_in_one_piece_streams_to_those_who_want_it_so(
    gw: Running, up: Upstream, prompt: str
) -> None:
    """request_response: plain clients get the upstream's own bytes, streams the same answer as chunks."""
    raw = json.dumps(chat_answer("one two three"), indent=2).encode()
    with gate() as go:
        up.script = fixed(Reply([raw[:10], raw[10:]], gates={1: go}))
        callers = together(gw, prompt, ["sse", "json", "sse+usage", "json"], path="/rr/v1")
        go.set()
        results = [c.result() for c in callers]
    assert results[1].content == results[3].content == raw
    assert [essence(answer_of(r)) for r in results] == [essence(json.loads(raw))] * 4


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_legacy_completions_join_too(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    with gate() as go:
        normal = up.script
        up.script = lambda seen, number: gated(normal(seen, number), go)
        body = {"model": "test-model", "prompt": prompt, "stream": stream}
        head = {"authorization": f"Bearer {ALICE}"}
        with upstream_calls(up, 1):
            callers = []
            for number in (1, 2, 3):
                callers.append(Caller(gw.url, "/v1/completions", body, head))
                listening(gw, number)
            go.set()
            results = [c.result() for c in callers]
    assert [outcome(r) for r in results] == ["miss", "joined", "joined"]
    assert len({r.content for r in results}) == 1
    assert f"text number {up.calls}" in results[0].text


# What the head and the record say


def test_what_the_head_of_a_joined_answer_says(gw: Running, up: Upstream, prompt: str) -> None:
    """Joined, forwarded on a miss and collapsed; as old as the call; what was saved only where it is known by then."""
    gw.clock.frozen = 1_750_000_000.0
    with gate() as go:
        up.script = holding(go)
        leader = call(gw, prompt).hears("one two ")
        gw.clock.frozen += 7.9
        stream = call(gw, prompt).hears("one two ")
        plain = call(gw, prompt, stream=False)
        listening(gw, 3)
        gw.clock.frozen += 3
        go.set()
        first, second, third = leader.result(), stream.result(), plain.result()
    assert first.headers["x-refrain-cache"] == "miss"
    assert first.headers["cache-status"] == "exact; fwd=miss"
    assert not {"age", "x-refrain-saved"} & set(first.headers)
    for joined in (second, third):
        assert joined.headers["x-refrain-cache"] == "joined"
        assert joined.headers["cache-status"] == "exact; fwd=miss; collapsed"
        assert joined.headers["cache-control"] == "private, no-store"
        assert joined.headers["server-timing"]
    assert second.headers["age"] == "7"
    assert third.headers["age"] in ("7", "10")
    assert "x-refrain-saved" not in second.headers
    assert re.fullmatch(r"tokens=18;( usd=[\d.]+;)? ms=\d+", third.headers["x-refrain-saved"])
    assert second.headers["content-type"].startswith(SSE)
    assert third.headers["content-type"] == "application/json"
    assert len({r.headers["x-request-id"] for r in (first, second, third)}) == 3


def test_what_the_record_of_a_joined_answer_says(gw: Running, up: Upstream, prompt: str) -> None:
    before = settled(gw)
    requests = dict(gw.admin("GET", "/admin/stats").json()["requests"])
    with gate() as go:
        up.script = holding(go)
        callers = together(gw, prompt, ["sse", "sse", "json"])
        go.set()
        results = [c.result() for c in callers]
    leader, *joined = [decision(gw, r) for r in results]
    assert (leader["outcome"], leader["stored"]) == ("miss", True)
    assert leader["tokens"].items() >= {"served": TOKENS, "consumed": TOKENS, "unserved": 0, "saved": 0}.items()
    for record in joined:
        assert (record["outcome"], record["status"], record["error"]) == ("joined", 200, None)
        assert record["tokens"].items() >= {"served": TOKENS, "consumed": 0, "unserved": 0, "saved": TOKENS}.items()
        assert record["key"] == leader["key"]
        assert record["backend"] == "fake"
    after = settled(gw)
    assert {name: after[name] - before[name] for name in before} == {
        "consumed": TOKENS,
        "billable": TOKENS,
        "unserved": 0,
        "served": 3 * TOKENS,
        "saved": 2 * TOKENS,
    }
    now = gw.admin("GET", "/admin/stats").json()["requests"]
    assert {name: now[name] - requests.get(name, 0) for name in ("miss", "joined")} == {"miss": 1, "joined": 2}


def test_metrics_count_who_is_in_flight(gw: Running, up: Upstream, prompt: str) -> None:
    def flights() -> list[str]:
        lines = gw.admin("GET", "/metrics").text.splitlines()
        return [line for line in lines if re.match(r"refrain_flight(s|_listeners)[ {]", line)]

    assert [line.rpartition(" ")[2] for line in flights()] == ["0.0", "0.0"]
    with gate() as go:
        up.script = holding(go)
        together(gw, prompt, ["sse", "sse", "json"])
        assert sorted(line.rpartition(" ")[2] for line in flights()) == ["1.0", "3.0"]
        call(gw, f"{prompt} Another one.")
        listening(gw, 4)
        assert sorted(line.rpartition(" ")[2] for line in flights()) == ["2.0", "4.0"]
        go.set()
    until(lambda: all(line.endswith(" 0.0") for line in flights()))
    lines = gw.admin("GET", "/metrics").text.splitlines()
    assert any(line.startswith("refrain_requests_total{") and 'outcome="joined"' in line for line in lines)


# Around a flight


def test_the_next_one_after_the_flight_is_a_hit(gw: Running, up: Upstream, prompt: str) -> None:
    """What is stored is there before the last byte leaves: whoever asks after a joined answer finds it."""
    for number in range(10):
        with gate() as go:
            up.script = holding(go)
            callers = together(gw, f"{prompt} {number}", ["sse", "json"])
            go.set()
            for caller in callers:
                caller.result()
                with upstream_calls(up, 0):
                    assert outcome(gw.chat(f"{prompt} {number}")) == "exact"


def test_other_requests_do_not_wait(gw: Running, up: Upstream, prompt: str) -> None:
    """A flight holds up nobody who asked for something else, and no hit."""
    outcome(gw.chat(f"{prompt} An old one."))
    with gate() as go:
        normal, base = up.script, up.calls
        up.script = lambda seen, number: holding(go)(seen, number) if number == base + 1 else normal(seen, number)
        leader = call(gw, prompt).hears("one two ")
        assert outcome(gw.chat(f"{prompt} An old one.")) == "exact"
        assert outcome(gw.chat(f"{prompt} A new one.")) == "miss"
        assert not leader.ended
        go.set()
        leader.result()


def test_spellings_of_one_request_join(gw: Running, up: Upstream, prompt: str) -> None:
    """What has the same key has the same flight: order of keys, `user`, a text part instead of a string."""
    parts = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    with gate() as go:
        up.script = lambda seen, number: gated(reply_for(seen, chat_answer(f"one two {number}")), go)
        with upstream_calls(up, 1):
            callers = [call(gw, prompt)]
            listening(gw, 1)
            spellings: list[Json] = [{"user": "u"}, {"messages": parts}, {"n": 1, "metadata": {"a": "b"}}]
            for number, more in enumerate(spellings, 2):
                callers.append(call(gw, prompt, **more))
                listening(gw, number)
            go.set()
            results: list[httpx.Response] = [c.result() for c in callers]
    assert [outcome(r) for r in results] == ["miss"] + ["joined"] * 3
