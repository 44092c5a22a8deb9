"""What the official client sees of log probabilities and of answers that obey a schema; with the real model."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.completion_choice import Logprobs

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "SmolLM2-135M-Instruct"
CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "job": {"enum": ["baker", "pilot"]},
    },
    "required": ["name", "age", "job"],
    "additionalProperties": False,
}


@pytest.fixture
def client(engine: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def check_chat(tokens: list[ChatCompletionTokenLogprob], top: int) -> None:
    assert "".join(token.token for token in tokens) == ANSWER
    for token in tokens:
        assert token.bytes is not None
        assert bytes(token.bytes).decode() == token.token
        assert -5 < token.logprob <= 0
        assert len(token.top_logprobs) == top
        values = [other.logprob for other in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        if top:  # the answer is greedy
            assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)


@pytest.mark.parametrize("top", [0, 3])
def test_log_probabilities_of_chat(client: openai.OpenAI, top: int) -> None:
    fields: Any = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "logprobs": True, "top_logprobs": top}
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.logprobs is not None
    assert whole.logprobs.content is not None
    check_chat(whole.logprobs.content, top)
    streamed: list[ChatCompletionTokenLogprob] = []
    with client.chat.completions.create(**fields, stream=True) as stream:
        for chunk in stream:
            told = chunk.choices[0].logprobs
            streamed += (told.content or []) if told else []
    check_chat(streamed, top)
    assert [token.top_logprobs for token in streamed] == [token.top_logprobs for token in whole.logprobs.content]


def check_text(told: Logprobs, text: str, top: int) -> None:
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert told.text_offset is not None
    assert "".join(told.tokens) == text
    for token, logprob, others, offset in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset, strict=True
    ):
        assert text[offset:].startswith(token)
        assert others[token] == logprob == max(others.values())
        assert len(others) == max(top, 1)


@pytest.mark.parametrize("top", [0, 2])
def test_log_probabilities_of_completions(client: openai.OpenAI, top: int) -> None:
    fields: Any = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "logprobs": top}
    whole = client.completions.create(**fields).choices[0]
    assert whole.logprobs is not None
    check_text(whole.logprobs, whole.text, top)
    streamed: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    with client.completions.create(**fields, stream=True) as stream:
        for chunk in stream:
            assert chunk.choices[0].logprobs is not None
            for name, values in chunk.choices[0].logprobs.model_dump().items():
                streamed[name] += values
    check_text(Logprobs(**streamed), whole.text, top)


def test_an_answer_obeys_a_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Invent a person. Answer in JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        temperature=0,
        max_tokens=200,
    ).choices[0]
    assert answer.finish_reason == "stop"
    person = json.loads(answer.message.content or "")
    assert person.keys() == {"name", "age", "job"}
    assert isinstance(person["name"], str)
    assert person["age"] in range(121)
    assert person["job"] in ("baker", "pilot")


def test_sampled_answers_obey_a_schema_each(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say anything."}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        n=3,
        seed=1,
        temperature=1.5,
        max_tokens=200,
    )
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    assert {json.loads(choice.message.content or "")["job"] for choice in answer.choices} <= {"baker", "pilot"}


def test_any_json_object(client: openai.OpenAI) -> None:
    fields: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": 'Repeat this JSON: {"city": "Paris", "population": 2100000}'}],
        "response_format": {"type": "json_object"},
        "temperature": 0,
        "max_tokens": 200,
    }
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "stop"
    assert isinstance(json.loads(whole.message.content or ""), dict)
    with client.chat.completions.create(**fields, stream=True) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.message.content
