"""Are answers of one question told from answers of its neighbours? Judged on pairs as a model writes them
(answers_pairs.jsonl, made by hand), and on answers of random facts in random words."""

import json
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from cache.semantic.answers import MAX_NUMBERS, MAX_READ, MAX_WORDS, Gist, gist, same_answer

PAIRS = [json.loads(line) for line in (Path(__file__).parent / "answers_pairs.jsonl").read_text("utf-8").splitlines()]


def same(a: str, b: str) -> bool:
    there, back = same_answer(gist(a), gist(b)), same_answer(gist(b), gist(a))
    assert there == back
    return there


def size_of(g: Gist) -> int:
    return sum(len(part) for part in (g.whole, g.code, g.language.encode(), g.words, g.places, g.numbers))


def test_no_two_different_answers_are_taken_for_one() -> None:
    different = [pair for pair in PAIRS if not pair["same"]]
    assert len(different) >= 150
    assert [pair for pair in different if same(pair["a"], pair["b"])] == []


def test_most_answers_that_are_the_same_are_recognized() -> None:
    alike = [pair for pair in PAIRS if pair["same"]]
    assert len(alike) >= 80
    assert sum(same(pair["a"], pair["b"]) for pair in alike) >= 0.85 * len(alike)


@pytest.mark.parametrize("text", [pair["a"] for pair in PAIRS if not pair["same"]][::10])
def test_every_answer_is_its_own(text: str) -> None:
    assert same(text, text)
    assert same(text, f"  {text}\n")


# Answers of random facts: what is said depends on the fact, how it is said does not.

THINGS = ["parcel", "permit", "invoice", "tunnel", "garden", "battery", "museum", "ferry", "password", "licence"]
SIDES = ["weight", "price", "height", "length", "depth", "age", "speed", "delay", "limit", "reach"]
COUNTED = ["grams", "euros", "metres", "days", "seats", "pages", "litres", "hours"]
GREETINGS = ["", "Sure! ", "Good question. ", "Thanks for your message. ", "Hello! "]
CLOSINGS = ["", " I hope this helps.", " Let me know if you have more questions.", " Feel free to ask."]
FRAMES = [
    "The {side} of the {thing} is {n} {unit}.",
    "The {thing} has a {side} of {n} {unit}.",
    "{thing}: {side} {n} {unit}.",
]


class Fact:
    def __init__(self, chance: random.Random) -> None:
        self.thing, self.side = chance.choice(THINGS), chance.choice(SIDES)
        self.n, self.unit = chance.randrange(2, 500), chance.choice(COUNTED)

    def told(self, chance: random.Random) -> str:
        told = chance.choice(FRAMES).format(thing=self.thing, side=self.side, n=self.n, unit=self.unit)
        return chance.choice(GREETINGS) + told + chance.choice(CLOSINGS)


def test_one_fact_in_other_words_is_one_answer() -> None:
    chance = random.Random(5)
    facts = [Fact(chance) for _ in range(300)]
    assert sum(same(fact.told(chance), fact.told(chance)) for fact in facts) >= 0.95 * len(facts)


def test_a_fact_with_one_part_changed_is_another_answer() -> None:
    chance = random.Random(6)
    for _ in range(600):
        fact, other = Fact(chance), Fact(chance)
        part = chance.choice(["thing", "side", "n", "unit"])
        changed = Fact(chance)
        changed.__dict__ |= fact.__dict__ | {part: getattr(other, part)}
        if changed.__dict__ != fact.__dict__:
            a, b = fact.told(chance), changed.told(chance)
            assert not same(a, b), (a, b)


@pytest.mark.parametrize("negation", ["is not", "isn't", "is never", "is hardly"])
def test_a_negation_makes_another_answer_whatever_else_is_shared(negation: str) -> None:
    told = "The warranty covers 24 months. In Berlin the repair {} covered by it. Keep the receipt for 10 years."
    assert same(told.format("is"), told.format("is") + " Anything else?")
    assert not same(told.format("is"), told.format(negation))


# Bounds.


def test_a_gist_is_bounded_whatever_the_answer() -> None:
    room = 32 + len("DEVANAGARI") + 6 * MAX_WORDS + 28 * MAX_NUMBERS
    chance = random.Random(7)
    for length in (10, 100, 1_000, 10_000, 100_000):
        words = " ".join(chance.choice([f"word{chance.randrange(10**6)}", str(chance.random())]) for _ in range(length))
        assert size_of(gist(words)) <= room


def test_what_is_said_beyond_the_bound_is_not_ignored() -> None:
    chance = random.Random(8)
    letters = "bcdfghklmnprtvz"
    words = ["".join(chance.choices(letters, k=7)) for _ in range(MAX_WORDS + 50)]
    long = " ".join(words)
    assert same(long, f"{long}.")
    assert not same(long, " ".join(words[:-1]))
    assert not same("Fee: 5 euros. " + "a " * MAX_READ, "Fee: 5 euros. " + "a " * MAX_READ + "not")


@pytest.mark.parametrize(
    "piece",
    ["a", "a ", "1", "1,", "1 to ", "-", "not ", "no, ", "```", "`", "`a` ", "[", "{", '{"a":',
     "\u0316\u0300", "不", "京1",
     "May 3 ", "3 of ", "A. ", "?", "\n", "# ", "a-", "at most ", "no more ", "\ud800", "°", "http://", "1.1.",
     "v1.1.1 "],
)  # fmt: skip
def test_any_text_takes_linear_time(piece: str) -> None:
    assert seconds_for(piece * ((MAX_READ - 10) // len(piece))) < 2


@pytest.mark.parametrize("piece", ["a", "a ", "1 to ", "`", "[", "{", "```\n", "\u0316\u0300", "京1"])
def test_a_megabyte_takes_linear_time(piece: str) -> None:
    assert seconds_for(piece * (1_000_000 // len(piece))) < 5


def seconds_for(text: str) -> float:
    start = time.perf_counter()
    assert same_answer(gist(text), gist(text + "."))
    return time.perf_counter() - start


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "...", "```", "{", "[1,", "null", "NaN", "[NaN]", "\x00", "🙂", "[1e999999999]"]
)
def test_answers_that_say_nothing_are_only_themselves(text: str) -> None:
    assert same(text, text)
    assert not same(text, "The capital of France is Paris.")
    assert not same(text, "Yes, you can.")


def test_numbers_in_json_are_not_rounded() -> None:
    assert not same("[1.00000000000000000000000000000001]", "[1]")
    assert not same('["\\u00001"]', "[1]")
    assert not same('{"a": []}', '{"a": {}}')


def test_comparing_takes_microseconds() -> None:
    texts = [pair["a"] for pair in PAIRS]
    gists = [gist(text) for text in texts]
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for a, b in pairwise(gists):
            same_answer(a, b)
        best = min(best, (time.perf_counter() - start) / len(gists))
    assert best < 500e-6  # ten times what it should be: the machine may be busy
