"""What is kept of a text, in any script and at any length."""

import time

import pytest

from cache.semantic.signature import CLASSES, Signature, signature


def words_of(text: str) -> list[str]:
    return [known[0] for known in signature(text).terms]


def of_class(text: str, name: str) -> set[str]:
    return set(signature(text).classes[CLASSES.index(name)])


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3 apples", ("3",)),
        ("three apples", ("3",)),
        ("twenty five", ("25",)),
        ("two hundred", ("200",)),
        ("2 thousand", ("2000",)),
        ("1,000 or 1000", ("1000", "1000")),
        ("2.50", ("2.5",)),
        ("٣ تذاكر", ("3",)),
        ("版本３", ("3",)),
        ("17:30", ("17:30",)),
        ("2026-03-01", ("2026-03-01",)),
        ("the first and the 2nd", ("1st", "2")),
        ("this one", ()),
        ("007", ("7",)),
        ("0", ("0",)),
    ],
)
def test_numbers(text: str, numbers: tuple[str, ...]) -> None:
    assert signature(text).numbers == numbers


def test_the_subject_is_what_remains_without_greeting_and_form() -> None:
    assert words_of("Hi, could you please tell me how I can reset my router? Thanks!") == words_of("reset router")


def test_phrases_are_one_word_and_known_by_what_they_mean() -> None:
    on, off = signature("turn on the lamp"), signature("turn the lamp off")
    assert words_of("turn the lamp off") == words_of("turn off the lamp")
    assert set(signature("switch the lamp off").terms[0]) & set(off.terms[0])
    assert not set(on.terms[0]) & set(off.terms[0])


def test_typing_errors_of_listed_words_are_read_as_these() -> None:
    assert words_of("my restarutant") != words_of("my restaurant")  # more than two letters exchanged
    assert words_of("a resaturant") == words_of("a restaurant")
    assert signature("there are trees").numbers == ()


@pytest.mark.parametrize(
    ("text", "name", "members"),
    [
        ("5 kilometres", "unit", {"km"}),
        ("$5", "unit", {"usd"}),
        ("on Tuesday evening", "date", {"tuesday", "evening"}),
        ("5 am", "date", {"am"}),
        ("I am here", "date", set()),
        ("a script in JS", "language", {"javascript"}),
        ("as YAML", "format", {"yaml"}),
        ("a brief note", "manner", {"short"}),
        ("what time is it", "asks", {"when"}),
    ],
)
def test_closed_classes(text: str, name: str, members: set[str]) -> None:
    assert of_class(text, name) == members


def test_names_are_capitals_that_grammar_does_not_ask_for() -> None:
    assert signature("Hello, Where does Alice live? Nobody knows").names == {"alice"}
    assert signature("How Do I Reset My Old Gmail Password").names == set()


def test_quoted_text_and_code() -> None:
    assert signature('what is "foo bar" and `x` and “y z” and 「何」').quoted == {"foo bar", "x", "y z", "何"}
    assert signature("it's John's and I don't").quoted == set()
    assert signature("call user_id and foo(a, b)").code == {"user_id", "foo(a"}


def test_roles_are_what_stands_behind_the_marker() -> None:
    roles = signature("from the big city to Rome").roles
    assert roles["from"][0][0] == "big"
    assert roles["to"][0][0] == "rom"
    assert signature("two days from now in Rome").roles == {}


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("Wie kündige ich meinen Vertrag?", True),
        ("Comment puis-je annuler ?", True),
        ("¿Cómo abro una cuenta?", True),
        ("如何打开通知", True),
        ("Как включить звук?", True),
        ("كيف أفتح حسابا", True),
        ("How do I cancel?", False),
        ("2010 world cup football winner", False),
        ("reset password", False),
        ("What does 'Danke' mean in English?", False),
        ("", False),
    ],
)
def test_english_or_not(text: str, foreign: bool) -> None:
    assert signature(text).foreign is foreign


LONG = [
    unit * (4000 // len(unit))
    for unit in (
        *(
            "a",
            "'",
            "`",
            "“",
            "«",
            "1",
            "1,",
            "a.",
            "c+",
            "\0\x1b",
            "😀",
            "中",
            "é",
            "e\u0301",
            " ",
            "turn ",
            "turn a off ",
        ),
        *("one ", "_(", "- ", "hundred ", "thousand ", "million ", "\n", '"', "＂", "²", "½"),
    )
]
ODD = ["", " ", "😀", "\0", "\ud800", "²", "½", "①", "一二三", "中" * 64, "ß", "İstanbul"]


@pytest.mark.parametrize("text", [*ODD, *LONG])
def test_copes_with_any_text(text: str) -> None:
    assert isinstance(signature(text), Signature)


@pytest.mark.parametrize("text", LONG[::3])
def test_time_is_linear(text: str) -> None:
    def seconds(times: int) -> float:
        best = 9.0
        for n in range(2):
            began = time.process_time()
            signature(text * times + str(n) * 3)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(4) < 10 * seconds(1) + 0.02
