"""Bodies that must be read exactly, and bodies that must be refused quickly and by name."""

import json
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.strict_json import MAX_DEPTH, MAX_DIGITS, MAX_VALUES, parse_object
from tests.gateway.values import attempt, few, json_values, number_texts, some, texts


def refusal(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_object(raw)
    assert caught.value.status == 400
    return caught.value


def exact(value: Any) -> Any:
    """What the strict parser makes of a value: floats in their exact decimal spelling."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, list):
        return [exact(v) for v in value]
    if isinstance(value, dict):
        return {k: exact(v) for k, v in value.items()}
    return value


# What is read


@few
@given(st.dictionaries(texts, json_values(), max_size=5), st.booleans())
def test_every_object_is_read_as_it_was_written(body: dict[str, Any], ascii_only: bool) -> None:
    read = parse_object(json.dumps(body, ensure_ascii=ascii_only).encode())
    assert read == exact(body)
    assert json.dumps(read, default=str) == json.dumps(exact(body), default=str)  # 1, 1.0 and true are kept apart


@pytest.mark.parametrize(
    "text",
    [
        "0.1234567890123456789012345678901234567890123456789",  # beyond the 28 digits of a decimal context
        "1e-400",
        "1E308",
        "-0.0",
        "1e2",
        "1.00",
        "123456789012345678901234567890.5",
    ],
)
def test_a_fraction_or_an_exponent_keeps_every_digit(text: str) -> None:
    value = parse_object(b'{"a": %s}' % text.encode())["a"]
    assert type(value) is Decimal
    assert value.as_tuple() == Decimal(text).as_tuple()


def test_whole_numbers_are_exact_and_stay_apart_from_true() -> None:
    read = parse_object(b'{"a": 9007199254740993, "b": 1, "c": true, "d": 100000000000000000000001}')
    assert read["a"] == 9007199254740993
    assert read["d"] == 100000000000000000000001
    assert [type(read[name]) for name in "abcd"] == [int, int, bool, int]


def test_escaped_pairs_are_joined_and_an_escaped_backslash_is_no_surrogate() -> None:
    assert parse_object(rb'{"a": "\ud83d\ude00", "b": "\\ud800"}') == {"a": "😀", "b": "\\ud800"}


def test_blanks_around_the_object_are_fine() -> None:
    assert parse_object(b' \r\n\t{"a": 1}\n ') == {"a": 1}


def test_the_deepest_body_allowed_is_read() -> None:
    lists = MAX_DEPTH - 1
    assert "a" in parse_object(b'{"a": ' + b"[" * lists + b"]" * lists + b"}")


# What is refused


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"   ", "invalid_json"),
        (b"null", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'[{"model": "m"}]', "invalid_json"),
        (b'"{}"', "invalid_json"),
        (b"1", "invalid_json"),
        (b"{", "invalid_json"),
        (b"{} {}", "invalid_json"),
        (b"{}]", "invalid_json"),
        (b"{}\x00", "invalid_json"),
        (b'{"a": 1,}', "invalid_json"),
        (b"{'a': 1}", "invalid_json"),
        (b'{"a": 01}', "invalid_json"),
        (b'{"a": +1}', "invalid_json"),
        (b'{"a": .5}', "invalid_json"),
        (b'{"a": 1.}', "invalid_json"),
        (b'{"a": 0x10}', "invalid_json"),
        (b'{"a": "\n"}', "invalid_json"),
        (b'{"a": "\\x"}', "invalid_json"),
        (b'{"a": /* */ 1}', "invalid_json"),
        (b'\xef\xbb\xbf{"a": 1}', "invalid_json"),  # a byte order mark
        ('{"a": 1}'.encode("utf-16"), "invalid_json"),
        ('{"a": 1}'.encode("utf-32-le"), "invalid_json"),
        (b'{"a": "\xff"}', "invalid_json"),
        (b'{"a": "\xed\xa0\x80"}', "invalid_json"),  # a surrogate in UTF-8
        (b'{"a": "\xc0\xaf"}', "invalid_json"),  # an overlong slash
        (rb'{"a": "\ud800"}', "invalid_json"),
        (rb'{"a": "\uDC00"}', "invalid_json"),
        (rb'{"a": "\ude00\ud83d"}', "invalid_json"),
        (rb'{"\ud800": 1}', "invalid_json"),
        (rb'{"a": [{"b": "x\uDFFFy"}]}', "invalid_json"),
        (b'{"a": 1, "a": 1}', "duplicate_key"),
        (b'{"a": 1, "\\u0061": 2}', "duplicate_key"),
        (b'{"x": [{"a": 1, "b": 2, "a": 3}]}', "duplicate_key"),
        (b'{"a": NaN}', "invalid_number"),
        (b'{"a": Infinity}', "invalid_number"),
        (b'{"a": -Infinity}', "invalid_number"),
        (b'{"a": 1e999}', "invalid_number"),
        (b'{"a": -1e309}', "invalid_number"),
        (b'{"a": 1.7976931348623159e308}', "invalid_number"),
        (b'{"a": 1%s}' % (b"0" * 400), "invalid_number"),
    ],
)
def test_what_parsers_disagree_on_is_refused(raw: bytes, code: str) -> None:
    error = refusal(raw)
    assert error.code == code
    assert error.envelope().keys() == {"message", "type", "param", "code"}


def test_a_duplicate_key_is_named_shortly() -> None:
    name = "k" * 5000
    error = refusal(f'{{"{name}": 1, "{name}": 2}}'.encode())
    assert error.param is not None
    assert error.param.startswith("kkk")
    assert len(error.param) < 100
    assert len(error.message) < 200


def test_one_level_more_than_allowed_is_refused() -> None:
    assert refusal(b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}").code == "too_deep"


@some
@given(number_texts())
@example("1e-99999999999999999999")
@example("0e99999999999999999999")
def test_a_number_of_any_spelling_is_read_or_refused(text: str) -> None:
    read = attempt(lambda: parse_object(f'{{"a": {text}}}'.encode()))
    if isinstance(read, ApiError):
        assert (read.status, read.code) == (400, "invalid_number")
    else:
        assert read["a"] == Decimal(text)


@some
@given(st.binary(max_size=40) | st.text('{}[]":,\\u0d8eE+-1.ntf \ufeff', max_size=30).map(str.encode))
def test_garbage_is_read_or_refused_and_nothing_else(raw: bytes) -> None:
    read = attempt(lambda: parse_object(raw))
    assert isinstance(read, dict) or read.status == 400


# What must not take long. Measured in this thread's processor time, since other work may be going on beside the tests.


MIB = 2**20
BOMBS = {
    "open lists": b'{"a": ' + b"[" * 8 * MIB,
    "balanced lists": b'{"a": ' + b"[" * 4 * MIB + b"]" * 4 * MIB + b"}",
    "open objects": b'{"a":' * MIB,
    "just under the parser's own limit": b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a million keys": b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}",
    "a million empty lists": b'{"a":[' + b"[]," * 1_000_000 + b"[]]}",
    "ten million digits": b'{"a": ' + b"9" * 10_000_000 + b"}",
    "ten million digits after the point": b'{"a": 0.' + b"9" * 10_000_000 + b"}",
    "an exponent of ten million digits": b'{"a": 1e' + b"9" * 10_000_000 + b"}",
    "many keys that are equal": b"{" + b'"a":0,' * 400_000 + b'"a":0}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_within_a_second(name: str) -> None:
    begun = time.thread_time()
    refusal(BOMBS[name])
    assert time.thread_time() - begun < 1


def test_quotes_that_never_close_are_refused_within_a_second() -> None:
    # Enough commas for a closer look, and 400 places where a string could begin but none where it ends.
    raw = b'{"a": "' + rb"\"" * 400 + b"," * (MAX_VALUES + 1)
    begun = time.thread_time()
    refusal(raw)
    assert time.thread_time() - begun < 1


def test_commas_inside_strings_are_no_values() -> None:
    text = '","' * (MAX_VALUES // 2)
    assert parse_object(json.dumps({"a": text, "b": "\\"}).encode())["a"] == text


def test_as_many_digits_as_allowed_are_read() -> None:
    text = "0." + "1" * (MAX_DIGITS - 2)
    assert parse_object(f'{{"a": {text}}}'.encode())["a"] == Decimal(text)
    assert refusal(f'{{"a": {text}1}}'.encode()).code == "invalid_number"
