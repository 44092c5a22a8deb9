"""A whole answer -> the stream that a client of the official SDK understands."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.cacheability import well_formed
from gateway.wire.render import client_event, render_stream
from gateway.wire.sse import EventParser
from tests.gateway.values import few, json_values, some, texts
from tests.gateway.wire.answers import Json, chat_answers, text_answers
from tests.gateway.wire.streams import assembled, events
from tests.support.upstream import chat_answer, text_answer


def chunks_of(answer: Json, api: Any = "chat", *, usage: bool = False) -> list[Json]:
    return events(render_stream(api, answer, include_usage=usage))


def with_message(**fields: Any) -> Json:
    message = {"role": "assistant", "content": None, "refusal": None, **fields}
    return chat_answer("x", choices=[{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}])


@few
@given(chat_answers())
def test_the_chunks_have_the_shape_that_clients_rely_on(answer: Json) -> None:
    chunks = chunks_of(answer)
    started, ended = set(), set()
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert {k: chunk[k] for k in ("id", "created", "model")} == {k: answer[k] for k in ("id", "created", "model")}
        (choice,) = chunk["choices"]
        assert {"index", "delta", "finish_reason", "logprobs"} <= choice.keys()
        index = choice["index"]
        assert index not in ended
        assert ("role" in choice["delta"]) == (index not in started)
        started.add(index)
        if choice["finish_reason"] is not None:
            assert choice["delta"] == {}
            ended.add(index)
        assert all(type(call["index"]) is int for call in choice["delta"].get("tool_calls", ()))
        assert choice["logprobs"] is None or {"content", "refusal"} <= choice["logprobs"].keys()
    assert ended == started == {c["index"] for c in answer["choices"]}


@few
@given(chat_answers() | text_answers())
def test_usage_comes_where_it_was_asked_for_and_nowhere_else(answer: Json) -> None:
    api = "chat" if answer["object"] == "chat.completion" else "completions"
    plain, asked = chunks_of(answer, api), chunks_of(answer, api, usage=True)
    assert all("usage" not in chunk and chunk["choices"] for chunk in plain)
    if "usage" in answer:
        *ordinary, last = asked
        assert (last["choices"], last["usage"]) == ([], answer["usage"])
    else:
        ordinary = asked
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in ordinary)
    assert [{k: v for k, v in c.items() if k != "usage"} for c in ordinary] == plain


def test_text_comes_in_pieces_of_whole_words() -> None:
    text = "word " * 100 + "x" * 200
    pieces = [c["choices"][0]["delta"].get("content") for c in chunks_of(chat_answer(text))]
    texts = [p for p in pieces if p]
    assert "".join(texts) == text
    assert len(texts) > 5
    assert all(len(p) <= 81 for p in texts)
    assert all(p.endswith(" ") for p in texts[:5])


LONG = "longer words " * 50


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"refusal": LONG}, ["refusal"]),
        ({"reasoning_content": LONG, "content": "x"}, ["reasoning_content"]),
        ({"reasoning": "x" * 999, "content": "x"}, ["reasoning"]),
        ({"function_call": {"name": "f", "arguments": LONG}}, ["function_call", "arguments"]),
        ({"tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": LONG}}]}, None),
        ({"tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": LONG}}]}, None),
    ],
)
def test_nothing_long_that_a_message_says_comes_at_once(fields: Json, path: list[str] | None) -> None:
    answer = with_message(**fields)
    chunks = chunks_of(answer)
    assert assembled(chunks) == {k: v for k, v in answer.items() if k != "usage"}
    assert max(len(json.dumps(c["choices"])) for c in chunks) < 400
    pieces = [c["choices"][0]["delta"] for c in chunks]
    for name in path or ():
        pieces = [piece[name] for piece in pieces if piece.get(name)]
    assert len(pieces) > 5


def test_only_the_first_piece_of_a_call_names_it() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": LONG}, "x": {"arguments": LONG}}
    _, first, *others, _ = [c["choices"][0]["delta"] for c in chunks_of(with_message(tool_calls=[call]))]
    assert first["tool_calls"][0]["id"] == "a"
    for delta in others:
        (piece,) = delta["tool_calls"]
        assert (piece["index"], piece.keys(), piece["function"].keys()) == (0, {"index", "function"}, {"arguments"})


def test_what_clients_do_not_join_comes_whole() -> None:
    first, *others = chunks_of(with_message(content="x", signature=LONG, thinking={"text": LONG}))
    assert first["choices"][0]["delta"]["signature"] == LONG
    assert all("signature" not in c["choices"][0]["delta"] for c in others)


def test_a_choices_own_fields_come_first_and_short_ones_again_at_its_end() -> None:
    """The official Python client takes them from the first chunk; who asks why it stopped looks at the last."""
    answer = chat_answer("one two")
    answer["choices"][0] |= {"stop_reason": 7, "content_filter_results": {"a": 1}, "token_ids": [1, 2]}
    first, _, last = [c["choices"][0] for c in chunks_of(answer)]
    assert (first["stop_reason"], first["content_filter_results"], first["token_ids"]) == (7, {"a": 1}, [1, 2])
    assert last["stop_reason"] == 7
    assert last.keys().isdisjoint({"content_filter_results", "token_ids"})


def test_choices_come_in_the_order_of_their_index() -> None:
    """The official Python client mistakes the second for the first otherwise."""
    answer = chat_answer("x")
    (choice,) = answer["choices"]
    answer["choices"] = [{**choice, "index": index} for index in (2, 0, 1)]
    indexes = [c["choices"][0]["index"] for c in chunks_of(answer)]
    assert indexes == sorted(indexes)


def test_log_probabilities_have_both_keys() -> None:
    answer = chat_answer("x")
    answer["choices"][0]["logprobs"] = {"content": [{"token": "x"}]}
    assert chunks_of(answer)[-1]["choices"][0]["logprobs"] == {"content": [{"token": "x"}], "refusal": None}


def test_content_in_parts_is_not_cut() -> None:
    parts = [{"type": "text", "text": LONG}]
    first, last = [c["choices"][0]["delta"] for c in chunks_of(with_message(content=parts))]
    assert (first["content"], last) == (parts, {})


@some
@given(st.text(max_size=300) | st.text(" \n\r\u2028x", max_size=300))
def test_no_text_is_lost_or_breaks_the_framing(text: str) -> None:
    chat = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks_of(chat_answer(text)))
    plain = "".join(c["choices"][0]["text"] for c in chunks_of(text_answer(text), "completions"))
    assert chat == plain == text


def test_null_content_stays_null() -> None:
    first = chunks_of(with_message(refusal="No."))[0]["choices"][0]["delta"]
    assert first == {"role": "assistant", "content": None, "refusal": "No."}


def test_a_message_without_a_role_is_the_assistants() -> None:
    for role in ({}, {"role": None}):
        choice = {"index": 0, "message": {"content": "x", **role}, "finish_reason": "stop"}
        first, *others = chunks_of(chat_answer("x", choices=[choice]))
        assert first["choices"][0]["delta"]["role"] == "assistant"
        assert all("role" not in c["choices"][0]["delta"] for c in others)


def test_tool_calls_that_bring_an_index_of_their_own_stay_apart() -> None:
    """Some servers number tool calls in whole answers as well, not always rightly."""
    calls = [{"index": 0, "id": i, "type": "function", "function": {"name": i, "arguments": "{}"}} for i in "ab"]
    chunks = chunks_of(with_message(tool_calls=calls))
    indexes = [call["index"] for c in chunks for call in c["choices"][0]["delta"].get("tool_calls", ())]
    assert indexes == [0, 1]


ODD_ANSWERS: list[Json] = [
    {"choices": [{"index": 0, "message": {"content": "x"}}]},
    {"choices": [{"index": 0, "message": {"content": "x", "tool_calls": 5}, "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "message": {"content": "x", "tool_calls": ["a"]}, "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "message": {"content": [{"type": "text"}]}, "finish_reason": "stop"}]},
]
anything = json_values(max_leaves=5)
odd_choices = st.fixed_dictionaries(
    {
        "index": st.integers(),
        "message": st.dictionaries(texts | st.sampled_from(["role", "content", "tool_calls"]), anything),
    },
    optional={"finish_reason": anything, "logprobs": anything, "text": texts},
)


@some
@given(st.fixed_dictionaries({"choices": st.lists(odd_choices, max_size=2)}), st.booleans())
@example(ODD_ANSWERS[0], False)
@example(ODD_ANSWERS[1], False)
@example(ODD_ANSWERS[2], False)
@example(ODD_ANSWERS[3], False)
def test_what_is_well_formed_can_be_streamed(answer: Json, usage: bool) -> None:
    for api in ("chat", "completions"):
        if well_formed(api, answer):
            events(render_stream(api, answer, include_usage=usage))


# Live events


def seen(data: bytes | None) -> list[Json]:
    if data is None:
        return []
    parser = EventParser()
    return [json.loads(event) for event in parser.feed(data) + parser.finish()]


def test_an_event_without_usage_passes_as_it_is() -> None:
    data = '{"choices": [{"delta": {"content": "é"}}], "x": 1.0}'.encode()
    for usage in (True, False):
        assert client_event(data, json.loads(data), usage=usage) == b"data: " + data + b"\n\n"


@pytest.mark.parametrize(
    ("chunk", "usage", "expected"),
    [
        ({"choices": [{"a": 1}], "usage": None}, True, [{"choices": [{"a": 1}], "usage": None}]),
        ({"choices": [{"a": 1}], "usage": None}, False, [{"choices": [{"a": 1}]}]),
        ({"choices": [{"a": 1}], "usage": {"x": 1}}, False, [{"choices": [{"a": 1}]}]),
        ({"choices": [], "usage": {"x": 1}}, True, [{"choices": [], "usage": {"x": 1}}]),
        ({"choices": [], "usage": {"x": 1}}, False, []),
        ({"usage": {"x": 1}}, False, []),
        ({"choices": [], "moderation": 1}, False, [{"choices": [], "moderation": 1}]),
        ({"choices": [], "moderation": 1, "usage": None}, False, [{"choices": [], "moderation": 1}]),
        ({"choices": [], "id": "c", "usage": None}, False, []),
        ({"error": {"message": "x"}, "usage": None}, False, [{"error": {"message": "x"}}]),
    ],
)
def test_usage_is_kept_from_who_did_not_ask(chunk: Json, usage: bool, expected: list[Json]) -> None:
    assert seen(client_event(json.dumps(chunk).encode(), chunk, usage=usage)) == expected


def test_an_event_of_several_lines_arrives_whole() -> None:
    """An upstream may send one JSON object as several `data:` lines; the parser joins them with line feeds."""
    parser = EventParser()
    (data,) = parser.feed(b'data: {\ndata: "choices": [{"delta": {"content": "x"}}]\ndata: }\n\n')
    chunk = json.loads(data)
    for usage in (True, False):
        assert seen(client_event(data, chunk, usage=usage)) == [chunk]


def test_what_comes_beside_the_choices_goes_out_once() -> None:
    """In every chunk it would make the stream of a long answer as many times as large."""
    text = "word " * 20_000
    extra = {"citations": ["x" * 1000] * 20}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", **extra, "choices": [choice]}
    data = render_stream("chat", answer, include_usage=False)
    assert data.count(b"citations") == 1
    assert len(data) < 10 * len(text)
