"""Streams that bend the rules, as servers are known to send them: the answer is what they meant."""

import tracemalloc
from typing import Any

import msgspec
import pytest

from gateway.wire.assemble import Assembler
from gateway.wire.merge import Text
from gateway.wire.render import render_stream
from tests.gateway.wire.answers import Json
from tests.gateway.wire.streams import FIRST_OF_AZURE, assembled, chunk, events

SAFE = {"hate": {"filtered": False, "severity": "safe"}}


def message_of(*deltas: Json) -> Json:
    (choice,) = assembled([*(chunk(delta) for delta in deltas), chunk({}, "stop")])["choices"]
    message: Json = choice["message"]
    return message


def calls_of(*pieces: Json) -> list[tuple[Any, Any, Any]]:
    calls = message_of(*({"tool_calls": [piece]} for piece in pieces))["tool_calls"]
    assert all("index" not in call for call in calls)
    return [(call.get("id"), call["function"].get("name"), call["function"].get("arguments")) for call in calls]


def piece(index: Any = None, id_: str | None = None, name: str | None = None, arguments: str = "") -> Json:
    fields = {"index": index, "id": id_, "type": "function" if name else None}
    function = {"name": name, "arguments": arguments} if name is not None else {"arguments": arguments}
    return {**{k: v for k, v in fields.items() if v is not None}, "function": function}


# The answer as a whole


def test_a_first_chunk_without_choices_is_part_of_the_answer() -> None:
    """Azure: the result of the prompt's filter, with everything else empty."""
    answer = assembled([FIRST_OF_AZURE, chunk({"content": "x"}), chunk({}, "stop")])
    assert {k: answer[k] for k in ("id", "object", "created", "model")} == {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
    }
    chunks = events(render_stream("chat", answer, include_usage=False))
    assert [c.get("prompt_filter_results") for c in chunks] == [
        FIRST_OF_AZURE["prompt_filter_results"],
        *[None] * (len(chunks) - 1),
    ]
    assert all(c["choices"] and c["id"] == "c" for c in chunks)


def test_an_empty_id_takes_nothing_back_and_filter_results_are_not_joined() -> None:
    """Azure's asynchronous filter sends results between the pieces."""
    late = {"id": "", "object": "", "created": 0, "model": ""}
    results = [{**late, "choices": [{"index": 0, "finish_reason": None, "content_filter_results": SAFE}]}] * 3
    answer = assembled([chunk({"content": "x"}), *results, chunk({}, "stop"), *results])
    assert (answer["id"], answer["created"], answer["model"]) == ("c", 1, "m")
    assert answer["choices"][0]["content_filter_results"] == SAFE


def test_an_answer_is_as_old_as_its_first_chunk() -> None:
    """Ollama writes the time of each chunk into it."""
    chunks = [{**chunk({"content": "x"}), "created": 1700 + i} for i in range(3)]
    assert assembled(chunks)["created"] == 1700


