"""Request bodies, parsed strictly, so that what we key is what the upstream reads.

Parsers disagree on duplicate keys (first or last), on NaN and on numbers beyond a double, and Python's accepts lone
surrogates that cannot be sent on. Each of these is refused rather than guessed. Numbers with a fraction or an
exponent become Decimal: exact, so two seeds that differ in the last digit stay different and a body encoded again
carries the same number.

Sizes are bounded before parsing where it can be done at C speed, since the parser itself cannot be interrupted.
"""

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from gateway.errors import ApiError, bad_request, shorten

MAX_DEPTH = 128
MAX_VALUES = 250_000
MAX_DIGITS = 1_000
SURELY_SMALL = 64 * 1024
LARGE_BODY = 8 * 1024
MANY_VALUES = 2_000
"""A body of more bytes, or of more commas, is parsed in a thread, so that it does not hold up the event loop."""


def large_body(raw: bytes) -> bool:
    """Is it to be parsed in a thread?"""
    return len(raw) >= LARGE_BODY or raw.count(b",") >= MANY_VALUES


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises ApiError 400 naming what is wrong."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(f"The body is not valid UTF-8 (byte {error.start}).", code="invalid_json") from None
    if len(raw) > SURELY_SMALL:
        _check_count(raw)
    try:
        value = _DECODER.decode(text)
        _check_depth(value)
    except ApiError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise bad_request(
            f"The body is not valid JSON: {error.msg} at character {error.pos}.", code="invalid_json"
        ) from None
    except ValueError:
        raise bad_request("The body holds a number that cannot be read.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    if _SURROGATE.search(raw):
        _check_surrogates(value)
    return value


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _check_surrogates(value: dict[str, Any]) -> None:
    # Only an escape can bring a surrogate into the text (UTF-8 itself was checked), and a proper pair has been
    # joined by now: whatever fails to encode is alone.
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError:
        raise bad_request("The body holds a lone surrogate (\\ud800-\\udfff).", code="invalid_json") from None


def _check_count(raw: bytes) -> None:
    """Count what stands outside strings, in a fixed number of passes however the quotes are arranged."""
    if raw.count(b",") < MAX_VALUES:
        return
    bare = raw.replace(rb"\\", b"").replace(rb"\"", b"")  # in this order, a quote after a backslash is a real one
    # Every value has at most a key and itself as strings; the split below would be slow with many more.
    if bare.count(b'"') > 4 * MAX_VALUES or sum(part.count(b",") for part in bare.split(b'"')[::2]) >= MAX_VALUES:
        raise bad_request(f"The body holds more than {MAX_VALUES} values.", code="too_many_values")


def _check_depth(value: object) -> None:
    level: list[object] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(v for v in item.values() if isinstance(v, dict | list))
            elif isinstance(item, list):
                below.extend(v for v in item if isinstance(v, dict | list))
        level = below


def _too_deep() -> ApiError:
    return bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.", code="too_deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise bad_request(f"The key {shorten(name)!r} occurs twice.", param=shorten(name), code="duplicate_key")
            seen.add(name)
    return found


def _float(text: str) -> Decimal:
    if len(text) > MAX_DIGITS:
        raise _too_long()
    if math.isinf(float(text)):
        raise bad_request(f"The number {shorten(text)} is too large.", code="invalid_number")
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond what even Decimal holds
        raise bad_request(f"The number {shorten(text)} is too small.", code="invalid_number") from None


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _too_long()
    number = int(text)
    if number.bit_length() > 1023:
        raise bad_request(f"The number {shorten(text)} is too large.", code="invalid_number")
    return number


def _too_long() -> ApiError:
    return bad_request(f"The body holds a number of more than {MAX_DIGITS} digits.", code="invalid_number")


def _constant(name: str) -> NoReturn:
    raise bad_request(f"{name} is no JSON number.", code="invalid_number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_int=_int, parse_constant=_constant)
