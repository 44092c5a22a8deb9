"""Chunks -> the whole answer."""

import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.assemble import Assembler
from gateway.wire.merge import merged
from gateway.wire.render import render_stream
from tests.gateway.values import few, json_values, some, texts
from tests.gateway.wire.answers import Json, chat_answers, events, text_answers
from tests.support.upstream import chat_answer, chat_chunks


def assembled(chunks: list[Json], api: Any = "chat", *, asked: int = 1) -> Json:
    assembler = Assembler(api)
    for chunk in chunks:
        assembler.add(chunk)
    return assembler.result()


def chunk(delta: Json | None = None, finish: str | None = None, *, index: int = 0, **more: Any) -> Json:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [{"index": index, "delta": delta or {}, "finish_reason": finish, **more}]}


# There and back


@few
@given(chat_answers(), st.booleans())
def test_a_rendered_chat_answer_is_assembled_to_the_same(answer: Json, usage: bool) -> None:
    expected = answer if usage else {k: v for k, v in answer.items() if k != "usage"}
    back = assembled(events(render_stream("chat", answer, include_usage=usage)), asked=len(answer["choices"]))
    assert back == expected


@few
@given(text_answers(), st.booleans())
def test_a_rendered_completion_is_assembled_to_the_same(answer: Json, usage: bool) -> None:
    expected = answer if usage else {k: v for k, v in answer.items() if k != "usage"}
    assert assembled(events(render_stream("completions", answer, include_usage=usage)), "completions") == expected


def split_further(data: st.DataObject, chunks: list[Json]) -> list[Json]:
    """The same stream in other pieces: texts cut anywhere, choices of one chunk shuffled together."""
    out: list[Json] = []
    for piece in chunks:
        for choice in piece["choices"] or [None]:
            if choice is None:
                out.append(piece)
                continue
            delta = choice["delta"]
            text = delta.get("content")
            calls = delta.get("tool_calls")
            if isinstance(text, str) and len(text) > 1:
                at = data.draw(st.integers(1, len(text) - 1))
                halves: list[Json] = [{**delta, "content": text[:at]}, {"content": text[at:]}]
            elif calls and calls[0]["function"]["arguments"]:
                arguments = calls[0]["function"]["arguments"]
                at = data.draw(st.integers(0, len(arguments)))
                first = {**calls[0], "function": {**calls[0]["function"], "arguments": arguments[:at]}}
                rest = {"index": calls[0]["index"], "function": {"arguments": arguments[at:]}}
                halves = [{"tool_calls": [first]}, {"tool_calls": [rest]}]
            else:
                halves = [delta]
            *before, last = halves
            out += [
                {**piece, "choices": [{**choice, "delta": d, "finish_reason": None, "logprobs": None}]} for d in before
            ]
            out.append({**piece, "choices": [{**choice, "delta": last}]})
    return out


def interleaved(data: st.DataObject, chunks: list[Json]) -> list[Json]:
    """The chunks of several choices in another order, each choice's own order kept."""
    queues: dict[int, list[Json]] = {}
    tail = []
    for piece in chunks:
        if piece["choices"]:
            queues.setdefault(piece["choices"][0]["index"], []).append(piece)
        else:
            tail.append(piece)
    out = []
    while queues:
        index = data.draw(st.sampled_from(sorted(queues)))
        out.append(queues[index].pop(0))
        if not queues[index]:
            del queues[index]
    return out + tail


@few
@given(chat_answers(), st.data())
def test_no_other_split_or_order_changes_the_answer(answer: Json, data: st.DataObject) -> None:
    chunks = events(render_stream("chat", answer, include_usage=True))
    asked = len(answer["choices"])
    assert assembled(interleaved(data, split_further(data, chunks)), asked=asked) == assembled(chunks, asked=asked)


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
    for _ in range(3):
        piece = chunk({"content": "a", "tool_calls": [{"index": 0, "function": {"arguments": "x"}}], "x": {"l": [1]}})
        before = repr(piece)
        assembler.add(piece)
        assert repr(piece) == before


def test_looking_at_the_answer_so_far_changes_nothing() -> None:
    pieces = ({"content": "a", "x": [1]}, {"content": "b", "x": [2]}, {"content": "c", "x": [3]})
    assembler = Assembler("chat")
    for delta in pieces:
        assembler.add(chunk(delta))
        assert assembler.result() == assembler.result()
    message = assembler.result()["choices"][0]["message"]
    assert (message["content"], message["x"]) == ("abc", [1, 2, 3])


# Upstreams that lie


odd = st.dictionaries(
    st.sampled_from(["index", "delta", "finish_reason", "message", "logprobs", "text", "x"]),
    json_values() | st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), json_values()),
)
odd_chunks = st.lists(
    st.dictionaries(texts, json_values(), max_size=2)
    | st.fixed_dictionaries({"choices": st.lists(odd | json_values(), max_size=2) | json_values()}),
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
    assert isinstance(assembled(chunks, api), dict)


@few
@given(json_values(), json_values())
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
