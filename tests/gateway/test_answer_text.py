"""What a stored answer says, for comparing. What is no plain answer says nothing, and is learnt by nobody."""

import json
from typing import Any

import pytest
from hypothesis import given

from gateway.answer_text import answer_text
from tests.contract.stores import make_entry
from tests.gateway.values import json_values, some
from tests.support.upstream import chat_answer, text_answer


def said(body: Any) -> str | None:
    return answer_text(make_entry(body=body if isinstance(body, bytes) else json.dumps(body).encode()))


def choice(*, end: str | None = "stop", **message: Any) -> dict[str, Any]:
    return chat_answer("", choices=[{"index": 0, "finish_reason": end, "message": {"content": "Hello!", **message}}])


@pytest.mark.parametrize("text", ["Hello!", "¡Hola! ☃ 😀", " \n", "x" * 100_000, '{"json": true}'])
def test_a_plain_answer_says_its_text(text: str) -> None:
    assert said(chat_answer(text)) == text


def test_what_else_an_answer_has_does_not_matter() -> None:
    assert said(choice(refusal=None, tool_calls=None, function_call=None, annotations=[], audio=None, x=1)) == "Hello!"
    assert said(choice(tool_calls=[], refusal="")) == "Hello!"


@pytest.mark.parametrize(
    "body",
    [
        choice(end="length"),
        choice(end="content_filter"),
        choice(end="tool_calls"),
        choice(end=None),
        choice(tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]),
        choice(function_call={"name": "f", "arguments": "{}"}),
        choice(refusal="I cannot."),
        choice(content=None),
        choice(content=""),
        choice(content=5),
        choice(content=[{"type": "text", "text": "Hello!"}]),
        chat_answer("", choices=[]),
        chat_answer("", choices=None),
        chat_answer("Hello!", choices=chat_answer("Hello!")["choices"] * 2),
        text_answer("Hello!"),
        {},
        [],
        None,
        b"",
        b"not JSON",
        b'{"choices": [{"finish_reason": "stop", "message": {"content": "\xff"}}]}',
    ],
    ids=str,
)
def test_what_is_no_plain_answer_says_nothing(body: Any) -> None:
    assert said(body) is None


@pytest.mark.parametrize("field", ["tool_calls", "unheard_of"])
def test_a_deep_answer_says_nothing(field: str) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    message = b'{"content": "Hello!", "' + field.encode() + b'": ' + deep + b"}"
    assert said(b'{"choices": [{"finish_reason": "stop", "message": ' + message + b"}]}") is None


@some
@given(json_values())
def test_whatever_it_is_there_is_an_answer(value: Any) -> None:
    for body in (value, {"choices": value}, {"choices": [value]}, choice(content=value), choice(tool_calls=value)):
        assert said(body) is None or isinstance(said(body), str)
