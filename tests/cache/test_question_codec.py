"""Questions as rows: what comes back, what has no stored form, and rows that lie."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.question import Question
from cache.stores.question_codec import LIMITS, MAX_SAME, Row, decode, encode, seal_of
from tests.contract.stores import key_of, make_question

GOOD = encode(make_question("a", same=(key_of("b"), key_of("c"))))

KEYS = st.binary(min_size=32, max_size=32)
VECTORS = st.binary(max_size=40).map(lambda raw: raw * 4)


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def sealed(row: Row) -> Row:
    """The row with the seal that its fields ask for: whoever makes one up can do that, too."""
    return row._replace(seal=seal_of(row[:-1]))


def refused(work: Callable[..., object], *args: object) -> bool:
    try:
        work(*args)
    except ValueError:
        return True
    return False


@given(
    st.builds(
        Question,
        key=KEYS,
        context=KEYS,
        text=st.text(),
        embedder=st.text(max_size=50),
        vector=VECTORS,
        same=st.lists(KEYS, max_size=5).map(tuple),
    )
)
def test_every_question_comes_back(question: Question) -> None:
    assert decode(*encode(question)) == question


def test_the_largest_comes_back() -> None:
    largest = make_question(text="x" * 65_536, vector=bytes(16_384), embedder="m" * 4096, same=(bytes(32),) * MAX_SAME)
    row = encode(largest)
    assert decode(*row) == largest
    assert {name: len(value) for name, value in row._asdict().items()} == LIMITS


@pytest.mark.parametrize(
    "changes",
    [
        {"key": bytes(31)},
        {"key": bytes(33)},
        {"context": b""},
        {"context": bytes(33)},
        {"text": "x" * 65_537},
        {"text": "é" * 32_769},
        {"text": "\ud800"},
        {"embedder": "m" * 4097},
        {"embedder": "\udfff"},
        {"vector": bytes(16_388)},
        {"vector": bytes(6)},
        {"same": (bytes(32),) * (MAX_SAME + 1)},
        {"same": (bytes(31),)},
    ],
    ids=str,
)
def test_what_could_not_be_read_back_has_no_stored_form(changes: dict[str, Any]) -> None:
    assert refused(encode, make_question(**changes))


@pytest.mark.parametrize("field", Row._fields)
@pytest.mark.parametrize("value", [None, "text", 7, 1.5, b"\xff" * 70_000, [b"x"]], ids=lambda value: str(value)[:9])
def test_values_of_the_wrong_kind_or_length_are_refused(field: str, value: object) -> None:
    assert refused(decode, *GOOD._replace(**{field: value}))


@pytest.mark.parametrize(
    "changes",
    [
        {"key": b"short"},
        {"context": bytes(31)},
        {"text": b"\xff"},
        {"text": b"\xed\xa0\x80"},
        {"embedder": b"\xc3"},
        {"vector": bytes(7)},
        {"same": b""},
        {"same": packed([bytes(31)])},
        {"same": packed([bytes(33)])},
        {"same": packed(["x" * 32])},
        {"same": packed([1])},
        {"same": packed({})},
        {"same": packed(None)},
        {"same": packed([b""] * 65)},
        {"same": packed([[]])},
        {"same": packed([]) + b"\x00"},
        {"same": b"\xdd\xff\xff\xff\xff"},
        {"same": b"\xc6\xff\xff\xff\xff"},
        {"same": b"\x91" * 2000 + b"\xc0"},
        {"same": packed([bytes(32)])[:-1]},
    ],
    ids=lambda changes: f"{next(iter(changes))} {next(iter(changes.values()))[:9]!r}",
)
def test_rows_that_lie_are_refused(changes: dict[str, bytes]) -> None:
    assert refused(decode, *sealed(GOOD._replace(**changes)))


@pytest.mark.parametrize("field", Row._fields)
def test_one_bit_more_or_less_is_refused(field: str) -> None:
    value = getattr(GOOD, field)
    changed = value[:-1] + bytes([value[-1] ^ 1])
    assert refused(decode, *GOOD._replace(**{field: changed}))


def test_a_row_of_another_key_is_refused() -> None:
    assert refused(decode, *GOOD._replace(key=key_of("b")))
    assert decode(*sealed(GOOD)) == decode(*GOOD)


def test_a_byte_moved_from_one_field_to_the_next_is_refused() -> None:
    assert refused(decode, *GOOD._replace(text=GOOD.text[:-1], embedder=GOOD.text[-1:] + GOOD.embedder))


@given(st.tuples(KEYS, KEYS, st.binary(), st.binary(), st.binary(), st.binary(max_size=80)))
def test_any_bytes_are_a_question_or_refused(fields: tuple[bytes, ...]) -> None:
    try:
        question = decode(*fields, seal_of(fields))
    except ValueError:
        return
    assert decode(*encode(question)) == question


@pytest.mark.parametrize("fields", [(), GOOD[:6], (*GOOD, b"")])
def test_rows_of_another_width_are_refused(fields: tuple[bytes, ...]) -> None:
    assert refused(decode, *fields)
