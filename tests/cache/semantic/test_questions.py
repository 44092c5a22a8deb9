"""What is known of questions: their bytes, their order of use, which wait for vectors, which have one answer."""

import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.semantic.questions import MAX_BARE, ROW_OVERHEAD, Questions, Row
from tests.contract.stores import key_of

ROOM = 1_000_000
TEXT = "What is it?"
SIZE = sys.getsizeof(TEXT) + ROW_OVERHEAD


def row(name: str, context: bytes = b"c", text: str = TEXT) -> Row:
    return Row(key_of(name), context, text)


def filled(names: str, *, max_bytes: int = ROOM, bare: bool = False) -> Questions:
    questions = Questions(max_bytes)
    for name in names:
        assert questions.add(row(name), bare=bare) == []
    return questions


def group(questions: Questions, name: str) -> str:
    """The names of all that have its answer."""
    names = {key_of(each): each for each in "abcdefgh"}
    return "".join(sorted(names[key] for key in questions.group_of(key_of(name))))


def merge(questions: Questions, *pairs: str) -> None:
    for one, other in pairs:
        questions.merge(key_of(one), key_of(other))


# One answer


def test_the_same_answer_is_the_same_for_all_that_share_it() -> None:
    questions = filled("abcdef")
    merge(questions, "ab", "cd")
    assert (group(questions, "a"), group(questions, "d"), group(questions, "e")) == ("ab", "cd", "e")
    merge(questions, "bc")
    assert {group(questions, name) for name in "abcd"} == {"abcd"}
    answers = {questions.get(key_of(name)).answer for name in "abcd"}  # type: ignore[union-attr]
    assert len(answers) == 1
    assert len(answers | {questions.get(key_of(name)).answer for name in "ef"}) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("pairs", [("aa",), ("ab", "ab"), ("ab", "ba"), ("ab", "aa", "bb")])
def test_a_merge_may_be_repeated(pairs: tuple[str, ...]) -> None:
    questions = filled("abc")
    merge(questions, *pairs)
    assert group(questions, "a") == ("ab" if "ab" in pairs else "a")
    merge(questions, "bc")
    assert group(questions, "c") == ("abc" if "ab" in pairs else "bc")


def test_what_linked_two_may_go_and_they_stay_linked() -> None:
    questions = filled("abc")
    merge(questions, "ab", "bc")
    assert questions.remove(key_of("b"))
    assert group(questions, "a") == group(questions, "c") == "ac"
    assert group(questions, "b") == "b"
    questions.add(row("b"), bare=False)
    assert group(questions, "b") == "b"
    assert group(questions, "a") == "ac"


def test_one_whose_answer_is_another_now_leaves_the_others_together() -> None:
    questions = filled("abcd")
    merge(questions, "ab", "bc")
    questions.leave(key_of("b"))
    assert (group(questions, "a"), group(questions, "b")) == ("ac", "b")
    merge(questions, "bd")
    assert (group(questions, "a"), group(questions, "b")) == ("ac", "bd")


@pytest.mark.parametrize("pair", ["ax", "xa", "xy"])
def test_what_is_not_known_has_no_part_in_anything(pair: str) -> None:
    questions = filled("ab")
    merge(questions, pair)
    for method in (questions.use, questions.embedded, questions.leave):
        method(key_of("x"))
    assert not questions.remove(key_of("x"))
    assert questions.get(key_of("x")) is None
    assert group(questions, "a") == "a"
    assert len(questions) == 2


# Bounds


def test_the_least_recently_used_go_first() -> None:
    questions = filled("abc", max_bytes=3 * SIZE)
    questions.use(key_of("a"))
    assert questions.add(row("d"), bare=False) == [key_of("b")]
    assert list(questions) == [key_of(name) for name in "cad"]
    assert questions.add(row("e", text=TEXT + "x"), bare=False) == [key_of("c"), key_of("a")]
    assert questions.bytes == 2 * SIZE + 1


def test_what_is_larger_than_the_bound_does_not_stay() -> None:
    questions = filled("a", max_bytes=SIZE)
    large = row("b", text="x" * SIZE)
    assert questions.add(large, bare=True) == [key_of("a"), large.key]
    assert (len(questions), questions.bytes, questions.bare(b"c")) == (0, 0, [])


