"""Statements 10 to 15: a stored answer comes again as it was, in whichever form it is asked for."""

import json
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway import Running
from tests.support.live import FORMS, SSE
from tests.support.traffic import accumulated, chunks, essence, events, fixed, outcome, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, answer_with, chat_answer, sse

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
HEAD = {"id": "chatcmpl-9", "created": 1_700_000_123, "model": "test-model"}


def call(number: int, arguments: str) -> Json:
    return {"id": f"call_{number}", "type": "function", "function": {"name": f"f{number}", "arguments": arguments}}


def choice(index: int, finish: str = "stop", **message: Any) -> Json:
    whole = {"role": "assistant", "content": None, "refusal": None, **message}
    return {"index": index, "message": whole, "logprobs": None, "finish_reason": finish}


def piece(index: int, delta: Json, finish: str | None = None, **more: Any) -> Json:
    """A chunk as an upstream sends it."""
    body = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [body]}


def part(index: int, arguments: str, **first: Any) -> Json:
    """A delta with a fragment of a tool call; the first one has its id and name."""
    function = {**({"name": first.pop("name")} if first else {}), "arguments": arguments}
    return {"tool_calls": [{"index": index, **first, "function": function}]}


def last(usage: Json) -> Json:
    return {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": usage}


def answer_of(response: httpx.Response) -> Json:
    """The whole answer, in whichever form it came."""
    streamed = response.headers["content-type"].startswith("text/event-stream")
    return accumulated(response.text) if streamed else dict(response.json())


# Statement 10

ANSWERS = {
    "text": [choice(0, content="Grüße, 東京 \U0001f600\n end ")],
    "tool calls": [choice(0, "tool_calls", tool_calls=[call(1, '{"a": "é"}'), call(2, "")])],
    "text and tool calls": [choice(0, "tool_calls", content="Let me see.", tool_calls=[call(1, "{}")])],
    "refusal": [choice(0, refusal="I will not.")],
    "two ends": [choice(0, content="done"), choice(1, "tool_calls", tool_calls=[call(1, "{}")])],
}


@MODES
@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("choices", ANSWERS.values(), ids=ANSWERS)
def test_statement_10_stored_in_one_form_served_in_all(
    gw: Running, up: Upstream, prompt: str, path: str, first: str, choices: list[Json]
) -> None:
    """Statement 10: content, tool calls, finish reasons and usage are the same in the form stored and in the others."""
    original = chat_answer("", choices=choices)

    def script(seen: Seen, number: int) -> Reply:
        if not seen.body.get("stream"):
            return Reply([json.dumps(original).encode()])
        pieces = []
        for c in choices:
            message = dict(c["message"])
            calls = message.pop("tool_calls", ())
            pieces.append(piece(c["index"], message))
            pieces += [piece(c["index"], {"tool_calls": [{"index": i, **t}]}) for i, t in enumerate(calls)]
            pieces.append(piece(c["index"], {}, c["finish_reason"]))
        head = {k: v for k, v in original.items() if k not in ("choices", "usage", "object")}
        return Reply([sse([{**p, **head} for p in [*pieces, last(USAGE)]])], content_type=SSE)

    up.script = script
    with upstream_calls(up, 1):
        for number, form in enumerate([first, *FORMS]):
            response = gw.chat(prompt, path=path, n=len(choices), **FORMS[form])
            assert outcome(response) == ("exact" if number else "miss")
            answer = answer_of(response)
            assert essence(answer) == essence(original)
            assert answer.get("usage") == (None if form == "sse" else USAGE)


# Statement 11


def reads_usage(text: str, asked: bool) -> None:
    found = chunks(text)
    empty = [c for c in found if not c["choices"]]
    if not asked:
        assert not empty
        assert "usage" not in "".join(events(text))
        return
    assert empty == found[-1:]  # directly before [DONE]
    assert empty[0]["usage"] == USAGE
    assert [c["usage"] for c in found[:-1]] == [None] * (len(found) - 1)


@MODES
@pytest.mark.parametrize("first", FORMS)
def test_statement_11_a_replay_shows_usage_only_if_asked(
    gw: Running, up: Upstream, prompt: str, path: str, first: str
) -> None:
    """Statement 11: absent or false: no `usage` key and no chunk without choices; true: one, directly before [DONE]."""
    with upstream_calls(up, 1):
        outcome(gw.chat(prompt, path=path, **FORMS[first]))
        for options in (None, {}, {"include_usage": False}, {"include_usage": True}, {"include_usage": None}):
            for _ in range(2):  # by the long way, then with the same bytes
                hit = gw.chat(prompt, path=path, stream=True, stream_options=options)
                assert outcome(hit) == "exact"
                reads_usage(hit.text, bool(options and options.get("include_usage")))


# Statement 12

INTERLEAVED = [
    piece(2, {"role": "assistant", "content": ""}),
    piece(0, {"role": "assistant", "content": None}),
    piece(0, part(0, "", id="call_a", type="function", name="f")),
    piece(1, {"role": "assistant", "content": ""}),
    piece(1, {"content": "B1 "}),
    piece(0, part(1, "", id="call_b", type="function", name="g")),
    piece(0, part(0, '{"x"')),
    piece(2, {"content": "C1 "}),
    piece(0, part(1, '{"y"')),
    piece(1, {"content": "B2"}),
    piece(0, part(1, ": 2}")),
    piece(2, {"content": "C2"}),
    piece(2, {}, "stop"),
    piece(0, part(0, ": 1}")),
    piece(1, {}, "stop"),
    piece(0, {}, "tool_calls"),
    last(USAGE),
]


@pytest.mark.parametrize("first", FORMS)
def test_statement_12_interleaved_choices_and_calls(gw: Running, up: Upstream, prompt: str, first: str) -> None:
    """Statement 12: three choices in turns, one with two parallel tool calls: the same per index on miss and hit."""
    up.script = fixed(Reply([sse([p], done=False) for p in INTERLEAVED] + [b"data: [DONE]\n\n"], content_type=SSE))
    tools, b, c = (
        {"role": "assistant", "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": '{"y": 2}'}},
        ]},
        {"role": "assistant", "content": "B1 B2"},
        {"role": "assistant", "content": "C1 C2"},
    )  # fmt: skip
    with upstream_calls(up, 1):
        for form in (first, *FORMS, *FORMS):
            found = essence(answer_of(gw.chat(prompt, n=3, **FORMS[form])))["choices"]
            assert found == [
                {"index": 0, "message": tools, "finish_reason": "tool_calls"},
                {"index": 1, "message": b, "finish_reason": "stop"},
                {"index": 2, "message": c, "finish_reason": "stop"},
            ]


