"""Which component differs: by name, for all that makes the key, and for nothing that does not."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ask import Ask
from gateway.why.sketch import MAX_FIELDS, MAX_NAME, MAX_TURNS, Sketch, continues, differs, pieces, sketch
from tests.gateway.asking import TURNS, ask

SECRET = b"s" * 16
Json = dict[str, Any]
TOOL = {"type": "function", "function": {"name": "f"}}


def of(asked: Ask) -> Sketch:
    return sketch(asked, SECRET)


def names(one: Ask, other: Ask) -> tuple[str, ...]:
    found = differs(of(one), of(other))
    assert len(found) == len(differs(of(other), of(one)))
    assert (one.key == other.key) == (not found)
    return found


def turn(content: Any, role: str = "user") -> Json:
    return {"role": role, "content": content}


DIFFERENT: dict[str, tuple[Json, tuple[str, ...]]] = {
    "temperature": ({"temperature": 0.5}, ("parameter temperature",)),
    "max_tokens": ({"max_tokens": 9}, ("parameter max_tokens",)),
    "max_completion_tokens": ({"max_completion_tokens": 9}, ("parameter max_tokens",)),
    "an unknown field": ({"brand_new": None}, ("parameter brand_new",)),
    "tools": ({"tools": [TOOL]}, ("tools",)),
    "functions": ({"functions": [{"name": "f"}]}, ("tools",)),
    "question": ({"content": "How old are you?"}, ("question",)),
    "a part beside the text": ({"content": [{"type": "text", "text": "How are you?"}] * 2}, ("question",)),
    "a name in the last turn": ({"last": {"name": "ann"}}, ("question",)),
    "the last turn's role": ({"last": {"role": "assistant"}}, ("question",)),
    "system prompt": ({"before": [turn("Be rude.", "system"), *TURNS[1:]]}, ("system prompt",)),
    "no system prompt": ({"before": TURNS[1:]}, ("system prompt",)),
    "developer": ({"before": [turn("You are kind.", "developer"), *TURNS[1:]]}, ("system prompt",)),
    "earlier turn": ({"before": [*TURNS[:2], turn("Hi!", "assistant")]}, ("earlier turn 2",)),
    "one turn less": ({"before": TURNS[:2]}, ("earlier turn 2",)),
    "one turn more": ({"before": [*TURNS, turn("x")]}, ("earlier turn 3",)),
    "endpoint": ({"endpoint": "other"}, ("endpoint",)),
    "endpoint and backend": ({"endpoint": "backed"}, ("endpoint", "backend")),
    "endpoint and its settings": ({"endpoint": "tolerant"}, ("endpoint", "endpoint settings")),
    "header": ({"headers": {"openai-beta": "x"}}, ("header openai-beta",)),
    "query": ({"query": "api-version=2"}, ("query api-version",)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_has_its_name(name: str) -> None:
    changes, expected = DIFFERENT[name]
    found = names(ask(), ask(**changes))
    assert set(found) == set(expected)


def test_a_last_turn_is_named_by_whose_it_is() -> None:
    mine = ask("x", last={"role": "tool", "tool_call_id": "1"})
    assert differs(of(mine), of(ask("y", last={"role": "tool", "tool_call_id": "1"}))) == ("last turn",)
    prompts = [ask(api="completions", prompt=text) for text in ("a", "b")]
    assert names(*prompts) == ("prompt",)


def test_a_model_is_one_thing_though_it_stands_in_the_body_too() -> None:
    one = ask()
    other = ask()
    other = replace(other, model="gpt-y", body={**other.body, "model": "gpt-y"})
    assert differs(of(one), of(other)) == ("model",)


def test_a_backend_with_other_weights_is_another_one() -> None:
    one = ask()
    moved = replace(one, backend=ask(endpoint="backed").backend)
    assert differs(of(one), of(moved)) == ("backend",)


SAME: dict[str, Json] = {
    "stream": {"stream": True},
    "user": {"user": "u1"},
    "metadata": {"metadata": {"a": "b"}},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "null": {"temperature": None},
    "n": {"n": 1},
    "a single text part": {"content": [{"type": "text", "text": "How are you?"}]},
    "tags": {"headers": {"x-refrain-tags": "a"}},
    "another query": {"query": "trace=1"},
}


@pytest.mark.parametrize("name", SAME)
def test_what_the_key_leaves_out_never_differs(name: str) -> None:
    assert names(ask(), ask(**SAME[name])) == ()


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.decimals(-2, 2, places=2).map(float),
    st.text(max_size=3),
    st.lists(st.integers(0, 1), max_size=2),
)
FIELDS = st.dictionaries(
    st.sampled_from(("temperature", "seed", "n", "user", "tools", "functions", "max_tokens", "odd", "store", "prompt")),
    VALUES,
    max_size=3,
).filter(lambda fields: fields.get("n") is None or (type(fields["n"]) is int and fields["n"] > 0))
ROLES = st.sampled_from(("system", "user", "assistant"))
MESSAGES = st.lists(st.builds(turn, st.sampled_from(("a", "b", None)), ROLES), max_size=3)


@settings(max_examples=300, deadline=None)
@given(FIELDS, MESSAGES, FIELDS, MESSAGES, st.sampled_from(("default", "tolerant", "backed")))
def test_something_differs_exactly_where_the_keys_do(
    some: Json, said: list[Json], others: Json, heard: list[Json], endpoint: str
) -> None:
    names(ask(before=said, **some), ask(before=heard, endpoint=endpoint, **others))


def test_names_that_clients_invent_are_cut_and_printable() -> None:
    hostile = {"\x1b[2J" + "x" * 500: 1, "<script>": 1, "\u202eevil": 1}
    found = names(ask(), ask(**hostile))
    assert len(found) == 3
    for name in found:
        assert name.isprintable()
        assert len(name) <= len("parameter ") + MAX_NAME + 3


def test_two_names_that_look_the_same_when_cut_are_still_told_apart() -> None:
    a, b = "x" * 200 + "a", "x" * 200 + "b"
    assert len(names(ask(**{a: 1}), ask(**{b: 1}))) == 1
    assert len(names(ask(**{a: 1, b: 2}), ask(**{a: 2, b: 1}))) == 1


def test_a_body_of_ever_so_many_fields_has_a_short_sketch() -> None:
    many = {f"f{i:04}": i for i in range(1_000)}
    one = of(ask(**many))
    assert len(one.names) <= MAX_FIELDS + 10
    assert names(ask(**many), ask(**{**many, "f0999": 0})) == ("other parameters",)
    assert names(ask(**many), ask(**{**many, "f0001": 0})) == ("parameter f0001",)


def test_a_conversation_of_ever_so_many_turns_has_a_short_sketch() -> None:
    turns = [turn(f"t{i}", "user" if i % 2 == 0 else "assistant") for i in range(500)]
    one = ask(before=turns)
    assert len(pieces(of(one).turns)) == MAX_TURNS + 1
    assert names(one, ask(before=[*turns[:3], turn("other"), *turns[4:]])) == ("earlier turn 4",)
    assert names(one, ask(before=[*turns[:300], turn("other"), *turns[301:]])) == ("earlier turns from 128 on",)
    assert names(one, ask("Else?", before=turns)) == ("question",)


def test_a_later_turn_of_a_conversation_is_known_as_such() -> None:
    first = ask()
    later = ask("And then?", before=[*TURNS, turn("How are you?"), turn("Fine.", "assistant")])
    assert continues(of(later), of(first))
    assert not continues(of(first), of(later))
    assert not continues(of(first), of(first))
    assert not continues(of(ask("And then?", before=[*TURNS, turn("Else?"), turn("Fine.", "assistant")])), of(first))
    assert not continues(of(replace(later, model="gpt-y")), of(first))


def test_a_sketch_holds_no_text_and_says_nothing_without_the_secret() -> None:
    canary = "CANARY-7f3a"
    asked = ask(canary, before=[turn(canary, "system"), turn(canary)], stop=canary, headers={"openai-beta": canary})
    mine = of(asked)
    held = json.dumps([mine.names, mine.asks]).encode() + mine.digests + mine.turns + mine.key
    assert canary.encode() not in held
    other = sketch(asked, b"t" * 16)
    assert not set(pieces(mine.digests)) & set(pieces(other.digests))
    assert not set(pieces(mine.turns)) & set(pieces(other.turns))
