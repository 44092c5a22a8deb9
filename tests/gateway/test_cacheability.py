"""What may pass by a cache, and what may be kept. A wrong "yes" here is a wrong answer for somebody."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.cacheability import answer_reason, asked_choices, request_reason, wants_its_own, well_formed
from tests.gateway.values import json_values, some, texts
from tests.support.upstream import chat_answer, text_answer

Json = dict[str, Any]
FUNCTION = {"type": "function", "function": {"name": "f"}}


def reason(sampled: Any = "reuse", **fields: Any) -> str | None:
    return request_reason({"model": "m", "messages": [], **fields}, sampled=sampled)


# Requests


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"store": False},
        {"store": None},
        {"background": False},
        {"conversation": None},
        {"previous_response_id": None},
        {"web_search_options": None},
        {"tools": None},
        {"tools": []},
        {"tools": [FUNCTION, {"type": "custom", "custom": {"name": "c"}}, {"function": {"name": "old style"}}]},
        {"modalities": ["text"]},
        {"modalities": None, "audio": None},
        {"temperature": 2, "seed": None},
    ],
)
def test_ordinary_requests_may_use_the_cache(fields: Json) -> None:
    assert reason(**fields) is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"store": True}, "store_requested"),
        ({"previous_response_id": "resp_1"}, "stateful"),
        ({"conversation": {"id": "conv_1"}}, "stateful"),
        ({"background": True}, "stateful"),
        ({"web_search_options": {}}, "hosted_tool"),
        ({"tools": [{"type": "web_search"}]}, "hosted_tool"),
        ({"tools": [FUNCTION, {"type": "file_search", "vector_store_ids": []}]}, "hosted_tool"),
        ({"tools": [{"type": "mcp"}]}, "hosted_tool"),
        ({"tools": [{"type": "Function"}]}, "hosted_tool"),
        ({"tools": [{"type": None}]}, "hosted_tool"),
        ({"tools": ["web_search"]}, "hosted_tool"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "audio"),
    ],
)
def test_requests_with_effects_or_state_at_the_provider_pass_by(fields: Json, why: str) -> None:
    assert reason(**fields) == why
    assert reason(sampled="bypass", temperature=0, **fields) == why


@pytest.mark.parametrize("temperature", [0, Decimal("0.0"), Decimal("-0.0"), Decimal("0E+3")])
def test_only_an_explicit_zero_is_deterministic(temperature: Any) -> None:
    assert reason(sampled="bypass", temperature=temperature) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seed": 1},
        {"temperature": None},
        {"temperature": 1},
        {"temperature": Decimal("1e-400")},
        {"temperature": "0"},
        {"temperature": False},
        {"temperature": []},
        {"top_p": 0},
    ],
)
def test_sampled_requests_pass_by_where_the_policy_says_so(fields: Json) -> None:
    assert reason(sampled="bypass", **fields) == "sampled"
    assert reason(sampled="reuse", **fields) is None


FIELDS = ["store", "tools", "modalities", "audio", "temperature", "web_search_options", "background", "conversation"]


@some
@given(st.dictionaries(st.sampled_from(FIELDS), json_values()), st.sampled_from(["reuse", "bypass"]))
@example({"modalities": 5}, "reuse")
def test_every_request_gets_a_decision(body: Json, sampled: Any) -> None:
    """Whatever a client writes into these fields: judging it is the backend's part, failing on it nobody's."""
    assert isinstance(request_reason(body, sampled=sampled), str | None)


@pytest.mark.parametrize(
    ("n", "asked"), [(3, 3), (1, 1), (None, 1), (0, 1), (-2, 1), (True, 1), ("3", 1), (Decimal(3), 1)]
)
def test_one_choice_is_asked_for_unless_a_whole_number_says_otherwise(n: Any, asked: int) -> None:
    assert asked_choices({"n": n}) == asked
    assert asked_choices({}) == 1


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", 1), (["a"], 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([], 1), (None, 1), ("", 1), ({}, 1)],
)
def test_every_prompt_of_a_completion_has_its_choices(prompt: Any, prompts: int) -> None:
    assert asked_choices({"prompt": prompt}) == prompts
    assert asked_choices({"prompt": prompt, "n": 3}) == 3 * prompts


@pytest.mark.parametrize("temperature", [1, 2, Decimal("0.7"), Decimal("1e-400"), Decimal("0.0001")])
def test_an_explicit_temperature_without_a_seed_asks_for_a_sample_of_its_own(temperature: Any) -> None:
    assert wants_its_own({"temperature": temperature})
    assert wants_its_own({"temperature": temperature, "seed": None, "n": 5})
    assert not wants_its_own({"temperature": temperature, "seed": 0})
    assert not wants_its_own({"temperature": temperature, "seed": 7})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": None},
        {"temperature": 0},
        {"temperature": Decimal("0.0")},
        {"temperature": Decimal("-0.0")},
        {"temperature": -1},
        {"temperature": True},
        {"temperature": "1"},
        {"temperature": [1]},
        {"temperature": {"value": 1}},
        {"top_p": Decimal("0.9")},
        {"seed": 1},
        {"n": 5},
    ],
)
def test_all_others_take_what_there_is(fields: Json) -> None:
    """The default temperature is the backend's, and asking twice for the default is what retries do."""
    assert not wants_its_own(fields)


