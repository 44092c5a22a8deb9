"""Chunks -> the whole answer."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.assemble import Assembler
from gateway.wire.merge import merged
from tests.gateway.values import few, json_values, some, texts
from tests.gateway.wire.answers import Json
from tests.gateway.wire.streams import assembled, chunk
from tests.support.upstream import chat_answer, chat_chunks


def test_the_stream_of_a_provider_is_assembled_to_its_answer() -> None:
    answer = chat_answer("Héllo  wörld, 😀!")
    assert assembled(chat_chunks(answer, include_usage=True)) == answer


# Piece by piece


def test_parallel_tool_calls_are_told_apart_by_their_index() -> None:
    def call(index: int, arguments: str, **more: Any) -> Json:
        return chunk(
            {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more.pop("f", {})}, **more}]}
        )

    chunks = [
        chunk({"role": "assistant", "content": None}),
        call(1, "", id="b", type="function", f={"name": "g"}),
        call(0, "", id="a", type="function", f={"name": "f"}),
        call(0, '{"x"'),
        call(1, "[1"),
        call(0, ": 1}"),
        call(1, "]"),
        chunk({}, "tool_calls"),
    ]
    message = assembled(chunks)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "[1]"}},
    ]


def test_tool_calls_without_an_index_keep_their_order() -> None:
    calls = [{"id": c, "type": "function", "function": {"name": c, "arguments": "{}"}} for c in "abc"]
    message = assembled([chunk({"tool_calls": [calls[0], calls[1]]}), chunk({"tool_calls": [calls[2]]}, "tool_calls")])
    assert message["choices"][0]["message"]["tool_calls"] == calls


def test_unknown_fields_survive_by_their_type() -> None:
    answer = assembled(
        [
            chunk(
                {"role": "assistant", "reasoning_content": "Hm", "annotations": [1], "x": {"a": "1"}, "n": 1},
                x_choice=[1],
            ),
            chunk({"reasoning_content": "m.", "annotations": [2], "x": {"a": "2", "b": None}, "n": 2}, x_choice=[2]),
            {**chunk({}, "stop"), "service_tier": "default", "x_top": {"a": 1}},
        ]
    )
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["annotations"], message["n"]) == ("Hmm.", [1, 2], 2)
    assert message["x"] == {"a": "12", "b": None}
    assert choice["x_choice"] == [1, 2]
    assert (answer["service_tier"], answer["x_top"]) == ("default", {"a": 1})


def test_logprobs_are_put_one_after_the_other() -> None:
    pieces = [chunk({"content": c}, logprobs={"content": [{"token": c}], "refusal": None}) for c in "ab"]
    (choice,) = assembled([*pieces, chunk({}, "stop", logprobs=None)])["choices"]
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}


def test_usage_is_that_of_the_last_chunk_and_obfuscation_is_dropped() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    chunks = [{**chunk({"content": "x"}), "usage": None, "obfuscation": "abc"}, {**chunk({}, "stop"), "usage": None}]
    answer = assembled([*chunks, {**chunk(), "choices": [], "usage": usage}])
    assert answer["usage"] == usage
    assert "obfuscation" not in answer
    assert "usage" not in assembled(chunks)


def test_an_answer_is_complete_when_every_choice_that_began_has_ended() -> None:
    assembler = Assembler("chat")
    assert not assembler.complete
    states = []
    for piece in (
        chunk({"content": "x"}),
        chunk({}, "stop"),
        chunk({"content": "y"}, index=1),
        chunk({}, "stop", index=1),
    ):
        assembler.add(piece)
        states.append(assembler.complete)
    assert states == [False, True, False, True]
    assembler.add({**chunk(), "choices": []})
    assert assembler.complete
    assembler.add(chunk({"content": "z"}, index=2))
    assert not assembler.complete


@pytest.mark.parametrize("finish", [None, "", 0])
def test_an_empty_finish_reason_is_none(finish: Any) -> None:
    assembler = Assembler("chat")
    assembler.add(chunk({"content": "x"}, finish))
    assert not assembler.complete


def test_a_later_null_takes_no_finish_reason_or_role_back() -> None:
    (choice,) = assembled([chunk({"role": "assistant", "content": "x"}, "stop"), chunk({"role": None})])["choices"]
    assert (choice["finish_reason"], choice["message"]["role"]) == ("stop", "assistant")


def test_a_chunk_can_still_be_sent_on_after_it_was_added() -> None:
    """The client gets what the upstream sent, not what has been put together so far."""
    assembler = Assembler("chat")
    call = {"index": 0, "function": {"arguments": "x"}}
    blocks = [{"index": 0, "type": "t", "text": "x"}]
    delta = {"content": ["a"], "refusal": "r", "tool_calls": [call], "x": {"l": [1], "d": {"s": "x"}}, "blocks": blocks}
    logprobs = {"content": [{"token": "a"}], "refusal": None}
    pieces = [msgspec.json.encode(chunk(delta, logprobs=logprobs, x_choice=[1], x_dict={"a": [1]}))] * 3
    chunks = [msgspec.json.decode(piece) for piece in pieces]
    for each in chunks:
        assembler.add(each)
        assembler.result()
    assert [msgspec.json.encode(each) for each in chunks] == pieces


def test_looking_at_the_answer_so_far_changes_nothing() -> None:
    pieces = [
        {"content": c, "x": [i], "tool_calls": [{"index": i % 2, "function": {"arguments": c}}]}
        for i, c in enumerate("abc")
    ]
    assembler, unseen = Assembler("chat"), Assembler("chat")
    looks, copies = [], []
    for delta in pieces:
        piece = chunk(delta, logprobs={"content": [{"token": "x"}], "refusal": None}, x_choice=[1])
        assembler.add(piece)
        unseen.add(piece)
        looks.append(assembler.result())
        copies.append(msgspec.json.encode(looks[-1]))
    assert [msgspec.json.encode(look) for look in looks] == copies
    assert looks[-1] == unseen.result()
    message = looks[-1]["choices"][0]["message"]
    assert (message["content"], message["x"]) == ("abc", [0, 1, 2])
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ["ac", "b"]


# Upstreams that lie


anything = json_values(max_leaves=5)
odd = st.dictionaries(
    st.sampled_from(["index", "delta", "finish_reason", "message", "logprobs", "text", "x"]),
    anything | st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), anything, max_size=3),
    max_size=4,
)
odd_chunks = st.lists(
    st.dictionaries(texts, anything, max_size=2)
    | st.fixed_dictionaries({"choices": st.lists(odd | anything, max_size=2) | anything}),
    max_size=3,
)
NO_SUCH_INDEX: list[Json] = [chunk({"tool_calls": [{"index": None}, {"index": "1"}, {"index": 0}]})]


@some
@given(st.sampled_from(["chat", "completions"]), odd_chunks)
@example("chat", NO_SUCH_INDEX)
@example("chat", [chunk({"tool_calls": [{"index": [1]}]})])
@example("chat", [{"choices": 5}])
@example("chat", [{"choices": [{"index": 0, "message": "x"}]}, chunk({"content": "y"})])
def test_any_objects_are_assembled_to_something(api: Any, chunks: list[Json]) -> None:
    """What came out is judged afterwards (cacheability); on the way nothing may fail, or a client gets our 500 for an
    upstream's fault."""
    msgspec.json.encode(assembled(chunks, api))


@few
@given(anything, anything)
def test_merging_keeps_what_is_there_when_nothing_comes(old: Any, new: Any) -> None:
    assert merged(old, None) == old
    assert merged(None, new) == new
    merged(old, new)


def test_a_long_answer_takes_time_in_proportion() -> None:
    """Every piece must not cost a copy of all that came before it."""
    assembler = Assembler("chat")
    begun = time.thread_time()
    for _ in range(40_000):
        logprobs = {"content": [{"token": "four"}], "refusal": None}
        assembler.add(chunk({"content": "four"}, logprobs=logprobs))
        assert time.thread_time() - begun < 1.5
    (choice,) = assembler.result()["choices"]
    assert len(choice["message"]["content"]) == 160_000
    assert len(choice["logprobs"]["content"]) == 40_000
