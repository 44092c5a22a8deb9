"""Answers as upstreams give them, made up."""

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
odd_texts = st.text(' \n\r\t"\\é😀ab\u2028\x00', max_size=30)
long_texts = st.builds(
    lambda word, times: word * times, st.sampled_from(["word ", "x", "é\n", "😀"]), st.integers(30, 99)
)
texts = st.text(max_size=12) | odd_texts | long_texts
some_texts = texts.filter(bool)
entries = [{"index": 0, "type": "t", "x": "y"}]
values = st.sampled_from([True, 7, -2.5, 1e300, 2**70, "x", "", [1, "a"], [], {}, {"a": {"b": [None, 1]}}, entries])
call = st.builds(
    lambda id_, function: {"id": id_, "type": "function", "function": function},
    st.text("abc123", min_size=1, max_size=6),
    st.builds(lambda name, arguments: {"name": name, "arguments": arguments}, st.sampled_from(["f", "get_x"]), texts),
)
calls = st.lists(call, min_size=1, max_size=3, unique_by=lambda call: call["id"])
token: st.SearchStrategy[Json] = st.builds(
    lambda token, logprob: {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []},
    st.text(max_size=3),
    numbers,
)
tokens = st.none() | st.lists(token, min_size=1, max_size=4)
logprobs = st.none() | st.builds(lambda content, refusal: {"content": content, "refusal": refusal}, tokens, tokens)
usages = st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 99), "completion_tokens": st.integers(0, 99), "total_tokens": st.integers(0, 198)},
    optional={"prompt_tokens_details": st.just({"cached_tokens": 3, "audio_tokens": 0})},
)


@st.composite
def messages(draw: st.DrawFn) -> Json:
    message: Json = {
        "role": "assistant",
        "content": draw(st.none() | texts),
        "refusal": draw(st.none() | st.none() | some_texts),
        **draw(st.fixed_dictionaries({}, optional={"reasoning_content": texts, "x_message": values})),
    }
    match draw(st.sampled_from(["plain", "plain", "calls", "legacy call"])):
        case "calls":
            message["tool_calls"] = draw(calls)
            message["content"] = message["content"] or None  # "" and null mean the same beside tool calls
        case "legacy call":
            message["function_call"] = {"name": "f", "arguments": draw(texts)}
    return message


@st.composite
def chat_answers(draw: st.DrawFn) -> Json:
    choices = [
        {
            "index": index,
            "message": draw(messages()),
            "logprobs": draw(logprobs),
            "finish_reason": draw(st.sampled_from(["stop", "tool_calls", "length"])),
            **draw(st.fixed_dictionaries({}, optional={"x_choice": values})),
        }
        for index in range(draw(st.integers(1, 3)))
    ]
    return {**draw(heads("chat.completion")), "choices": choices}


@st.composite
def text_answers(draw: st.DrawFn) -> Json:
    choices: list[Json] = [
        {
            "index": index,
            "text": draw(texts),
            "logprobs": draw(st.none() | st.just({"tokens": ["a", "b"], "top_logprobs": [{"index": -1}, {"b": -2.5}]})),
            "finish_reason": "stop",
            **draw(st.fixed_dictionaries({}, optional={"x_choice": values})),
        }
        for index in range(draw(st.integers(1, 3)))
    ]
    return {**draw(heads("text_completion")), "choices": choices}


def heads(kind: str) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {
            "id": st.text("abc-", min_size=1, max_size=9),
            "object": st.just(kind),
            "created": st.integers(1, 2**40),
            "model": st.text(min_size=1, max_size=9),
        },
        optional={
            "usage": usages,
            "service_tier": st.none() | st.just("default"),
            "system_fingerprint": st.none() | st.text(max_size=5),
            "x_top": values,
        },
    )
