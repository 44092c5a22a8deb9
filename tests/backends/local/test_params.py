"""What the engine accepts, and what it refuses by name."""

from typing import Any

import pytest

from backends.local.errors import RequestError
from backends.local.limits import max_tokens
from backends.local.params import parse_chat, parse_text
from backends.local.work import Sampling

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> Any:
    return parse_chat({"model": "any", "messages": HELLO} | fields)


def test_defaults() -> None:
    options = chat().options
    assert options.sampling == Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=None)
    assert (options.n, options.max_tokens, options.stops, options.stream, options.include_usage) == (
        1,
        None,
        (),
        False,
        False,
    )


def test_everything_that_is_honoured() -> None:
    options = chat(
        temperature=0,
        top_p=0.5,
        top_k=40,
        seed=-3,
        n=2,
        max_completion_tokens=7,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
    ).options
    assert options.sampling == Sampling(temperature=0.0, top_p=0.5, top_k=40, seed=-3)
    assert (options.n, options.max_tokens, options.stops, options.stream, options.include_usage) == (
        2,
        7,
        ("a", "b"),
        True,
        True,
    )


def test_messages() -> None:
    parsed = chat(
        messages=[
            {"role": "developer", "content": "Be brief.", "name": "boss"},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
            {"role": "user", "content": ""},
        ]
    )
    assert list(parsed.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "auto", "functions": None, "parallel_tool_calls": True},
        {"response_format": {"type": "text"}, "logprobs": False, "top_logprobs": 0, "logit_bias": {}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_p": 0},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "s"},
        {"prompt_cache_key": "k", "reasoning_effort": "low", "verbosity": "low", "modalities": ["text"], "audio": None},
        {"temperature": None, "top_p": None, "n": None, "stop": None, "seed": None, "stream": None, "max_tokens": None},
        {"max_tokens": 5, "max_completion_tokens": 5, "top_k": -1},
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    plain = chat(max_tokens=5) if fields.get("max_tokens") else chat()
    assert chat(**fields) == plain


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
        ({"functions": [{}]}, "functions", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter"),
        ({"logprobs": 0}, "logprobs", "unsupported_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "unsupported_parameter"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        ({"presence_penalty": 0.1}, "presence_penalty", "unsupported_parameter"),
        ({"frequency_penalty": -1}, "frequency_penalty", "unsupported_parameter"),
        ({"frequency_penalty": False}, "frequency_penalty", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
        ({"audio": {"voice": "alloy"}}, "audio", "unsupported_parameter"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": "Hello"}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": ["Hello"]}, "messages[0]", "invalid_type"),
        ({"messages": [*HELLO, {"content": "x"}]}, "messages[1].role", "missing_required_parameter"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role", "invalid_type"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "unsupported_parameter"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "invalid_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]},
            "messages[0].content[1].type",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "unsupported_parameter",
        ),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 1.5}, "top_p", "invalid_value"),
        ({"top_k": 0.5}, "top_k", "invalid_type"),
        ({"seed": 1.5}, "seed", "invalid_type"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": "10"}, "max_tokens", "invalid_type"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": ["a", 5]}, "stop", "invalid_type"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    error = caught.value
    assert (error.status, error.param, error.code) == (400, param, code)
    assert error.envelope()["error"]["type"] == "invalid_request_error"
    assert param in error.message


@pytest.mark.parametrize("body", [None, [], "text", 5])
def test_a_body_that_is_no_object(body: object) -> None:
    with pytest.raises(RequestError, match="must be a JSON object"):
        parse_chat(body)


@pytest.mark.parametrize("prompt", ["Hello", ["Hello"]])
def test_text_prompt(prompt: object) -> None:
    assert parse_text({"prompt": prompt, "echo": False, "best_of": 1, "suffix": ""}).prompt == "Hello"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "logprobs": 0}, "logprobs"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
def test_text_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_text(fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "asked", "allowed"), [(10, None, 50), (10, 90, 90), (10, 5, 5), (95, None, 5), (99, None, 1), (99, 1, 1)]
)
def test_length_that_fits(prompt: int, asked: int | None, allowed: int) -> None:
    assert max_tokens(prompt=prompt, asked=asked, context=100, default=50, param="messages") == allowed


@pytest.mark.parametrize(
    ("prompt", "asked", "numbers"), [(100, None, ["100 tokens"]), (101, 1, ["101"]), (99, 2, ["101", "99", "2"])]
)
def test_length_that_does_not_fit(prompt: int, asked: int | None, numbers: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        max_tokens(prompt=prompt, asked=asked, context=100, default=50, param="messages")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert all(number in caught.value.message for number in ["maximum context length is 100", *numbers])