# Statement 13

CITED = [{"type": "url_citation", "url_citation": {"url": "u", "novel": 1}}]
RICH = {
    "role": "assistant",
    "content": "42",
    "refusal": None,
    "reasoning_content": "six times seven",
    "annotations": CITED,
    "novel": {"deep": [1, None, "é"], "big": 12345678901234567890},
}
RICH_USAGE = {**USAGE, "prompt_tokens_details": {"cached_tokens": 3, "novel_tokens": 4}, "cost": 0.25}
BESIDE: Json = {"content_filter_results": {"hate": {"filtered": False}}}
AROUND = {"provider": "somebody", "novel_top": {"a": [1]}}


@MODES
@pytest.mark.parametrize("first", FORMS)
def test_statement_13_unknown_fields_survive_a_hit(
    gw: Running, up: Upstream, prompt: str, path: str, first: str
) -> None:
    """Statement 13: reasoning text, annotations and fields of the future, in deltas, message, choice, usage and top."""

    def script(seen: Seen, number: int) -> Reply:
        if not seen.body.get("stream"):
            whole = {"index": 0, "message": RICH, "logprobs": None, "finish_reason": "stop", **BESIDE}
            return Reply([json.dumps({**HEAD, **AROUND, "choices": [whole], "usage": RICH_USAGE}).encode()])
        pieces = [
            piece(0, {"role": "assistant", "content": "", "reasoning_content": "six "}),
            piece(0, {"reasoning_content": "times seven"}),
            piece(0, {"annotations": CITED, "novel": RICH["novel"]}),
            piece(0, {"content": "4"}),
            piece(0, {"content": "2"}),
            piece(0, {}, "stop", **BESIDE),
            last(RICH_USAGE),
        ]
        return Reply([sse([{**p, **AROUND} for p in pieces])], content_type=SSE)

    up.script = script
    with upstream_calls(up, 1):
        for number, form in enumerate([first, *FORMS, *FORMS]):
            response = gw.chat(prompt, path=path, **FORMS[form])
            assert outcome(response) == ("exact" if number else "miss")
            answer = essence(answer_of(response))
            assert answer["choices"][0]["message"] == {k: v for k, v in RICH.items() if v is not None}
            choices = [p for c in chunks(response.text) for p in c["choices"]] if form != "json" else answer["choices"]
            assert [c["content_filter_results"] for c in choices if "content_filter_results" in c] == [*BESIDE.values()]
            assert {k: answer[k] for k in AROUND} == AROUND
            if form != "sse":
                assert answer_of(response)["usage"] == RICH_USAGE


