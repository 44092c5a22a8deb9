"""Streamed and plain requests share entries: whoever asks first, and in whichever form, both get the same answer."""

import json
import time
from typing import Any

import httpx
import pytest

from tests.support.gateway import ALICE, Running
from tests.support.traffic import accumulated, chunks, essence, events, fixed, outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Upstream, answer_with, chat_answer, chat_chunks, sse

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
SSE = "text/event-stream"


def message(**changes: Any) -> Json:
    return {"role": "assistant", "content": None, "refusal": None, **changes}


def choice(index: int = 0, finish: str = "stop", logprobs: Any = None, **more: Any) -> Json:
    return {"index": index, "message": message(**more), "logprobs": logprobs, "finish_reason": finish}


def call(number: int, arguments: str) -> Json:
    return {"id": f"call_{number}", "type": "function", "function": {"name": f"f{number}", "arguments": arguments}}


TOKENS = {
    "content": [
        {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []},
        {"token": "é", "logprob": -1, "bytes": None, "top_logprobs": []},
    ],
    "refusal": None,
}
ANSWERS: dict[str, list[Json]] = {
    "text": [choice(content="Grüße,  東京 \U0001f600\n\n\tend ")],
    "long text": [choice(content="word " * 500)],
    "quotes and controls": [choice(content='"\\\u2028\x00\r\n</script> data: [DONE]\n\n')],
    "one tool call": [choice(finish="tool_calls", tool_calls=[call(1, '{"a": [1, 2], "b": "é"}')])],
    "parallel tool calls": [choice(finish="tool_calls", tool_calls=[call(1, "{}"), call(2, '{"x": 1}'), call(3, "")])],
    "text and a tool call": [choice(finish="tool_calls", content="Let me look.", tool_calls=[call(1, "{}")])],
    "two choices": [choice(0, content="one"), choice(1, content="two")],
    "three, one with tools": [
        choice(0, content="a"),
        choice(1, "tool_calls", tool_calls=[call(1, "{}")]),
        choice(2, content="c"),
    ],
    "refusal": [choice(refusal="I will not.")],
    "unknown fields": [choice(content="text", novel={"deep": [1, None, "é"]}, mood="good")],
    "reasoning": [choice(content="42", reasoning_content="six times seven", reasoning="short")],
    "annotations": [choice(content="see", annotations=[{"type": "url_citation", "url": "x"}])],
    "logprobs": [choice(content="aé", logprobs=TOKENS)],
}  # fmt: skip


def streamed(answer: Json, *, include_usage: bool) -> list[Json]:
    """chat_chunks, and all that a message may carry besides."""
    out = chat_chunks(answer, include_usage=include_usage)
    for c in answer["choices"]:
        mine = [p["choices"][0] for p in out if p["choices"] and p["choices"][0]["index"] == c["index"]]
        known = {"role", "content", "tool_calls", "refusal"}
        mine[0]["delta"] |= {k: v for k, v in c["message"].items() if k not in known}
        if c["message"]["content"] is None:
            mine[0]["delta"]["content"] = None
        if c["message"]["refusal"]:
            mine[0]["delta"]["refusal"] = c["message"]["refusal"]
        if c["logprobs"]:
            mine[-2]["logprobs"] = c["logprobs"]
    return [{**piece, **{k: v for k, v in answer.items() if k in ("service_tier", "novel_top")}} for piece in out]


def speaking(up: Upstream, answer: Json) -> None:
    def script(seen: Any, number: int) -> Reply:
        if not seen.body.get("stream"):
            return Reply([json.dumps(answer).encode()])
        wanted = bool((seen.body.get("stream_options") or {}).get("include_usage"))
        return Reply([sse(streamed(answer, include_usage=wanted))], content_type=SSE)

    up.script = script


@MODES
@pytest.mark.parametrize("first", [False, True], ids=["plain first", "streamed first"])
@pytest.mark.parametrize("choices", ANSWERS.values(), ids=ANSWERS)
def test_both_forms_give_the_same_answer(
    gw: Running, up: Upstream, prompt: str, path: str, first: bool, choices: list[Json]
) -> None:
    """Content, tool calls, finish reasons, usage, unknown fields: equal after accumulation, on a miss and on hits."""
    original = chat_answer("", choices=choices, service_tier="default", novel_top={"a": 1})
    speaking(up, original)
    n = len(choices)
    with upstream_calls(up, 1):
        for number, stream in enumerate((first, not first, first, not first)):
            options = {"stream_options": {"include_usage": True}} if stream else {}
            response = gw.chat(prompt, path=path, stream=stream, n=n, **options)
            assert outcome(response) == ("exact" if number else "miss")
            answer = accumulated(response.text) if stream else response.json()
            assert essence(answer) == essence(original)
            assert answer["usage"] == original["usage"]
            assert [c["index"] for c in answer["choices"]] == list(range(n))


