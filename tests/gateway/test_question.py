"""Which requests another question's answer may serve at all: what is read, and why the rest is left alone."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.semantic.tier import Query
from gateway.errors import ApiError
from gateway.question import LETTERS_PER_WORD, read_question
from tests.gateway.asking import TURNS, WORDS, Json, ask, read, reason
from tests.gateway.values import attempt, json_values, some, texts

# What is left alone


def turn(**message: Any) -> Json:
    return {"before": [*TURNS, message]}


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"endpoint": "without"}, "tier_off"),
        ({"endpoint": "nothing"}, "tier_off"),
        ({"headers": {"x-refrain-tier": "exact"}}, "tier_not_asked"),
        ({"headers": {"cache-control": "no-cache"}}, "no_cache"),
        ({"headers": {"cache-control": "max-age=0"}}, "no_cache"),
        ({"cache": {"no-cache": True}}, "no_cache"),
        ({"api": "completions", "prompt": "How are you?"}, "not_chat"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "tools"),
        ({"n": 2}, "several_choices"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "logprobs"),
        (turn(role="tool", content="4", tool_call_id="1"), "tool_results"),
        (turn(role="function", content="4", name="f"), "tool_results"),
        (turn(role="assistant", content=None, tool_calls=[{"id": "1"}]), "tool_results"),
        (turn(role="assistant", content="x", function_call={"name": "f"}), "tool_results"),
        ({"last": {"role": "tool"}}, "tool_results"),
        ({"content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {}}]}, "not_text"),
        ({"content": [{"type": "input_audio", "input_audio": {}}]}, "not_text"),
        (turn(role="user", content=[{"type": "image_url", "image_url": {}}]), "not_text"),
        (turn(role="assistant", content=None), "not_text"),
        (turn(role="assistant", refusal="No."), "not_text"),
        ({"content": None}, "not_text"),
        ({"content": 5}, "not_text"),
        ({"content": {"type": "text", "text": "x"}}, "not_text"),
        ({"content": ["x"]}, "not_text"),
        ({"content": [{"type": "text"}]}, "not_text"),
        ({"content": [{"type": "text", "text": 5}]}, "not_text"),
        ({"content": [{"text": "x"}]}, "not_text"),
        ({"last": {"role": "assistant"}}, "not_a_user_turn"),
        ({"last": {"role": "system"}}, "not_a_user_turn"),
        ({"last": {"role": "User"}}, "not_a_user_turn"),
        ({"last": {"role": None}}, "not_a_user_turn"),
        ({"last": {"role": ["user"]}}, "not_a_user_turn"),
        ({"content": ""}, "empty"),
        ({"content": " \n\t "}, "empty"),
        ({"content": []}, "empty"),
        ({"content": [{"type": "text", "text": ""}, {"type": "text", "text": " "}]}, "empty"),
        ({"content": "word " * (WORDS + 1)}, "too_long"),
        ({"content": "w" * (LETTERS_PER_WORD * WORDS + 1)}, "too_long"),
        ({"content": [{"type": "text", "text": "word " * 40}] * 2}, "too_long"),
        ({"endpoint": "brief", "content": "one two three four five"}, "too_long"),
        ({"content": "What is the weather today?"}, "about_now"),
        ({"before": [{"role": "user", "content": "What is the latest news?"}, TURNS[2]]}, "about_now"),
    ],
    ids=str,
)
def test_what_words_cannot_judge_is_left_alone(request_: Json, why: str) -> None:
    assert reason(**request_) == why


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"before": []},
        {"tools": [], "functions": None, "n": 1, "logprobs": False, "top_logprobs": 0},
        {"tools": None, "n": None, "logprobs": None},
        {"headers": {"x-refrain-tier": "semantic"}},
        {"headers": {"cache-control": "max-age=60"}},
        turn(role="assistant", content="x", tool_calls=[], function_call=None),
        turn(role="developer", content=[{"type": "text", "text": "Be kind."}]),
        {"stream": True, "temperature": 1.5, "seed": 3, "response_format": {"type": "json_object"}},
        {"content": "word " * WORDS},
        {"content": "w" * (LETTERS_PER_WORD * WORDS)},
        {"endpoint": "brief", "content": "one two three four"},
    ],
    ids=str,
)
def test_ordinary_questions_are_read(request_: Json) -> None:
    query = read(**request_)
    asked = ask(**request_)
    assert (query.key, query.scope) == (asked.key, asked.scope.digest())
    assert len(query.context) == 32
    assert query.text == request_.get("content", "How are you?")


@pytest.mark.parametrize(
    "letters", ["东京有多少人口呢", "ひらがなとカタカナ", "ภาษาไทยไม่เว้นวรรค", "ភាសាខ្មែរ", "မြန်မာစာ"]
)
def test_two_letters_of_a_script_without_blanks_are_about_a_word(letters: str) -> None:
    def text(length: int) -> str:
        return (letters * length)[:length]

    assert isinstance(reason(text(2 * WORDS)), Query)
    assert reason(text(2 * WORDS + 1)) == "too_long"
    assert reason(text(2 * WORDS - 10) + " and six words in English more") == "too_long"
    assert isinstance(reason("한국어는 띄어 쓴다 " * (WORDS // 3)), Query)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("One?", "One?"),
        ([{"type": "text", "text": "One?"}], "One?"),
        ([{"type": "text", "text": "One?"}, {"type": "text", "text": "Two?"}], "One?\nTwo?"),
        (" One? ", " One? "),
    ],
)
def test_the_text_is_that_of_all_parts(content: Any, text: str) -> None:
    assert read(content).text == text
    one = len(content) == 1 or isinstance(content, str)
    assert (read(content).context == read("Something else").context) == one, "how many parts there are belongs to it"


def test_the_words_of_all_parts_are_what_is_asked() -> None:
    def parts(*texts: str) -> list[Json]:
        return [{"type": "text", "text": text} for text in texts]

    assert read(parts("One?", "Two?")).context == read(parts("Three?", "")).context


@pytest.mark.parametrize("where", ["asked", "parts", "before"])
def test_a_megabyte_is_quickly_read(where: str) -> None:
    long = "many words of one text " * 45_000
    parts = [{"type": "text", "text": "x"}] * 60_000
    request = {"asked": {"content": long}, "parts": {"content": parts}, "before": turn(role="assistant", content=long)}
    asked = ask(**request[where])
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        read_question(asked)
        taken.append(time.perf_counter() - begun)
    assert min(taken) < 0.2


@some
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "role": st.sampled_from(["user", "assistant", "tool"]) | json_values(),
                "content": texts
                | st.lists(st.fixed_dictionaries({"type": json_values()}) | json_values())
                | json_values(),
                "tool_calls": json_values(),
                "name": json_values(),
            },
        ),
        min_size=1,
        max_size=4,
    ),
    st.dictionaries(
        st.sampled_from(["tools", "functions", "logprobs", "top_logprobs", "n"]), json_values(), max_size=2
    ),
)
def test_whatever_a_body_holds_there_is_an_answer(messages: list[Any], fields: Json) -> None:
    asked = attempt(lambda: ask(before=messages[:-1], last={"content": None, **messages[-1]}, **fields))
    if not isinstance(asked, ApiError):
        assert isinstance(read_question(asked), str | Query)