def test_what_must_be_there_is_there() -> None:
    answer = assembled([{"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}])
    expected = {"id": "", "created": 0, "model": ""}
    assert {k: answer[k] for k in expected} == expected
    bare = {"model": None, "choices": answer["choices"]}
    for api in ("chat", "completions"):
        for found in events(render_stream(api, bare, include_usage=True)):
            assert {k: found[k] for k in expected} == expected


def test_usage_told_anew_in_every_chunk_counts_once() -> None:
    """vLLM's `continuous_usage_stats`."""
    chunks = [{**chunk({"content": "x"}), "usage": {"completion_tokens": i}} for i in range(3)]
    assert assembled(chunks)["usage"] == {"completion_tokens": 2}


def test_choices_without_an_index_are_told_apart_by_their_place() -> None:
    def both(first: str, second: str) -> Json:
        pieces: list[Json] = [{"delta": {"content": text}, "finish_reason": None} for text in (first, second)]
        pieces[1]["index"] = None
        return {"id": "c", "choices": pieces}

    choices = assembled([both("a", "b"), both("c", "d")])["choices"]
    assert [(c["index"], c["message"]["content"]) for c in choices] == [(0, "ac"), (1, "bd")]


def test_a_choices_own_fields_are_its_latest_but_lists_go_on() -> None:
    """vLLM: token ids come piece by piece, the reason of the stop at the end."""
    pieces = [
        chunk({"content": c}, token_ids=[i], text=c, stop_reason=None, native_finish_reason="go")
        for i, c in enumerate("ab")
    ]
    (choice,) = assembled([*pieces, chunk({}, "stop", stop_reason="\n", native_finish_reason="eos")])["choices"]
    assert (choice["token_ids"], choice["text"]) == ([0, 1], "b")
    assert (choice["stop_reason"], choice["native_finish_reason"]) == ("\n", "eos")


def test_log_probabilities_have_both_keys() -> None:
    (choice,) = assembled([chunk({"content": "x"}, "stop", logprobs={"content": [{"token": "x"}]})])["choices"]
    assert choice["logprobs"] == {"content": [{"token": "x"}], "refusal": None}


def test_a_text_that_never_comes_is_empty() -> None:
    answer = assembled([{"choices": [{"index": 0, "text": None, "finish_reason": "stop"}]}], "completions")
    assert answer["choices"][0]["text"] == ""


@pytest.mark.parametrize("later", ["", None])
def test_what_is_empty_later_takes_nothing_back(later: Any) -> None:
    assembler = Assembler("chat")
    assembler.add({**chunk({"role": "assistant", "content": "x", "x": [1]}, "stop"), "service_tier": "flex"})
    assembler.add({**chunk({"role": later, "content": later, "x": later}, later), "service_tier": None})
    assert assembler.complete
    answer = assembler.result()
    message = answer["choices"][0]["message"]
    assert (message["role"], message["content"], message["x"]) == ("assistant", "x", [1])
    assert answer["service_tier"] == "flex"


def test_a_role_is_told_once_whatever_the_server_says() -> None:
    """OpenRouter repeats it in every piece, others leave it out."""
    assert message_of(*[{"role": "assistant", "content": "x"}] * 3)["role"] == "assistant"
    assert message_of({"role": None, "content": "x"})["role"] == message_of({"content": "x"})["role"] == "assistant"


def test_a_message_beside_the_deltas_does_not_count() -> None:
    (choice,) = assembled([chunk({"content": "a"}), chunk({"content": "b"}, "stop", message={"content": "b"})])[
        "choices"
    ]
    assert choice["message"]["content"] == "ab"


def test_no_text_beside_tool_calls_is_null() -> None:
    """As in the whole answers of the same servers."""
    assert message_of({"content": ""}, {"tool_calls": [piece(0, "a", "f")]})["content"] is None
    assert message_of({"content": ""}, {"tool_calls": []})["content"] == ""


def test_an_error_is_no_end() -> None:
    assembler = Assembler("chat")
    assembler.add(chunk({"content": "x"}, "stop"))
    assembler.add({"error": {"message": "out of memory"}})
    assert not assembler.complete


# Tool calls


def test_an_empty_or_another_id_of_a_later_piece_is_no_id() -> None:
    """DashScope and lmdeploy send empty ones, old vLLM a new one with each piece."""
    for later in ("", "other"):
        pieces = piece(0, "a", "f", "{"), piece(0, later, arguments="1"), {**piece(0, later, arguments="}"), "type": ""}
        assert calls_of(*pieces) == [("a", "f", "{1}")]
    assert message_of({"tool_calls": list(pieces)})["tool_calls"][0]["type"] == "function"


def test_a_name_may_be_repeated_or_come_in_pieces() -> None:
    assert calls_of(piece(0, "a", "get_x", "{"), piece(0, "a", "get_x", "}")) == [("a", "get_x", "{}")]
    assert calls_of(piece(0, "a", "get_", "{"), piece(0, "a", "x", "}"), piece(0, "a", "")) == [("a", "get_x", "{}")]


def test_calls_that_all_have_the_number_0_are_told_apart_by_their_id() -> None:
    """vLLM's parsers and Gemini."""
    pieces = piece(0, "a", "f", "1"), piece(0, "", arguments="2"), piece(0, "b", "f", "3"), piece(0, arguments="4")
    assert calls_of(*pieces) == [("a", "f", "12"), ("b", "f", "34")]
    assert len(message_of({"tool_calls": [pieces[0], pieces[2]]})["tool_calls"]) == 2


def test_pieces_without_an_index_go_on_with_the_last_call_or_that_of_their_id() -> None:
    pieces = piece(None, "a", "f", "1"), piece(arguments="2"), piece(None, "b", "g", "3"), piece(arguments="4")
    assert calls_of(*pieces) == [("a", "f", "12"), ("b", "g", "34")]
    assert calls_of(*pieces, piece(None, "a", arguments="5")) == [("a", "f", "125"), ("b", "g", "34")]
    assert calls_of(piece(None, None, "f", "1"), piece(None, None, "g", "2")) == [(None, "f", "1"), (None, "g", "2")]


def test_calls_stand_in_the_order_of_their_index() -> None:
    assert calls_of(piece(7, "b", "g"), piece(2, "a", "f"), piece(7, arguments="x")) == [
        ("a", "f", ""),
        ("b", "g", "x"),
    ]


def test_a_call_without_an_index_comes_after_those_before_it() -> None:
    calls = calls_of(piece(0, "a", "f"), piece(1, "b", "f"), piece(None, "c", "f"), piece(3, "d", "f"))
    assert [call[0] for call in calls] == ["a", "b", "c", "d"]


def test_other_kinds_of_calls_come_in_pieces_too() -> None:
    custom: Json = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}
    assert message_of({"tool_calls": [custom]}, {"tool_calls": [{"index": 0, "custom": {"input": "y"}}]})[
        "tool_calls"
    ] == [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "xy"}}]
    legacy = message_of(
        *({"function_call": call} for call in ({"name": "f", "arguments": ""}, {"arguments": "{"}, {"arguments": "}"}))
    )
    assert legacy["function_call"] == {"name": "f", "arguments": "{}"}


