"""Any answer, in any stream of it: what every client ends up with is the same."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from gateway.normalize import Api
from gateway.wire.render import client_event, render_stream, with_usage, without_usage
from gateway.wire.sse import DONE, EventParser
from tests.gateway.values import few, some
from tests.gateway.wire.answers import Json, chat_answers, text_answers
from tests.gateway.wire.streams import FIRST_OF_AZURE, Chance, assembled, events, on_the_wire, read, stream

answers = chat_answers() | text_answers()
chances = st.integers(0, 2**32).map(Chance)


def api_of(answer: Json) -> Api:
    return "chat" if answer["object"] == "chat.completion" else "completions"


def live(chunks: list[Json], *, usage: bool) -> list[Json]:
    """What a client sees of this stream."""
    seen = (client_event(msgspec.json.encode(chunk), chunk, usage=usage) for chunk in chunks)
    return plain_events(b"".join(event for event in seen if event is not None))


def plain_events(raw: bytes) -> list[Json]:
    return [json.loads(data) for data in EventParser().feed(raw)]


@some
@given(answers, chances)
def test_any_stream_of_an_answer_in_any_bytes_is_assembled_to_it(answer: Json, chance: Chance) -> None:
    parser = EventParser()
    pieces = on_the_wire(stream(answer, chance), chance)
    *datas, end = [found for piece in pieces for found in parser.feed(piece)] + parser.finish()
    assert end == DONE
    assert assembled([json.loads(d) for d in datas], api_of(answer)) == answer


@some
@given(answers, st.booleans(), chances)
def test_a_replay_reads_like_the_stream_it_was_made_from(answer: Json, usage: bool, chance: Chance) -> None:
    chunks = stream(answer, chance)
    seen = live(chunks, usage=usage)
    api = api_of(answer)
    replayed = events(render_stream(api, assembled(chunks, api), include_usage=usage))
    assert read(replayed) == read(seen)
    assert ("usage" in read(seen)) == (usage and "usage" in answer)


@some
@given(answers, st.booleans())
def test_an_answer_comes_back_from_its_stream(answer: Json, usage: bool) -> None:
    api = api_of(answer)
    expected = answer if usage else {k: v for k, v in answer.items() if k != "usage"}
    assert assembled(events(render_stream(api, answer, include_usage=usage)), api) == expected


@few
@given(answers, chances)
def test_padding_is_not_kept(answer: Json, chance: Chance) -> None:
    chunks = [{**chunk, "obfuscation": "a1b2"} for chunk in stream(answer, chance)]
    api = api_of(answer)
    whole = assembled(chunks, api)
    assert whole == answer
    replayed = events(render_stream(api, {**whole, "obfuscation": "a1b2"}, include_usage=True))
    assert all("obfuscation" not in chunk for chunk in replayed)


def same(found: Any, expected: Any) -> bool:
    """Equal, but for what the SDK adds for itself, and for null where something is left out."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = {k for k, v in found.items() if v is not None} - {"parsed", "parsed_arguments"} | expected.keys()
        return all(same(found.get(name), expected.get(name)) for name in names)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


def by_the_sdk(chunks: list[Json]) -> Json:
    state: Any = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    whole: Json = state.current_completion_snapshot.to_dict()
    for choice in whole["choices"]:
        for index, call in enumerate(choice["message"].get("tool_calls") or ()):
            assert call.pop("index") == index
    return whole


@some
@given(chat_answers())
def test_the_official_client_accumulates_the_answer(answer: Json) -> None:
    found = by_the_sdk(events(render_stream("chat", answer, include_usage=True)))
    assert same(found, answer), (found, answer)


# The forms of a live stream


@some
@given(answers, chances)
def test_a_client_that_joins_late_sees_what_is_behind_it_in_its_own_form(answer: Json, chance: Chance) -> None:
    chunks = stream(answer, chance)
    azures = chance.choice([[], [FIRST_OF_AZURE], [{**FIRST_OF_AZURE, "usage": None}]])
    first = [dict(chunk) for chunk in azures]
    asked, plain = (
        b"".join(
            event
            for chunk in [*first, *chunks]
            if (event := client_event(msgspec.json.encode(chunk), chunk, usage=usage)) is not None
        )
        for usage in (True, False)
    )
    assert without_usage(asked) == plain
    assert without_usage(plain) == plain
    seen = plain_events(with_usage(plain))
    assert seen == [{**chunk, "usage": None} for chunk in plain_events(plain)]
    assert plain_events(with_usage(asked)) == [{"usage": None, **chunk} for chunk in plain_events(asked)]
    assert without_usage(with_usage(plain)) == plain
    assert [c for c in seen if not c["choices"]] == [{**c, "usage": None} for c in first]


def test_no_events_are_no_events() -> None:
    assert with_usage(b"") == without_usage(b"") == b""


@pytest.mark.parametrize("chunk", [{"error": {"message": "x"}}, {"error": {"message": "x"}, "choices": []}])
def test_an_error_is_for_everybody(chunk: Json) -> None:
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    assert plain_events(without_usage(data)) == [chunk]
    assert plain_events(with_usage(data)) == [chunk if "choices" not in chunk else {**chunk, "usage": None}]
    usage = {**chunk, "usage": {"total_tokens": 1}}
    assert live([usage], usage=False) == [chunk]
    assert live([usage], usage=True) == [usage]


# Bytes


def test_every_two_cuts_of_a_stream_give_the_same_events() -> None:
    raw = '\ufeffdata: {"a": "é😀"}\r\n\r\n: x\r\rdata: 1\ndata\ndata: 2\r\n\r\n\ndata:[DONE]\n\n'.encode()
    expected = ['{"a": "é😀"}'.encode(), b"1\n\n2", b"[DONE]"]
    for a in range(len(raw) + 1):
        for b in range(a, len(raw) + 1):
            parser = EventParser()
            marks = pairwise([0, a, b, len(raw)])
            assert [found for i, j in marks for found in parser.feed(raw[i:j])] == expected