def test_a_sample_of_its_own_may_be_reused_once_it_is_stored() -> None:
    assert reason(temperature=1) is None


@some
@given(st.dictionaries(st.sampled_from(["temperature", "seed"]), json_values()))
def test_every_request_may_be_judged_alone(body: Json) -> None:
    assert isinstance(wants_its_own(body), bool)


# Answers


def choice(**changes: Any) -> Json:
    message = {"role": "assistant", "content": "Hello.", "refusal": None}
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", **changes}


def message(**fields: Any) -> Json:
    return choice(message={"role": "assistant", **fields})


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "answer",
    [
        chat_answer("Hello."),
        chat_answer("x", choices=[choice(finish_reason="tool_calls")]),
        chat_answer("x", choices=[message(content=None, tool_calls=[CALL])]),
        chat_answer("x", choices=[message(content=None, refusal="I won't.")]),
        chat_answer("x", error=None),
    ],
)
def test_complete_answers_are_kept(answer: Json) -> None:
    assert answer_reason("chat", answer, asked=1) is None


@pytest.mark.parametrize(
    ("choices", "asked", "why"),
    [
        ([choice(finish_reason="length")], 1, "finish_reason_length"),
        ([choice(finish_reason="content_filter")], 1, "finish_reason_content_filter"),
        ([choice(finish_reason="function_call")], 1, "finish_reason_function_call"),
        ([choice(finish_reason=None)], 1, "finish_reason_missing"),
        ([choice(), choice(index=1, finish_reason=None)], 2, "finish_reason_missing"),
        ([choice(), choice(index=1, finish_reason="length")], 2, "finish_reason_length"),
        ([choice()], 2, "choices_missing"),
        ([choice(), choice(index=1)], 1, "choices_missing"),
        ([message(content="")], 1, "empty"),
        ([message(content=None)], 1, "empty"),
        ([message(content=None, tool_calls=[])], 1, "empty"),
        ([message(reasoning_content="hm")], 1, "empty"),
        ([], 1, "no_choices"),
        (None, 1, "no_choices"),
        ({}, 1, "no_choices"),
        (["x"], 1, "no_choices"),
        ([{"index": 0, "finish_reason": "stop"}], 1, "no_choices"),
        ([choice(message="Hello.")], 1, "no_choices"),
        ([choice(index="0")], 1, "no_choices"),
        ([choice(index=True)], 1, "no_choices"),
    ],
)
def test_cut_filtered_empty_and_odd_answers_are_not(choices: Any, asked: int, why: str) -> None:
    assert answer_reason("chat", chat_answer("x", choices=choices), asked=asked) == why


def test_an_error_inside_a_good_status_is_not_kept() -> None:
    assert answer_reason("chat", chat_answer("x", error={"message": "overloaded"}), asked=1) == "error_in_answer"


def test_completions_have_text() -> None:
    assert answer_reason("completions", text_answer("Hello."), asked=1) is None
    assert answer_reason("completions", text_answer(""), asked=1) == "empty"
    assert answer_reason("completions", chat_answer("Hello."), asked=1) == "no_choices"
    assert answer_reason("chat", text_answer("Hello."), asked=1) == "no_choices"


def test_two_choices_with_one_index_are_not_two_answers() -> None:
    assert answer_reason("chat", chat_answer("x", choices=[choice(), choice()]), asked=2) is not None


def test_a_long_finish_reason_is_cut() -> None:
    assert len(answer_reason("chat", chat_answer("x", choices=[choice(finish_reason="x" * 999)]), asked=1) or "") <= 48


odd_choices = st.fixed_dictionaries(
    {"index": st.integers() | json_values(), "message": st.dictionaries(texts, json_values()) | json_values()},
    optional={"finish_reason": json_values(), "text": json_values()},
)


@some
@given(st.sampled_from(["chat", "completions"]), st.lists(odd_choices, max_size=2) | json_values())
@example("chat", [{"index": 0, "message": {"content": "x"}, "finish_reason": []}])
def test_every_answer_of_an_upstream_gets_a_decision(api: Any, choices: Any) -> None:
    answer = {"choices": choices}
    assert isinstance(well_formed(api, answer), bool)
    assert isinstance(answer_reason(api, answer, asked=1), str | None)