# What a message says


def test_reasoning_in_blocks_is_put_together_block_by_block() -> None:
    """OpenRouter. A signature holds for the whole text of its block, so the blocks must come out whole."""
    text = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    message = message_of(
        {"reasoning_details": [{**text, "text": "Let"}]},
        {"reasoning_details": [{**text, "text": " me"}, {"type": "reasoning.encrypted", "data": "x", "index": 0}]},
        {"reasoning_details": [text | {"index": 1, "text": "So"}]},
        {"reasoning_details": [{**text, "signature": "s1"}, "odd", {"no": "index"}]},
        {"reasoning_details": [{"index": 1, "text": "."}, {"no": "index"}]},
    )
    assert message["reasoning_details"] == [
        {**text, "text": "Let me", "signature": "s1"},
        {"type": "reasoning.encrypted", "data": "x", "index": 0},
        {**text, "index": 1, "text": "So."},
        "odd",
        {"no": "index"},
        {"no": "index"},
    ]


def test_content_that_comes_in_parts_is_kept() -> None:
    """Mistral: thoughts in parts, then the answer as text."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    message = message_of({"content": ""}, {"content": [thought]}, {"content": ""}, {"content": "A"}, {"content": "b."})
    assert message["content"] == [thought, {"type": "text", "text": "Ab."}]
    assert message_of({"content": [thought]}, {"content": ""})["content"] == [thought]
    mixed = message_of({"content": "A"}, {"content": "b"}, {"content": [thought]}, {"content": "c"})
    assert mixed["content"] == [{"type": "text", "text": "Ab"}, thought, {"type": "text", "text": "c"}]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message_of({"content": parts})["content"] == parts


@pytest.mark.parametrize("content", [5, {"type": "text", "text": "x"}, True])
def test_content_that_is_neither_text_nor_parts_survives(content: Any) -> None:
    assert message_of({"content": ""}, {"content": content}, {"content": None})["content"] == content


# Limits


def test_values_in_values_in_values_are_no_trouble() -> None:
    deep: Json = {}
    for _ in range(800):
        deep = {"a": deep}
    answer = assembled([chunk({"content": "x", "deep": deep}), chunk({"deep": deep}, "stop")])
    assert msgspec.json.decode(msgspec.json.encode(answer["choices"][0]["message"]["deep"])) == deep


def test_a_text_in_pieces_weighs_little_more_than_the_text() -> None:
    """Thousands of streams are open at a time, and a server may send every character on its own."""
    pieces = [f"{i % 10}" * 4 for i in range(25_000)]
    tracemalloc.start()
    try:
        text = Text()
        for one in pieces:
            text.add("".join(one))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(text) == "".join(pieces)
    assert size < 2 * len(pieces) * 4