# Statement 14

# Short, so that every offset can be tried; with characters of two, three and four bytes and all three line ends.
SHORT = [piece(0, {"role": "assistant", "content": "é東\U0001f600"}), piece(0, {}, "stop")]
RAW = b": hi\r\n\r\n" + sse(SHORT[:1], done=False).replace(b"\n", b"\r\n") + b"data:" + json.dumps(SHORT[1]).encode()
RAW += b"\r\rdata: [DONE]\n\n"
EXPECTED = [*SHORT, "[DONE]"]


def heard(gw: Running, up: Upstream, pieces: list[bytes], **more: Any) -> list[Any]:
    """The events that a client gets of this stream, which is not kept."""
    up.script = fixed(Reply(pieces, content_type=SSE, pause=0.0005))
    response = gw.chat("split", stream=True, headers={"cache-control": "no-store"}, **more)
    assert response.status_code == 200, response.text
    return [e if e == "[DONE]" else json.loads(e) for e in events(response.text)]


@pytest.mark.slow
def test_statement_14_cut_in_two_at_every_offset(gw: Running, up: Upstream) -> None:
    """Statement 14: wherever the bytes are cut, in a character or between CR and LF, the events are equal."""
    for offset in range(1, len(RAW)):
        assert heard(gw, up, [RAW[:offset], RAW[offset:]]) == EXPECTED, offset


@pytest.mark.parametrize("size", [1, 2, 3])
def test_statement_14_byte_by_byte(gw: Running, up: Upstream, size: int) -> None:
    """Statement 14: the same in the smallest pieces."""
    assert heard(gw, up, [RAW[i : i + size] for i in range(0, len(RAW), size)]) == EXPECTED


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cuts=st.sets(st.integers(1, len(RAW) - 1), max_size=12))
def test_statement_14_any_cuts(gw: Running, up: Upstream, cuts: set[int]) -> None:
    """Statement 14: the same for any number of cuts anywhere."""
    ends = [0, *sorted(cuts), len(RAW)]
    pieces = [RAW[a:b] for a, b in pairwise(ends)]
    assert heard(gw, up, pieces) == EXPECTED


# Statement 15


@MODES
@pytest.mark.parametrize("form", FORMS)
def test_statement_15_the_head_and_the_ids_of_a_hit(
    gw: Running, up: Upstream, prompt: str, path: str, form: str
) -> None:
    """Statement 15: the answer's own id and time, but a new request id; the marker, the age, and [DONE] last."""
    up.script = answer_with({**chat_answer("a b"), **HEAD})
    gw.clock.frozen = 1_750_000_000.0
    miss = gw.chat(prompt, path=path, **FORMS[form])
    seen = {miss.headers["x-request-id"]}
    assert "age" not in miss.headers
    for seconds in (0, 1, 3599):  # the second and third with bytes that were seen before
        gw.clock.frozen = 1_750_000_000.0 + seconds
        hit = gw.chat(prompt, path=path, **FORMS[form])
        assert outcome(hit) == "exact"
        assert hit.headers["age"] == str(seconds)
        assert hit.headers["cache-status"].startswith("exact; hit")
        assert hit.headers["x-refrain-saved"].startswith("tokens=18;")
        assert hit.headers["cache-control"] == "private, no-store"
        assert hit.headers["x-request-id"] not in seen
        seen.add(hit.headers["x-request-id"])
        if form == "json":
            assert {k: hit.json()[k] for k in HEAD} == HEAD
        else:
            assert all({k: c[k] for k in HEAD} == HEAD for c in chunks(hit.text))
            assert hit.text.endswith("data: [DONE]\n\n")


def test_statement_15_the_providers_request_id_is_not_ours(gw: Running, up: Upstream, prompt: str) -> None:
    """Statement 15: `x-request-id` is the gateway's; the provider's has a name of its own, and a hit shows it too."""
    body = json.dumps(chat_answer("a b")).encode()
    up.script = fixed(Reply([body], headers={"x-request-id": "req_provider"}))
    for expected in ("miss", "exact", "exact"):
        response = gw.chat(prompt, path="/rr/v1")
        assert outcome(response) == expected
        assert response.headers["x-refrain-upstream-id"] == "req_provider"
        assert response.headers["x-request-id"] != "req_provider"
