"""Server-sent events in any split of their bytes, against a second, simple reading of the standard."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.sse import DONE_EVENT, MAX_EVENT, EventParser, EventTooLarge, event
from tests.gateway.values import few, some


def parse(pieces: list[bytes]) -> list[bytes]:
    parser = EventParser()
    return [e for piece in pieces for e in parser.feed(piece)] + parser.finish()


def cut(raw: bytes, at: list[int]) -> list[bytes]:
    marks = [0, *sorted(i % (len(raw) + 1) for i in at), len(raw)]
    return [raw[a:b] for a, b in pairwise(marks)]


def by_the_standard(raw: bytes) -> list[bytes]:
    """Data of each event, the simple way: all bytes at hand, all line ends made equal."""
    lines = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events: list[bytes] = []
    data: list[bytes] = []
    for line in [*lines, b""]:  # a last event without its empty line counts
        if not line:
            events += [b"\n".join(data)] if data else []
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line == b"data":
            data.append(b"")
    return events


ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
lines = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8).map(lambda t: b"data: " + t.encode()),
    st.sampled_from(
        [b"", b"", b"", b"data", b"data:", b"data:x", b"data:  x", b"data: [DONE]", b": comment", b":", b"event: x"]
    ),
    st.sampled_from([b"id: 1", b"retry: 5", b"datax: 1", b" data: 1", b"data : 1", b"Data: 1", "data: é😀".encode()]),
)
streams = st.lists(st.tuples(lines, ends), max_size=12).map(lambda pairs: b"".join(line + end for line, end in pairs))
cuts = st.lists(st.integers(0, 10_000), max_size=12)


@some
@given(streams, cuts)
@example(b"data: 1\r\rdata: 2\r\r", [7, 8, 9])
@example(b"data: 1\r\n\r\ndata: 2\r\n\r\n", [8, 9, 10])
@example(b"data: 1\r\r\n\n", [8])
def test_events_are_the_same_in_every_split(raw: bytes, at: list[int]) -> None:
    expected = by_the_standard(raw)
    assert parse([raw]) == expected
    assert parse(cut(raw, at)) == expected
    assert parse([raw[i : i + 1] for i in range(len(raw))]) == expected


@some
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"d", b"data:", b" ", b":", b"x", b"\xff"]), max_size=20).map(b"".join),
    cuts,
)
def test_garbage_is_the_same_in_every_split(raw: bytes, at: list[int]) -> None:
    assert parse(cut(raw, at)) == parse([raw]) == by_the_standard(raw)


@few
@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b"")), max_size=5), cuts)
def test_what_is_written_is_read_back(datas: list[bytes], at: list[int]) -> None:
    raw = b"".join(map(event, datas)) + DONE_EVENT
    assert parse(cut(raw, at)) == [*datas, b"[DONE]"]


def test_an_event_is_given_out_as_soon_as_it_is_complete() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\n") == [b"1"]
    assert parser.feed(b"data: 2\r\n\r\n") == [b"2"]
    assert parser.feed(b"data: 3\n\ndata: 4\n\ndata") == [b"3", b"4"]
    assert parser.feed(b": 5\n\n") == [b"5"]
    assert parser.finish() == []


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_waits_for_nothing_that_follows_it(end: bytes) -> None:
    parser = EventParser()
    for number in (b"1", b"2"):
        assert parser.feed(b"data: " + number + end + end) == [number]
    assert parser.finish() == []


def test_several_data_lines_are_one_event() -> None:
    assert parse([b'data: {\ndata: "a": 1\ndata: }\n\n']) == [b'{\n"a": 1\n}']


def test_a_byte_order_mark_before_the_first_line_is_ignored() -> None:
    """WHATWG HTML, 9.2.6. The first event of a stream must not get lost by it."""
    raw = b"\xef\xbb\xbfdata: 1\n\ndata: 2\n\n"
    assert parse([raw]) == [b"1", b"2"]
    assert parse([raw[i : i + 1] for i in range(len(raw))]) == [b"1", b"2"]


def test_an_event_that_never_ends_is_refused() -> None:
    parser = EventParser()
    half = b"x" * (MAX_EVENT // 2 + 1)
    parser.feed(b"data: " + half)
    with pytest.raises(EventTooLarge):
        parser.feed(half)


def test_many_lines_of_one_event_are_refused_too() -> None:
    parser = EventParser()
    line = b"data: " + b"x" * (MAX_EVENT // 4) + b"\n"
    for _ in range(3):
        parser.feed(line)
    with pytest.raises(EventTooLarge):
        parser.feed(line * 2)


def test_many_large_events_are_fine() -> None:
    parser = EventParser()
    line = b"data: " + b"x" * (MAX_EVENT // 4) + b"\n\n"
    assert [len(parser.feed(line)) for _ in range(5)] == [1] * 5


def test_a_long_line_in_small_pieces_takes_time_in_proportion() -> None:
    """Every piece must not cost a look at, and a copy of, all that came before it."""
    parser = EventParser()
    parser.feed(b"data: ")
    begun = time.thread_time()
    for _ in range(8192):  # 2 MiB
        parser.feed(b"x" * 256)
        assert time.thread_time() - begun < 1
    assert len(parser.feed(b"\n\n")[0]) == 2**21


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"data:\n", b"data\n"])
def test_empty_lines_of_data_are_bounded_and_take_time_in_proportion(line: bytes) -> None:
    parser = EventParser()
    begun = time.thread_time()

    def feed() -> None:
        for _ in range(200):
            parser.feed(line * 10_000)

    with pytest.raises(EventTooLarge):
        feed()
    assert time.thread_time() - begun < 2
