"""Vectors: read from either form, shared out, and written in either form; no digit is lost on the way."""

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cache.entry import Cost
from gateway.embeddings.render import render
from gateway.embeddings.shares import share_cost, share_tokens
from gateway.embeddings.vectors import read_vectors, whole
from gateway.errors import ApiError

Json = dict[str, Any]
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(NUMBERS, min_size=n, max_size=n), min_size=1))


def packed(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def in_base64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def item(index: Any, embedding: Any) -> Json:
    return {"object": "embedding", "index": index, "embedding": embedding}


def read(data: Any, asked: int = 1, **more: Any) -> tuple[list[bytes], Json]:
    return read_vectors(json.dumps({"object": "list", "data": data, **more}).encode(), asked)


# Reading


@given(VECTORS, st.randoms())
def test_both_forms_give_the_same_bytes_in_the_order_of_the_indexes(vectors: list[list[float]], random: Any) -> None:
    bodies = [packed(*vector) for vector in vectors]
    numbers = [item(i, vector) for i, vector in enumerate(vectors)]
    texts = [item(i, in_base64(body)) for i, body in enumerate(bodies)]
    random.shuffle(numbers)
    random.shuffle(texts)
    assert read(numbers, len(vectors))[0] == read(texts, len(vectors))[0] == bodies


def test_a_double_becomes_the_nearest_float32() -> None:
    assert read([item(0, [0.1, 1 / 3, 1, -0.0])])[0] == [packed(0.1, 1 / 3, 1.0, -0.0)]


def test_the_usage_comes_with_it() -> None:
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    assert read([item(0, [1.0])], usage=usage)[1] == {"usage": usage}
    assert read([item(0, [1.0])])[1] == {"usage": None}


def test_an_error_in_place_of_vectors() -> None:
    assert read([], error={"message": "Too much."}) == ([], {"error": {"message": "Too much."}})


GOOD = item(0, [1.0, 2.0])


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        ([], 1),
        ([GOOD], 2),
        ([GOOD, item(1, [1.0, 2.0])], 1),
        ([GOOD, GOOD], 2),
        ([GOOD, item(2, [1.0, 2.0])], 2),
        ([item(-1, [1.0])], 1),
        ([item("0", [1.0])], 1),
        ([item(None, [1.0])], 1),
        ([{"embedding": [1.0]}], 1),
        ([{"index": 0}], 1),
        ([item(0, None)], 1),
        ([item(0, {})], 1),
        ([item(0, [])], 1),
        ([item(0, "")], 1),
        ([item(0, [1.0, None])], 1),
        ([item(0, [1.0, "2"])], 1),
        ([item(0, [1.0, True])], 1),
        ([item(0, [[1.0]])], 1),
        ([item(0, [1e39])], 1),
        ([item(0, [10**400])], 1),
        ([item(0, [float("nan")])], 1),
        ([item(0, "not base64!")], 1),
        ([item(0, in_base64(b"12345"))], 1),
        ([item(0, in_base64(packed(1.0, float("nan"))))], 1),
        ([item(0, in_base64(packed(float("inf"))))], 1),
        ([GOOD, item(1, [1.0])], 2),
        ([GOOD, item(1, in_base64(packed(1.0)))], 2),
        ([7], 1),
        (None, 1),
        ({}, 1),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_reply_that_is_no_answer_is_broken(data: Any, asked: int) -> None:
    with pytest.raises(ApiError) as caught:
        read(data, asked)
    assert (caught.value.status, caught.value.code) == (502, "backend_reply_broken")


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"\xff", b"[" * 5000, b'{"data": [{"index": 0, "embedding": [1,]}]}']
)
def test_what_is_no_json_is_broken(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_vectors(raw, 1)
    assert caught.value.code == "backend_reply_broken"


def test_what_is_kept_is_whole_numbers_of_four_bytes() -> None:
    assert [whole(body) for body in (b"", b"123", b"1234", b"12345", b"12345678")] == [False, False, True, False, True]


# Writing


@given(VECTORS)
@example([[0.1, 1e-45, 3.4028234663852886e38, -0.0, 16777216.0, 1 / 3]])
def test_what_is_written_reads_back_as_the_same_float32(vectors: list[list[float]]) -> None:
    bodies = [packed(*vector) for vector in vectors]
    places = [*range(len(bodies)), 0]
    as_numbers = json.loads(render(bodies, places, model="m", tokens=7, as_base64=False))
    as_text = json.loads(render(bodies, places, model="m", tokens=7, as_base64=True))
    assert [np.array(i["embedding"], dtype="<f4").tobytes() for i in as_numbers["data"]] == [bodies[p] for p in places]
    assert [base64.b64decode(i["embedding"]) for i in as_text["data"]] == [bodies[p] for p in places]


def test_an_answer_to_the_letter() -> None:
    body = render([packed(0.1, -2.0), packed(1e-7, 3.0)], [1, 0, 1], model='a "b"', tokens=5, as_base64=False)
    assert body == (
        b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1e-7,3.0]},'
        b'{"object":"embedding","index":1,"embedding":[0.1,-2.0]},'
        b'{"object":"embedding","index":2,"embedding":[1e-7,3.0]}],'
        b'"model":"a \\"b\\"","usage":{"prompt_tokens":5,"total_tokens":5}}'
    )


# Sharing


@given(st.integers(0, 10**9), st.lists(st.integers(1, 10**7), min_size=1, max_size=50))
def test_tokens_add_up_and_each_is_within_one_of_its_part(total: int, weights: list[int]) -> None:
    shares = share_tokens(total, weights)
    assert sum(shares) == total
    assert all(
        abs(share * sum(weights) - total * weight) < sum(weights) for share, weight in zip(shares, weights, strict=True)
    )
    assert min(shares) >= 0


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [(10, [1, 1, 1], [4, 3, 3]), (0, [5, 1], [0, 0]), (1, [1, 9], [0, 1]), (6, [1, 2, 3], [1, 2, 3]), (3, [7], [3])],
    ids=str,
)
def test_some_shares(total: int, weights: list[int], shares: list[int]) -> None:
    assert share_tokens(total, weights) == shares


def test_a_cost_is_shared_with_its_time() -> None:
    assert share_cost(Cost(100.0, 0.5), [1, 3]) == [Cost(25.0, 0.125), Cost(75.0, 0.375)]
    assert share_cost(Cost(100.0, None), [1, 1]) == [Cost(50.0, None)] * 2