def test_only_so_many_of_a_context_wait_for_their_vectors() -> None:
    questions = Questions(ROOM)
    for n in range(MAX_BARE):
        assert questions.add(row(f"{n}"), bare=True) == []
    assert questions.add(row("other", b"d"), bare=True) == []
    assert questions.add(row("vector"), bare=False) == []
    assert questions.add(row("one more"), bare=True) == [key_of("0")]
    assert [each.key for each in questions.bare(b"c")] == [
        *(key_of(f"{n}") for n in range(1, MAX_BARE)),
        key_of("one more"),
    ]
    assert questions.get(key_of("0")) is None
    questions.embedded(key_of("1"))
    assert questions.add(row("another"), bare=True) == []
    assert questions.get(key_of("1")) is not None


@pytest.mark.parametrize("length", [4, 1000])
@pytest.mark.parametrize("letter", ["a", "é", "字", "😀"])
def test_the_bytes_charged_are_at_least_those_taken(letter: str, length: int) -> None:
    """In whatever script, each in a context of its own, and each two of one answer."""
    count = 700  # just after the tables have grown
    questions = Questions(1 << 30)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(count):
            text = f"{n:03}" + letter * (length - 3)
            questions.add(Row(key_of(f"{n}"), key_of(f"context {n}"), text, key_of(f"answer {n}")), bare=True)
            if n % 2:
                questions.merge(key_of(f"{n - 1}"), key_of(f"{n}"))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert questions.bytes / 2 < taken <= questions.bytes


# Against a plain model

KEYS = st.sampled_from("abcdefgh")
OPS = st.one_of(
    st.tuples(st.just("add"), KEYS, st.sampled_from([b"c", b"d"]), st.integers(0, 400), st.booleans()),
    st.tuples(st.just("merge"), KEYS, KEYS),
    st.tuples(st.sampled_from(["use", "remove", "leave", "embedded"]), KEYS),
)


class Model:
    """Lists and sets, each question looked for."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.rows: list[tuple[str, bytes, int]] = []
        self.bare: list[str] = []
        self.groups: list[set[str]] = []

    def has(self, name: str) -> bool:
        return any(each[0] == name for each in self.rows)

    def group(self, name: str) -> set[str]:
        return next((g for g in self.groups if name in g), {name})

    def add(self, name: str, context: bytes, length: int, bare: bool) -> list[str]:
        self.rows.append((name, context, sys.getsizeof("x" * length) + ROW_OVERHEAD))
        if bare:
            self.bare.append(name)
        gone = []
        while sum(size for *_, size in self.rows) > self.max_bytes:
            gone.append(self.rows[0][0])
            self.remove(gone[-1])
        return gone

    def use(self, name: str) -> None:
        self.rows.sort(key=lambda each: each[0] == name)

    def remove(self, name: str) -> None:
        self.rows = [each for each in self.rows if each[0] != name]
        self.embedded(name)
        self.leave(name)

    def leave(self, name: str) -> None:
        for g in self.groups:
            g.discard(name)

    def embedded(self, name: str) -> None:
        self.bare = [each for each in self.bare if each != name]

    def merge(self, one: str, other: str) -> None:
        if self.has(one) and self.has(other):
            both = self.group(one) | self.group(other)
            self.groups = [g for g in self.groups if not g & both] + [both]


@settings(max_examples=150, deadline=None)
@given(st.lists(OPS, max_size=40), st.integers(1, 9))
def test_it_does_what_a_plain_model_does(ops: list[Any], room: int) -> None:
    max_bytes = room * (SIZE + 100)
    questions, model = Questions(max_bytes), Model(max_bytes)
    for op, *args in ops:
        name = args[0]
        if op == "add":
            if not model.has(name):
                _, context, length, bare = args
                gone = questions.add(Row(key_of(name), context, "x" * length), bare=bare)
                assert gone == [key_of(each) for each in model.add(name, context, length, bare)]
        else:
            getattr(questions, op)(*map(key_of, args))
            getattr(model, op)(*args)
        assert list(questions) == [key_of(each) for each, *_ in model.rows]
        assert questions.bytes == sum(size for *_, size in model.rows) <= max_bytes
        for context in (b"c", b"d"):
            waiting = [n for n in model.bare if (n, context) in [(r[0], r[1]) for r in model.rows]]
            assert [each.key for each in questions.bare(context)] == [key_of(n) for n in waiting]
        for one, *_ in model.rows:
            assert questions.group_of(key_of(one)) == {key_of(each) for each in model.group(one)}
            a = questions.get(key_of(one))
            for other, *_ in model.rows:
                b = questions.get(key_of(other))
                assert a is not None
                assert b is not None
                assert (a.answer == b.answer) == (other in model.group(one))