def reads_usage(text: str, asked: bool) -> None:
    found = chunks(text)
    empty = [c for c in found if not c["choices"]]
    if not asked:
        assert not empty
        assert not [c for c in found if "usage" in c]
        return
    assert empty == found[-1:]
    assert empty[0]["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    assert all(c["usage"] is None for c in found[:-1])


@MODES
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}], ids=str)
def test_usage_is_streamed_only_if_asked_for(
    gw: Running, up: Upstream, prompt: str, path: str, options: Json | None
) -> None:
    """On the miss that led to the entry and on a hit of it, whatever the first client asked."""
    asked = bool(options and options.get("include_usage"))
    with upstream_calls(up, 1):
        for wanted in (options, options, {"include_usage": not asked}, options):
            response = gw.chat(prompt, path=path, stream=True, stream_options=wanted)
            reads_usage(response.text, bool(wanted and wanted.get("include_usage")))


@MODES
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_an_upstream_without_usage(gw: Running, up: Upstream, prompt: str, path: str, stream: bool) -> None:
    """Nothing is invented, and nothing fails."""
    answer = {k: v for k, v in chat_answer("no usage").items() if k != "usage"}

    def script(seen: Any, number: int) -> Reply:
        if not seen.body.get("stream"):
            return Reply([json.dumps(answer).encode()])
        return Reply([sse(chat_chunks(answer, include_usage=False))], content_type=SSE)

    up.script = script
    with upstream_calls(up, 1):
        for _ in range(3):
            assert text_of(gw.chat(prompt, path=path, stream=stream)) == "no usage"
    assert "usage" not in gw.chat(prompt, path=path).json()


@MODES
def test_plain_answers_are_byte_equal(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Miss, hit and byte-identical hit give the same bytes."""
    with upstream_calls(up, 1):
        answers = [gw.chat(prompt, path=path, user=user) for user in ("a", "b", "b", "a")]
    assert len({a.content for a in answers}) == 1


def test_a_plain_answer_is_the_upstreams_own_bytes(gw: Running, up: Upstream, prompt: str) -> None:
    """request_response: spacing, order, number spelling and all."""
    body = json.dumps(chat_answer("text"), indent=3).replace("18", "18.0").encode() + b"\n "
    up.script = fixed(Reply([body[:40], body[40:]]))
    with upstream_calls(up, 1):
        for user in ("a", "b", "b"):
            assert gw.chat(prompt, path="/rr/v1", user=user).content == body


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_streamed_hits_are_byte_equal(gw: Running, prompt: str, stream: bool) -> None:
    gw.chat(prompt, stream=stream)
    hits = [gw.chat(prompt, stream=True, user=user) for user in ("a", "b", "b", "a")]
    assert {outcome(h) for h in hits} == {"exact"}
    assert len({h.content for h in hits}) == 1


def test_a_stream_endpoint_hands_on_what_has_come(gw: Running, up: Upstream, prompt: str) -> None:
    """The first words are with the client long before the last ones are made, and in the upstream's own chunks."""
    original = chat_chunks(chat_answer("one two three four five"), include_usage=True)
    up.script = fixed(
        Reply([sse([c], done=False) for c in original] + [b"data: [DONE]\n\n"], content_type=SSE, pause=0.1)
    )
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}], "stream": True}
    begun = time.monotonic()
    with gw.client.stream("POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {ALICE}"}) as r:
        pieces = [(time.monotonic() - begun, piece) for piece in r.iter_text()]
    assert pieces[0][0] < pieces[-1][0] / 2
    assert len(pieces) > 4
    found = [json.loads(e) for e in events("".join(p for _, p in pieces))[:-1]]
    assert found == [{k: v for k, v in c.items() if k != "usage"} for c in original if c["choices"]]


FRAMINGS = {
    "CRLF": lambda raw: raw.replace(b"\n", b"\r\n"),
    "CR": lambda raw: raw.replace(b"\n", b"\r"),
    "no space": lambda raw: raw.replace(b"data: ", b"data:"),
    "comments": lambda raw: b": hello\n\n" + raw.replace(b"data: ", b": keep-alive\n\ndata: ", 3),
    "other fields": lambda raw: raw.replace(b"data: ", b"event: message\nid: 7\nretry: 10\ndata: "),
    "no end of the last event": lambda raw: raw.removesuffix(b"\n\n"),
    "data in two lines": lambda raw: raw.replace(b', "choices"', b',\ndata: "choices"'),
}


