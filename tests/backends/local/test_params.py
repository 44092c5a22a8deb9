"""What the engine accepts, and what it refuses by name."""

import json
from typing import Any

import pytest

from backends.local.errors import RequestError
from backends.local.limits import check_length, max_tokens
from backends.local.params import Options, parse_chat, parse_text
from backends.local.work import Sampling

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> Any:
    return parse_chat({"model": "any", "messages": HELLO} | fields)


def test_defaults() -> None:
    options = chat().options
    assert options == Options(
        model="any",
        sampling=Sampling(),
        n=1,
        max_tokens=None,
        stops=(),
        ignore_eos=False,
        schema=None,
        stream=False,
        include_usage=False,
    )


def test_everything_that_is_honoured() -> None:
    options = chat(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-3,
        presence_penalty=-2,
        frequency_penalty=1.5,
        logit_bias={"5": -100, "17": 0.5},
        logprobs=True,
        top_logprobs=20,
        n=2,
        max_completion_tokens=7,
        stop=["a", "b"],
        ignore_eos=True,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
    ).options
    assert options == Options(
        model="any",
        sampling=Sampling(
            temperature=0.0,
            top_p=0.5,
            top_k=40,
            min_p=0.1,
            seed=-3,
            presence_penalty=-2.0,
            frequency_penalty=1.5,
            logit_bias=((5, -100.0), (17, 0.5)),
            logprobs=20,
        ),
        n=2,
        max_tokens=7,
        stops=("a", "b"),
        ignore_eos=True,
        schema=None,
        stream=True,
        include_usage=True,
    )


def test_a_schema_is_handed_on_as_text() -> None:
    schema = {"type": "object", "properties": {"ä": {"type": "integer"}}}
    asked = {"type": "json_schema", "json_schema": {"name": "an-answer_1", "schema": schema, "strict": True}}
    text = chat(response_format=asked).options.schema
    assert json.loads(text) == schema
    assert parse_text({"prompt": "a", "response_format": asked}).options.schema == text


@pytest.mark.parametrize(
    ("fields", "count"),
    [({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3), ({"top_logprobs": 0}, None), ({}, None)],
)
def test_log_probabilities_of_chat(fields: dict[str, Any], count: int | None) -> None:
    assert chat(**fields).options.sampling.logprobs == count


@pytest.mark.parametrize(("logprobs", "count"), [(0, 0), (5, 5), (None, None), (False, None)])
def test_log_probabilities_of_completions(logprobs: object, count: int | None) -> None:
    assert parse_text({"prompt": "a", "logprobs": logprobs}).options.sampling.logprobs == count


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
        ({"repetition_penalty": 1.1}, "repetition_penalty", "unsupported_parameter"),
        ({"guided_json": {"type": "object"}}, "guided_json", "unsupported_parameter"),
        ({"stop_token_ids": [5]}, "stop_token_ids", "unsupported_parameter"),
        ({"min_tokens": 5}, "min_tokens", "unsupported_parameter"),
        ({"continue_final_message": True}, "continue_final_message", "unsupported_parameter"),
        ({"ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos", "invalid_value"),
        ({"stop": "x" * 1001}, "stop", "invalid_value"),
        ({"model": 5}, "model", "invalid_type"),
        ({"logprobs": 0}, "logprobs", "invalid_type"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logit_bias": [5]}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"five": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-5": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": "1"}}, "logit_bias", "invalid_type"),
        ({"logit_bias": {str(token): 1 for token in range(301)}}, "logit_bias", "invalid_value"),
        ({"presence_penalty": 2.1}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
        ({"frequency_penalty": False}, "frequency_penalty", "invalid_type"),
        ({"min_p": 1.1}, "min_p", "invalid_value"),
        ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
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


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        ("json_object", "", "invalid_type"),
        ({}, ".type", "missing_required_parameter"),
        ({"type": "xml"}, ".type", "invalid_value"),
        ({"type": ["text"]}, ".type", "invalid_value"),
        ({"type": "json_schema"}, ".json_schema", "missing_required_parameter"),
        ({"type": "json_schema", "json_schema": []}, ".json_schema", "invalid_type"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, ".json_schema.name", "missing_required_parameter"),
        ({"type": "json_schema", "json_schema": {"name": 5}}, ".json_schema.name", "invalid_type"),
        ({"type": "json_schema", "json_schema": {"name": "a b"}}, ".json_schema.name", "invalid_value"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, ".json_schema.schema", "missing_required_parameter"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": "{}"}}, ".json_schema.schema", "invalid_type"),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": "yes"}},
            ".json_schema.strict",
            "invalid_type",
        ),
    ],
)
def test_a_response_format_that_is_no_format(value: object, param: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(response_format=value)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, f"response_format{param}", code)


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
        ({"prompt": "a", "logprobs": 6}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "top_logprobs": 1}, "top_logprobs"),
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
@pytest.mark.parametrize(("context", "memory"), [(100, 1000), (1000, 100), (100, 100)])
def test_length_that_fits(prompt: int, asked: int | None, allowed: int, context: int, memory: int) -> None:
    found = max_tokens(prompt=prompt, asked=asked, context=context, memory=memory, default=50, param="messages")
    assert found == allowed


@pytest.mark.parametrize(
    ("prompt", "asked", "numbers"), [(100, None, ["100 tokens"]), (101, 1, ["101"]), (99, 2, ["101", "99", "2"])]
)
@pytest.mark.parametrize("memory", [100, 1000])
def test_length_that_does_not_fit(prompt: int, asked: int | None, numbers: list[str], memory: int) -> None:
    with pytest.raises(RequestError) as caught:
        max_tokens(prompt=prompt, asked=asked, context=100, memory=memory, default=50, param="messages")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert all(number in caught.value.message for number in ["maximum context length is 100", *numbers])
    assert "memory" not in caught.value.message


def test_a_length_for_which_there_is_no_memory() -> None:
    with pytest.raises(RequestError) as caught:
        max_tokens(prompt=10, asked=95, context=8192, memory=100, default=50, param="prompt")
    assert caught.value.code == "context_length_exceeded"
    assert all(number in caught.value.message for number in ["100", "8192", "105", "10", "95", "memory"])


@pytest.mark.parametrize(("context", "memory"), [(100, 1000), (1000, 100)])
def test_a_text_that_cannot_fit_is_refused_before_it_is_read(context: int, memory: int) -> None:
    """A token has ten characters at most: 999 may be a hundred tokens less one, a thousand cannot."""
    check_length(999, longest=10, context=context, memory=memory, param="messages")
    with pytest.raises(RequestError) as caught:
        check_length(1000, longest=10, context=context, memory=memory, param="messages")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert "at least 100 tokens" in caught.value.message
