"""What has been streamed so far: every reader gets all of it, in its form, whenever it comes."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ask import Form
from gateway.feed import Feed, Log, Reader
from gateway.upstream import Event
from tests.gateway.values import few, some
from tests.support.traffic import accumulated, essence, events
from tests.support.upstream import chat_answer, chat_chunks

Json = dict[str, Any]
STREAMS: list[Form] = [form for form in get_args(Form) if form != "json"]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
ANSWER = chat_answer("one two three")


def read(log: Log, offset: int = 0, limit: int = 2**20) -> bytes:
    """All from `offset` on, taken piece by piece; each piece a number of whole events."""
    out = b""
    while piece := log.read(offset + len(out), limit):
        assert piece.endswith(b"\n\n")
        assert len(piece) <= limit or piece.count(b"\n\n") == 1
        out += piece
    return out


def rest(reader: Reader, limit: int = 2**20) -> bytes:
    """All that this one has not taken yet."""
    out = b""
    while piece := reader.take(limit):
        assert piece.endswith(b"\n\n")
        out += piece
    assert reader.behind == 0
    return out


def upstream_events(chunks: list[Json]) -> list[Event]:
    return [(json.dumps(chunk).encode(), chunk) for chunk in chunks]


def usage_at_the_end() -> list[Json]:
    """As OpenAI: null in every chunk, and a chunk of its own at the end."""
    return chat_chunks(ANSWER, include_usage=True)


def usage_in_the_last_chunk() -> list[Json]:
    """As some servers: beside the finish_reason."""
    chunks = chat_chunks(ANSWER, include_usage=False)
    return [*chunks[:-1], {**chunks[-1], "usage": USAGE}]


def usage_in_every_chunk() -> list[Json]:
    """As vLLM with continuous usage: so far, in each chunk."""
    chunks = chat_chunks(ANSWER, include_usage=False)
    running = [{**c, "usage": {**USAGE, "completion_tokens": i}} for i, c in enumerate(chunks)]
    return [*running, {**chunks[-1], "choices": [], "usage": USAGE}]


def usage_at_the_beginning() -> list[Json]:
    """As servers that count the prompt before they begin, and say no more of it."""
    chunks = chat_chunks(ANSWER, include_usage=False)
    return [{**chunks[0], "choices": [], "usage": USAGE}, *chunks]


def no_usage() -> list[Json]:
    return chat_chunks(ANSWER, include_usage=False)


KINDS = [usage_at_the_end, usage_in_the_last_chunk, usage_in_every_chunk, usage_at_the_beginning, no_usage]


def whole(data: bytes) -> Json:
    """The answer of a client that has read these events; what is null is as good as absent."""
    answer = accumulated(data.decode() + "data: [DONE]\n\n")
    return {name: value for name, value in answer.items() if value is not None}


# The log


wire = st.lists(st.binary(max_size=20).map(lambda b: b"data: " + b.replace(b"\n", b" ") + b"\n\n"), max_size=12)


@some
@given(wire, st.integers(1, 60), st.data())
def test_a_log_gives_every_reader_all_that_was_added(pieces: list[bytes], limit: int, data: st.DataObject) -> None:
    log = Log()
    for piece in pieces:
        log.add(piece)
    everything = b"".join(pieces)
    assert log.end == len(everything)
    assert read(log, limit=limit) == everything
    # Where events begin, reading may begin; and what lies before may have gone.
    starts = [len(b"".join(pieces[:n])) for n in range(len(pieces) + 1)]
    gone, offset = sorted(data.draw(st.tuples(st.sampled_from(starts), st.sampled_from(starts))))
    log.let_go(gone)
    assert log.end == len(everything)
    assert read(log, offset, limit) == everything[offset:]
    log.add(b"data: more\n\n")
    assert read(log, offset, limit) == everything[offset:] + b"data: more\n\n"


def test_letting_go_twice_or_less_than_before_changes_nothing() -> None:
    log = Log()
    log.add(b"data: a\n\ndata: b\n\n")
    for offset in (9, 9, 0):
        log.let_go(offset)
        assert (read(log, 9), log.end) == (b"data: b\n\n", 18)
    log.let_go(18)
    assert (read(log, 18), log.end) == (b"", 18)
    log.add(b"data: c\n\n")
    assert (read(log, 18), log.end) == (b"data: c\n\n", 27)


# The feed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", STREAMS)
@pytest.mark.parametrize("form", STREAMS)
@pytest.mark.parametrize("limit", [1, 300, 2**20])
def test_whoever_comes_whenever_gets_the_same_answer(form: Form, first: Form, kind: Any, limit: int) -> None:
    """One that reads from the beginning, and one that comes after each number of chunks, the last one included."""
    chunks = kind()
    feed = Feed(form)
    feed.add(upstream_events(chunks))
    expected = whole(rest(feed.reader(form)))
    assert expected.get("usage") == (USAGE if form == "sse+usage" and kind is not no_usage else None)
    assert essence(expected) == {**essence(ANSWER), "object": "chat.completion"}
    for number in range(len(chunks) + 1):
        feed = Feed(first)
        feed.add(upstream_events(chunks[:number]))
        one, lazy = feed.reader(form), feed.reader(form)
        taken = rest(one, limit)
        feed.add(upstream_events(chunks[number:]))
        assert whole(taken + rest(one, limit)) == expected, f"after {number} chunks"
        late = feed.reader(form)
        assert whole(rest(lazy, limit)) == whole(rest(late, limit)) == expected, f"after {number} chunks"


@pytest.mark.parametrize("kind", KINDS)
def test_who_did_not_ask_for_usage_sees_none(kind: Any) -> None:
    """Many clients index `choices[0]` of every chunk."""
    for first in STREAMS:
        feed = Feed(first)
        feed.add(upstream_events(kind()))
        for text in events(rest(feed.reader("sse")).decode()):
            chunk = json.loads(text)
            assert "usage" not in chunk
            assert chunk["choices"]


@pytest.mark.parametrize("form", STREAMS)
def test_what_is_still_to_be_read_is_counted(form: Form) -> None:
    for first in STREAMS:
        feed = Feed(first)
        feed.add(upstream_events(no_usage()[:3]))
        reader = feed.reader(form)
        behind = [reader.behind]
        while reader.take(1):
            behind.append(reader.behind)
        assert behind == sorted(behind, reverse=True)
        assert (len(set(behind)), behind[-1]) == (4, 0)
        feed.add(upstream_events(no_usage()[3:]))
        assert reader.behind > 0
        assert len(reader.take(2**20)) > 0
        assert (reader.behind, reader.take(1)) == (0, b"")


def test_the_end_marker_is_not_kept() -> None:
    """Clients get ours, once the answer is known to be whole."""
    feed = Feed("sse")
    feed.add([*upstream_events(no_usage()), (b"[DONE]", None)])
    assert b"[DONE]" not in rest(feed.reader("sse"))


def test_an_event_of_several_lines_becomes_one_line() -> None:
    chunk = no_usage()[0]
    for form in STREAMS:
        feed = Feed("sse")
        feed.add([(json.dumps(chunk, indent=1).encode(), chunk)])
        data = rest(feed.reader(form))
        assert data.count(b"\n") == 2
        assert plain(json.loads(events(data.decode())[0])) == chunk


def test_nothing_yet_is_nothing() -> None:
    feed = Feed("sse+usage")
    assert feed.end == 0
    for form in STREAMS:
        assert rest(feed.reader(form)) == b""
    feed.add([])
    assert feed.end == 0


@pytest.mark.parametrize("first", STREAMS)
def test_only_what_somebody_has_still_to_read_is_kept(first: Form) -> None:
    """Of each form, and of the past that the late ones translate."""
    feed = Feed(first)
    chunks = upstream_events(no_usage())
    feed.add(chunks[:4])
    other: Form = "sse" if first == "sse+usage" else "sse+usage"
    readers: list[tuple[Form, Reader]] = [(first, feed.reader(first)), (other, feed.reader(other))]
    own, late = readers[0][1], readers[1][1]
    everything = held(feed)
    feed.let_go(readers)
    assert held(feed) == everything
    own.take(2**20)
    feed.let_go(readers)
    assert held(feed) == everything  # the late one has not read it
    late.take(300)
    feed.let_go(readers)
    assert held(feed) < everything
    feed.add(chunks[4:])
    data = [rest(reader) for _, reader in readers]
    assert [len(events(piece.decode())) for piece in data] == [len(chunks) - 4, len(chunks) - 1]
    feed.let_go(readers)
    assert held(feed) == 0
    feed.add(chunks)
    feed.let_go([])
    assert held(feed) == 0


def held(feed: Feed) -> int:
    return sum(len(log._bytes) for log in feed._logs.values())


def plain(chunk: Json) -> Json:
    return {name: value for name, value in chunk.items() if name != "usage"}


odd_values = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5)
odd_chunks = st.dictionaries(
    st.sampled_from(["id", "choices", "usage", "x_extra", "obfuscation", "object"]),
    odd_values | st.lists(odd_values, max_size=2) | st.dictionaries(st.text(max_size=3), odd_values, max_size=2),
)


@few
@given(st.lists(odd_chunks, max_size=6), st.integers(0, 6), st.sampled_from(STREAMS), st.sampled_from(STREAMS))
def test_whatever_an_upstream_sends_comes_in_order(chunks: list[Json], number: int, first: Form, form: Form) -> None:
    feed = Feed(first)
    feed.add(upstream_events(chunks[:number]))
    reader = feed.reader(form)
    feed.add(upstream_events(chunks[number:]))
    found = [json.loads(text) for text in events(rest(reader, 40).decode())]
    assert [plain(chunk) for chunk in found if chunk.get("choices")] == [plain(c) for c in chunks if c.get("choices")]
