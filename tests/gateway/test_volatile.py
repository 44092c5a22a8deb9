"""Who asks about now, in which language, in which form. A wrong "no" here is yesterday's answer to today's question."""

import time
import unicodedata
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.volatile import END, LONG, about_now
from tests.gateway.values import json_values, some
from tests.gateway.volatile_prompts import AGELESS, OF_NOW

Json = dict[str, Any]
NOW = "What's the weather like in Paris?"
EVER = "Write a poem about the sea."


def chat(*turns: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": turn} for turn in turns]}


def asks(text: str) -> bool:
    of_now = about_now("chat", chat(text))
    assert about_now("completions", {"prompt": text}) is of_now
    return of_now


def rows(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(language, line.strip()) for language, lines in table.items() for line in lines.strip().splitlines()]


# What is said


@pytest.mark.parametrize(("language", "prompt"), rows(OF_NOW))
def test_these_ask_about_now(language: str, prompt: str) -> None:
    assert asks(prompt)


@pytest.mark.parametrize(("language", "prompt"), rows(AGELESS))
def test_these_do_not(language: str, prompt: str) -> None:
    assert not asks(prompt)


@pytest.mark.parametrize(
    "spell",
    [
        str.upper,
        str.title,
        lambda text: unicodedata.normalize("NFD", text),
        lambda text: unicodedata.normalize("NFKD", text),
        lambda text: "\u200b".join(text),
        lambda text: text.replace("'", "’"),
        lambda text: f"  {text}\r\n",
        lambda text: f"🙂{text}🙂",
        lambda text: f"«{text}»",
    ],
)
@pytest.mark.parametrize("table", [OF_NOW, AGELESS])
def test_spelling_is_of_no_account(table: dict[str, str], spell: Callable[[str], str]) -> None:
    for language, prompt in rows(table):
        # Python's upper and title case know no Turkish.
        if not (language == "tr" and spell in (str.upper, str.title)):
            assert asks(spell(prompt)) is (table is OF_NOW), (language, spell(prompt))


@pytest.mark.parametrize(
    "prompt",
    [
        "ＷＨＡＴ ＩＳ ＴＨＥ ＷＥＡＴＨＥＲ",
        "to\u00adday",
        "to\u200dday",
        "İSTANBUL'DA ŞİMDİ NE VAR",
        "BUGÜN NE VAR",
        "YARIN NE VAR",
        "que hora es",
        "co sie dzis dzieje",
        "اليَوْم",
        "الآن",
        "הַיּוֹם",
        "Bitcoin का भाव",
        "請問today有什麼活動",
        "Translate 今天 for me",
        "обзор AI на сегодня, please",
        "ｔｏｄａｙ",
    ],
)
def test_unusual_letters(prompt: str) -> None:
    assert asks(prompt)


@pytest.mark.parametrize("prompt", ["nowhere to go", "renown", "snow", "knowledge", "newestate", "currents"])
def test_a_part_of_a_word_is_another_word(prompt: str) -> None:
    assert not asks(prompt)


def test_no_phrase_reaches_over_a_stop() -> None:
    assert not asks("Now write a haiku.")
    assert asks("Is the shop open now? Write yes or no.")
    assert asks("Is the shop open now\nWrite yes or no.")
    assert not asks("I put it to the right. Flowers: the time. Machine learning.")


def test_what_is_not_about_now_takes_no_more_than_its_own_words() -> None:
    assert not asks("Explain alternating current.")
    assert asks("Explain alternating current and the current situation in Ukraine.")


# Where it is said


@pytest.mark.parametrize(
    "content",
    [
        NOW,
        [{"type": "text", "text": NOW}],
        [{"type": "text", "text": EVER}, {"type": "text", "text": NOW}],
        [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": NOW}],
        [None, 1, "text", {"text": 3}, {"type": "text", "text": NOW}],
    ],
)
def test_every_form_of_content_is_read(content: Any) -> None:
    assert about_now("chat", chat(content))
    assert about_now("chat", chat(EVER, content))
    assert about_now("chat", chat(content, EVER))


@pytest.mark.parametrize("role", ["system", "developer", "assistant", "tool", "function", "User", None, 1, ["user"]])
def test_only_users_are_read(role: Any) -> None:
    assert not about_now("chat", {"messages": [{"role": role, "content": NOW}, {"role": "user", "content": EVER}]})


def test_a_later_turn_does_not_end_it() -> None:
    answer = {"role": "assistant", "content": "Sunny."}
    first, second = chat(NOW, "and in London?")["messages"]
    assert about_now("chat", {"messages": [first, answer, second]})


@pytest.mark.parametrize(("prompt", "expected"), [(NOW, True), ([EVER, NOW], True), (EVER, False), ([EVER], False)])
def test_prompts_of_completions(prompt: Any, expected: bool) -> None:
    assert about_now("completions", {"prompt": prompt}) is expected


def test_each_api_has_its_own_field() -> None:
    assert not about_now("chat", {"prompt": NOW})
    assert not about_now("completions", chat(NOW))


@pytest.mark.parametrize(
    "value", [None, 1, True, {}, [], [1, 2], [[NOW]], {"text": NOW}, {"role": "user"}, [{"a": NOW}]]
)
def test_what_is_malformed_asks_nothing(value: Any) -> None:
    assert not about_now("chat", {"messages": value})
    assert not about_now("chat", chat(value))
    assert not about_now("chat", {})
    assert not about_now("completions", {"prompt": value})


@some
@given(json_values(), st.sampled_from(["chat", "completions"]))
@example("\ud800", "chat")
@example("\u200b", "chat")
@example("", "completions")
def test_anything_gets_an_answer(value: Any, api: Any) -> None:
    for body in ({"messages": value, "prompt": value}, {"messages": [value], "prompt": [value]}, chat(value)):
        assert about_now(api, body) in (True, False)


# The order of turns, and one more

turns = st.lists(st.sampled_from([prompt for table in (OF_NOW, AGELESS) for _, prompt in rows(table)]), max_size=4)


@some
@given(turns, st.text(max_size=20))
def test_order_is_of_no_account_and_a_turn_more_never_takes_it_back(said: list[str], more: str) -> None:
    of_now = about_now("chat", chat(*said))
    assert of_now is any(map(asks, said))
    assert all(about_now("chat", chat(*order)) is of_now for order in permutations(said))
    assert about_now("chat", chat(*said, more)) is (of_now or asks(more))
    assert about_now("chat", chat(more, *said)) is (of_now or asks(more))


# Long texts


def seconds(work: Callable[[], object]) -> float:
    """Of this process, the best of five."""
    return min(_spent(work) for _ in range(5))


def _spent(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.parametrize(
    "piece",
    [
        "A quick brown fox jumps, and runs. ",
        "what the last price a ",
        "机器学习是智能的，",
        "Лиса бежит. ",
        "이것은 글 ",
        "!,;。",
    ],
)
def test_a_megabyte_takes_no_longer_than_folding_it_a_few_times(piece: str) -> None:
    text = piece * (1_000_000 // len(piece.encode()))
    body = chat(text)
    # Folding plain letters is nearly free, so the yardstick is the text with a letter that is not.
    assert seconds(lambda: about_now("chat", body)) < 10 * seconds((text + "ß").casefold)


@pytest.mark.parametrize("piece", ["a quick brown fox jumps, and runs. ", "what the last price a ", "机器学习智能的，"])
def test_time_grows_with_the_text_and_no_faster(piece: str) -> None:
    pages = [(piece * LONG)[: 2 * END]] * (LONG // (2 * END) // 5)
    short, long = chat(*pages), chat(*pages * 5)
    assert not about_now("chat", long)
    assert seconds(lambda: about_now("chat", long)) < 5 * 4 * seconds(lambda: about_now("chat", short))


def test_of_a_long_text_the_two_ends_are_read() -> None:
    document = "Once upon a time. " * 10_000
    assert not asks(document)
    assert asks(f"{NOW}\n\n{document}")
    assert asks(f"{document}\n\n{NOW}")
    assert not asks(f"{document} What happened today? {document}")


def test_what_is_too_much_to_read_counts_as_about_now() -> None:
    turns = ["a" * (2 * END)] * (LONG // (2 * END))
    assert not about_now("chat", chat(*turns))
    assert about_now("chat", chat(*turns, "a" * (2 * END)))
    assert about_now("completions", {"prompt": [*turns, "a" * (2 * END)]})