@pytest.mark.parametrize("split", [1, 7, 1000])
@pytest.mark.parametrize("reframe", FRAMINGS.values(), ids=FRAMINGS)
def test_any_legal_framing_of_the_upstreams_stream(
    gw: Running, up: Upstream, prompt: str, reframe: Any, split: int
) -> None:
    """Whatever line ends, comments and cuts the upstream uses, even inside a character, the client reads events."""
    raw = reframe(sse(chat_chunks(chat_answer("Grüße 東京 end"), include_usage=True)))
    pieces = [raw[i : i + split] for i in range(0, len(raw), split)]
    up.script = fixed(Reply(pieces, content_type=SSE))
    options = {"include_usage": True}
    with upstream_calls(up, 1):
        for _ in range(2):
            response = gw.chat(prompt, stream=True, stream_options=options)
            assert text_of(response) == "Grüße 東京 end"
            reads_usage(response.text, True)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_interleaved_choices_and_fragments_of_arguments(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    """Choices in any order, two tool calls in turns: put together by index."""

    def piece(index: int, delta: Json, finish: str | None = None) -> Json:
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "test-model"}
        return {**head, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]}

    def part(call_index: int, arguments: str, **more: Any) -> Json:
        name = more.pop("name", None)
        function = {"arguments": arguments, **({"name": name} if name else {})}
        return {"tool_calls": [{"index": call_index, **more, "function": function}]}

    up.script = fixed(
        Reply(
            [
                sse(
                    [
                        piece(1, {"role": "assistant", "content": ""}),
                        piece(0, {"role": "assistant", "content": None}),
                        piece(0, part(0, "", id="call_a", type="function", name="f")),
                        piece(1, {"content": "B1"}),
                        piece(0, part(1, "", id="call_b", type="function", name="g")),
                        piece(0, part(0, '{"x"')),
                        piece(0, part(1, '{"y"')),
                        piece(1, {"content": "B2"}),
                        piece(0, part(1, ": 2}")),
                        piece(0, part(0, ": 1}")),
                        piece(1, {}, "stop"),
                        piece(0, {}, "tool_calls"),
                    ]
                )
            ],
            content_type=SSE,
        )
    )
    with upstream_calls(up, 1):
        for form in (stream, not stream, stream):
            response = gw.chat(prompt, n=2, stream=form)
            first, second = (accumulated(response.text) if form else response.json())["choices"]
            assert second["message"]["content"] == "B1B2"
            assert [(c["id"], c["function"]) for c in first["message"]["tool_calls"]] == [
                ("call_a", {"name": "f", "arguments": '{"x": 1}'}),
                ("call_b", {"name": "g", "arguments": '{"y": 2}'}),
            ]
            assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")


def test_a_replayed_stream_has_the_shape_of_a_stream(gw: Running, up: Upstream, prompt: str) -> None:
    """For each choice first a role, at the end an empty delta with the finish_reason; one id and time throughout."""
    up.script = answer_with(chat_answer("", choices=[choice(0, content="a b"), choice(1, content="c d")]))
    gw.chat(prompt, n=2, path="/rr/v1")
    found = chunks(gw.chat(prompt, n=2, path="/rr/v1", stream=True).text)
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in found} == {
        ("chatcmpl-1", 1_700_000_000, "test-model", "chat.completion.chunk")
    }
    for index in (0, 1):
        mine = [p for c in found for p in c["choices"] if p["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert all("role" not in p["delta"] for p in mine[1:])
        assert [p["finish_reason"] for p in mine[:-1]] == [None] * (len(mine) - 1)
        assert (mine[-1]["delta"], mine[-1]["finish_reason"]) == ({}, "stop")


def test_obfuscation_is_not_kept(gw: Running, up: Upstream, prompt: str) -> None:
    """Random padding against traffic analysis is no part of an answer."""
    padded = [{**c, "obfuscation": "x7Fq"} for c in chat_chunks(chat_answer("a b"), include_usage=True)]
    up.script = fixed(Reply([sse(padded)], content_type=SSE))
    gw.chat(prompt, stream=True)
    for stream in (True, False):
        hit: httpx.Response = gw.chat(prompt, stream=stream)
        assert outcome(hit) == "exact"
        assert "x7Fq" not in hit.text
