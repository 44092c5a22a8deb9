"""Answers as upstreams give them, made up; and how a client puts a stream together."""

import json
from typing import Any

from hypothesis import strategies as st

from gateway.wire.sse import EventParser
from tests.gateway.values import json_values

Json = dict[str, Any]

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
extras = st.dictionaries(
    st.sampled_from(["reasoning_content", "annotations", "x_extra", "provider_specific", "audio"]),
    json_values(st.booleans() | numbers | st.text(max_size=8), max_leaves=3),
    max_size=1,
)
contents = st.none() | st.text(max_size=12) | st.text(" \n\r\té😀abc\u2028", min_size=1, max_size=200)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.text("abc123", min_size=1, max_size=6),
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": st.text("fgh", min_size=1, max_size=4), "arguments": st.text(max_size=20)}
            ),
        }
    ),
    min_size=1,
    max_size=3,
)
token: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {"token": st.text(max_size=3), "logprob": numbers, "bytes": st.none(), "top_logprobs": st.just([])}
)
logprobs = st.none() | st.fixed_dictionaries(
    {"content": st.lists(token, min_size=1, max_size=3), "refusal": st.none() | st.lists(token, min_size=1, max_size=2)}
)
usages = st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 99), "completion_tokens": st.integers(0, 99), "total_tokens": st.integers(0, 198)},
    optional={"prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": st.integers(0, 9)})},
)


@st.composite
def messages(draw: st.DrawFn) -> Json:
    message: Json = {
        "role": "assistant",
        "content": draw(contents),
        "refusal": draw(st.none() | st.text(min_size=1, max_size=9)),
    }
    if draw(st.booleans()):
        message["tool_calls"] = draw(calls)
        message["content"] = message["content"] or None  # "" and null mean the same beside tool calls
    return {**message, **draw(extras)}


@st.composite
def chat_answers(draw: st.DrawFn) -> Json:
    choices = [
        {
            "index": index,
            "message": draw(messages()),
            "logprobs": draw(logprobs),
            "finish_reason": draw(st.sampled_from(["stop", "tool_calls", "length"])),
            **draw(
                st.dictionaries(st.sampled_from(["content_filter_results", "x_choice"]), st.integers(0, 9), max_size=1)
            ),
        }
        for index in range(draw(st.integers(1, 3)))
    ]
    return {**draw(heads("chat.completion")), "choices": choices}


@st.composite
def text_answers(draw: st.DrawFn) -> Json:
    choices: list[Json] = [
        {
            "index": index,
            "text": draw(contents) or "",
            "logprobs": draw(st.none() | st.just({"tokens": ["a"]})),
            "finish_reason": "stop",
        }
        for index in range(draw(st.integers(1, 3)))
    ]
    return {**draw(heads("text_completion")), "choices": choices}


def heads(kind: str) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {
            "id": st.text("abc-", min_size=1, max_size=9),
            "object": st.just(kind),
            "created": st.integers(0, 2**40),
            "model": st.text(max_size=9),
        },
        optional={
            "usage": usages,
            "service_tier": st.none() | st.just("default"),
            "system_fingerprint": st.none() | st.text(max_size=5),
            "x_top": json_values(numbers | st.text(max_size=5), max_leaves=4),
        },
    )


def events(raw: bytes) -> list[Json]:
    """The chunks of a whole SSE body, which must end with [DONE]."""
    parser = EventParser()
    datas = parser.feed(raw)
    assert parser.finish() == []
    assert datas[-1] == b"[DONE]"
    assert datas.count(b"[DONE]") == 1
    return [json.loads(data) for data in datas[:-1]]
