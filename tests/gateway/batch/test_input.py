"""Input files that are sound, and files in any pieces."""

import json
import time
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batch.input import Reader
from gateway.strict_json import parse_object
from tests.gateway.batch.input_lines import CHAT, line, read, request
from tests.gateway.values import json_values, some

BOM = b"\xef\xbb\xbf"
A, B = line("a"), line("b")


@pytest.mark.parametrize(
    ("data", "numbers"),
    [
        pytest.param(A + b"\n" + B + b"\n", [1, 2], id="plain"),
        pytest.param(A + b"\n" + B, [1, 2], id="no-final-newline"),
        pytest.param(A + b"\r\n" + B + b"\r\n", [1, 2], id="crlf"),
        pytest.param(A + b"\r\n" + B + b"\r", [1, 2], id="crlf-cut-off"),
        pytest.param(BOM + A + b"\n" + B, [1, 2], id="bom"),
        pytest.param(BOM + b"\r\n" + A + b"\n" + B, [2, 3], id="bom-alone-on-its-line"),
        pytest.param(b"\n\r\n" + A + b"\n \t \n\n" + B + b"\n\n \n", [3, 6], id="blank-lines"),
        pytest.param(b"  \t" + A + b"  \n " + B + b" ", [1, 2], id="blanks-around"),
    ],
)
def test_every_usual_way_to_end_lines_is_read(data: bytes, numbers: list[int]) -> None:
    lines, reader = read(data)
    assert [(found.number, found.custom_id) for found in lines] == list(zip(numbers, "ab", strict=True))
    assert (reader.faults, reader.total, reader.model) == ([], 2, "m")


def test_a_body_stays_as_it_stands_in_the_file() -> None:
    body = rb'{ "model":"m",  "seed": 1.50, "messages":[{"content":"\u00e9 \ud83d\ude00 ' + "é".encode() + rb'"}] }'
    sent = rb'{"method":"POST" , "\u0062ody" : ' + body + rb' ,"custom_id":"\u0061","url":"/v1\/chat/completions"}'
    lines, _ = read(sent)
    assert [(found.custom_id, found.body) for found in lines] == [("a", body)]


@some
@given(json_values(), st.booleans())
def test_any_body_is_taken_out_whole(value: Any, ascii_only: bool) -> None:
    body = {"model": "m", "value": value}
    sent = json.dumps(request(body=body), ensure_ascii=ascii_only, indent=None).encode()
    lines, reader = read(sent, max_line=100_000)
    assert not reader.faults
    assert lines[0].body == json.dumps(body, ensure_ascii=ascii_only).encode()
    assert parse_object(lines[0].body) == parse_object(json.dumps(body).encode())


def test_further_fields_of_a_line_are_ignored() -> None:
    lines, reader = read(line(metadata={"a": [1]}, custom_ID="b", priority=1))
    assert (len(lines), reader.faults) == (1, [])


@pytest.mark.parametrize(
    ("bodies", "model"),
    [
        pytest.param([{"model": "m"}, {"model": "m"}], "m", id="one"),
        pytest.param([{"model": "m"}, {"model": "n"}], None, id="two"),
        pytest.param([{"model": "m"}, {"model": "n"}, {"model": "m"}, {"model": "o"}], None, id="many"),
    ],
)
def test_the_model_is_that_of_all_requests(bodies: list[Any], model: str | None) -> None:
    lines, reader = read(b"\n".join(line(str(i), body=body) for i, body in enumerate(bodies)))
    assert (len(lines), reader.model) == (len(bodies), model)


@pytest.mark.parametrize("stream", [False, None, "yes"], ids=["false", "null", "judged-when-it-runs"])
def test_a_request_may_say_that_it_does_not_stream(stream: Any) -> None:
    lines, _ = read(line(body={"model": "m", "stream": stream}))
    assert len(lines) == 1


# Pieces

PARTS = [
    BOM,
    A,
    B,
    line("é😀" * 3),
    b"\n",
    b"\r\n",
    b"\r",
    b" ",
    b" " * 250,
    b"x" * 250,
    b"{",
    b'"\xff"',
    line("long", body={"model": "m", "text": "x" * 250}),
]


@some
@given(st.lists(st.sampled_from(PARTS), max_size=12), st.lists(st.integers(0, 2_000), max_size=8))
def test_any_pieces_give_the_same(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(at)]
    bytewise = [data[i : i + 1] for i in range(len(data))]
    lines, whole = read(data, max_line=200)
    for split in (pieces, bytewise):
        found, reader = read(*split, max_line=200)
        assert (reader.faults, reader.total, reader.model) == (whole.faults, whole.total, whole.model)
        if not whole.faults:
            assert found == lines


def test_lines_come_as_soon_as_they_have_ended() -> None:
    reader = Reader(CHAT, max_line=1_000)
    assert reader.feed(A[:20]) == []
    assert [found.custom_id for found in reader.feed(A[20:] + b"\n" + B)] == ["a"]
    assert [found.custom_id for found in reader.close()] == ["b"]


# Cost


def test_a_line_without_end_is_not_held() -> None:
    reader = Reader(CHAT, max_line=1 << 20)
    piece = b"x" * (1 << 20)
    tracemalloc.start()
    try:
        for _ in range(64):
            reader.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    reader.close()
    assert [fault.code for fault in reader.faults] == ["request_too_large"]


def test_of_a_request_that_was_read_little_is_held() -> None:
    data = b"\n".join(line(f"{i:04}" + "😀" * 500, body={"model": f"{i:0250}", "text": "x"}) for i in range(2_000))
    reader = Reader(CHAT, max_line=10_000)
    tracemalloc.start()
    try:
        for start in range(0, len(data), 4096):
            reader.feed(data[start : start + 4096])
        assert tracemalloc.get_traced_memory()[0] < 2_000 * 300
    finally:
        tracemalloc.stop()
    reader.close()
    assert (reader.total, reader.faults) == (2_000, [])


def test_a_large_file_is_read_in_little_time() -> None:
    content = 'He said: "hé"\n' * 240
    data = b"\n".join(line(str(i), body={"model": "m", "text": content}) for i in range(2_000))
    begun = time.process_time()
    lines, _ = read(*(data[i : i + (1 << 20)] for i in range(0, len(data), 1 << 20)), max_line=1 << 20)
    assert len(lines) == 2_000
    assert time.process_time() - begun < 1.0  # takes 0.1: what grew with the square of the file would take minutes


def test_blank_lines_take_next_to_no_time() -> None:
    piece = b"\r\n" * (1 << 19)
    reader = Reader(CHAT, max_line=1_000)
    begun = time.process_time()
    for _ in range(20):
        reader.feed(piece)
    assert time.process_time() - begun < 1.0
    assert [found.number for found in reader.feed(A + b"\n")] == [20 * (1 << 19) + 1]
