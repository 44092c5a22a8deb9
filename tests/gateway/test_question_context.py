"""What has to be equal before one question's answer is thinkable for another. A wrong "equal" here would be an answer
from another conversation."""

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cache.semantic.tier import Query
from gateway.normalize import NOT_IN_KEY, NOT_IN_KEY_PREFIX, NULLABLE
from gateway.principal import Principal
from gateway.question import read_question
from tests.gateway.asking import TURNS, Json, ask, read, reason
from tests.gateway.values import json_values, some, texts


def contexts(*requests: Json) -> int:
    """How many there are."""
    return len({read(**{"content": f"Question {n}?", **request}).context for n, request in enumerate(requests)})


@some
@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
@example("Hello?", "hello?")
def test_questions_of_one_context_differ_in_what_is_asked_only(one: str, other: str) -> None:
    found = [reason(text) for text in (one, other)]
    assume(all(isinstance(each, Query) for each in found))
    a, b = (read(text) for text in (one, other))
    assert a.context == b.context
    assert (a.key == b.key) == (one == other)
    assert a.context not in (a.key, a.scope)


@pytest.mark.parametrize(
    "request_",
    [
        {"stream": True, "stream_options": {"include_usage": True}},
        {"user": "somebody", "metadata": {"a": "b"}, "prompt_cache_key": "x", "service_tier": "flex"},
        {"temperature": None, "n": 1, "logprobs": False},
        {"principal": Principal("acme", "bob", frozenset())},
        {"headers": {"user-agent": "another", "cache-control": "max-age=5"}},
        {"before": [{**TURNS[0], "content": [{"type": "text", "text": "You are kind."}]}, *TURNS[1:]]},
    ],
    ids=str,
)
def test_what_is_not_in_the_key_is_not_in_the_context(request_: Json) -> None:
    assert contexts({}, request_) == 1


@pytest.mark.parametrize(
    "request_",
    [
        {"model": "gpt-y"},
        {"temperature": 0},
        {"max_tokens": 5},
        {"response_format": {"type": "json_object"}},
        {"unheard_of": None},
        *({"endpoint": name} for name in ("other", "backed", "personal", "permitted", "tolerant")),
        {"principal": Principal("globex", "alice", frozenset({"hr"}))},
        *({"headers": {name: "1"}} for name in ("anthropic-version", "anthropic-beta", "openai-beta")),
        {"query": "api-version=2"},
        {"before": []},
        {"before": TURNS[1:]},
        {"before": [TURNS[0], TURNS[2], TURNS[1]]},
        {"before": [{**TURNS[0], "role": "developer"}, *TURNS[1:]]},
        {"before": [{**TURNS[0], "content": "You are kind"}, *TURNS[1:]]},
        {"before": [{**TURNS[0], "name": "x"}, *TURNS[1:]]},
        {"before": [*TURNS[:2], {"role": "assistant", "content": "hello!"}]},
        {"before": [*TURNS, {"role": "user", "content": ""}]},
        {"last": {"name": "alice"}},
        {"last": {"unheard_of": 1}},
    ],
    ids=str,
)
def test_whatever_else_is_another_makes_it_another_context(request_: Json) -> None:
    assert contexts({}, request_) == 2


@pytest.mark.parametrize("part", [{"language": "fr"}, {"unheard_of": None}, {"annotations": [{"start": 1}]}], ids=str)
def test_what_a_part_says_beside_its_text_makes_it_another_context(part: Json) -> None:
    """It is sent to the backend and may change the answer, so it is in the key, and what is in the key and is not asked
    is in the context."""
    plain = {"type": "text", "text": "How are you?"}
    assert ask([plain]).key != ask([{**plain, **part}]).key
    assert contexts({"content": [plain]}, {"content": [{**plain, **part}]}) == 2


@pytest.mark.parametrize(
    ("endpoint", "bob", "count"),
    [
        ("default", Principal("acme", "bob", frozenset({"eng"})), 1),
        ("permitted", Principal("acme", "bob", frozenset({"hr"})), 1),
        ("permitted", Principal("acme", "bob", frozenset({"eng"})), 2),
        ("personal", Principal("acme", "bob", frozenset({"hr"})), 2),
        ("personal", Principal("acme", "alice", frozenset({"eng"})), 2),
    ],
)
def test_only_who_may_share_answers_shares_a_context(endpoint: str, bob: Principal, count: int) -> None:
    assert contexts({"endpoint": endpoint}, {"endpoint": endpoint, "principal": bob}) == count


UNFIT = {"tools", "functions", "n", "logprobs", "top_logprobs", "model", "messages", "cache", "store"}
NAMES = texts.filter(lambda name: name not in NOT_IN_KEY | UNFIT and not name.startswith(NOT_IN_KEY_PREFIX))


@some
@given(NAMES | st.sampled_from(sorted(NULLABLE - UNFIT)), json_values(), json_values(), st.booleans())
def test_any_field_that_is_in_the_key_is_in_the_context(name: str, one: Any, other: Any, in_message: bool) -> None:
    """In the body, or in the last message."""
    made = []
    for value in (one, other):
        fields = {"last": {name: value}} if in_message else {name: value}
        assume(not in_message or name not in ("role", "content", "function_call", "tool_calls"))
        made.append(ask(**fields))
    queries = [read_question(each) for each in made]
    assert all(isinstance(each, Query) for each in queries)
    a, b = (each.context for each in queries if isinstance(each, Query))
    assert (a == b) == (made[0].key == made[1].key)
