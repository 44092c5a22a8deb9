"""What a request asks of the cache. It may narrow, never widen; what cannot be read is a 400, never a guess."""

import math
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.directives import MAX_TAG, MAX_TAGS, NONE, TIERS, Directives, read_directives
from gateway.errors import ApiError
from tests.gateway.values import attempt, json_values, some


def control(value: str) -> Directives:
    return read_directives({b"cache-control": value.encode("latin-1")}, None)


def refusal(headers: dict[bytes, bytes], cache: Any = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_directives(headers, cache)
    assert caught.value.status == 400
    return caught.value


def test_without_directives_everything_is_allowed() -> None:
    assert read_directives({}, None) == NONE == Directives()
    assert read_directives({b"accept": b"no-cache", b"pragma": b"x"}, None) == NONE


# Cache-Control


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("no-cache", Directives(no_cache=True)),
        ("NO-CACHE", Directives(no_cache=True)),
        ("no-store", Directives(no_store=True)),
        ("only-if-cached", Directives(only_if_cached=True)),
        ("max-age=60", Directives(max_age=60)),
        ("Max-Age=007", Directives(max_age=7)),
        ('max-age="60"', Directives(max_age=60)),
        ("max-age=0", Directives(max_age=0, no_cache=True)),
        ("max-stale=60", Directives(max_stale=60)),
        ("max-stale", Directives(max_stale=math.inf)),
        ("max-stale=0", Directives(max_stale=0)),
        (" no-cache ,\tno-store ", Directives(no_cache=True, no_store=True)),
        ("no-cache,no-store", Directives(no_cache=True, no_store=True)),
        ("no-cache,", Directives(no_cache=True)),
        ("", NONE),
        ("  ", NONE),
        ('no-transform, foo=bar, x="a, no-store, b", y=\'', NONE),
        ('no-cache="x-field, no-store"', Directives(no_cache=True)),
        (r'x="a\", no-store", no-cache', Directives(no_cache=True)),
        ("max-age=60, max-age=60", Directives(max_age=60)),
        ("no-cachee, xno-store, no_store", NONE),
    ],
)
def test_cache_control_is_read(value: str, expected: Directives) -> None:
    assert control(value) == expected


@pytest.mark.parametrize("value", [",no-cache", "no-cache,,", "no-cache, ,", " , , no-cache"])
def test_empty_list_members_are_ignored(value: str) -> None:
    """RFC 9110, 5.6.1.2: a recipient must accept them."""
    assert control(value) == Directives(no_cache=True)


@pytest.mark.parametrize(
    "value",
    [
        "max-age",
        "max-age=",
        'max-age=""',
        "max-age=-1",
        "max-age=1.5",
        "max-age=1e9",
        "max-age=sixty",
        "max-age=60s",
        "max-age=nan",
        "max-age=inf",
        "max-age=²",
        "max-age=1 0",
        "max-stale=",
        "max-stale=x",
        "no-cache no-store",
        "=60",
        'x="never closed, no-store',
        "no-cache; no-store",
        "(no-cache)",
        "no-cäche",
    ],
)
def test_a_cache_control_that_cannot_be_read_is_refused(value: str) -> None:
    error = refusal({b"cache-control": value.encode("latin-1")})
    assert (error.param, error.code) == ("cache-control", "invalid_header")
    assert len(error.message) < 200


@pytest.mark.parametrize("value", ["max-age=60, max-age=5", "max-age=5, max-age=60"])
def test_a_repeated_directive_has_one_of_its_values(value: str) -> None:
    assert control(value).max_age in (5, 60)


@some
@given(st.text(st.characters(max_codepoint=255), max_size=30) | st.text('no-cahe,st=" \\maxg0123;', max_size=40))
def test_any_header_is_read_or_refused(value: str) -> None:
    for name in (b"cache-control", b"x-refrain-ttl", b"x-refrain-tags", b"x-refrain-tier"):
        read = attempt(partial(read_directives, {name: value.encode("latin-1")}, None))
        if isinstance(read, ApiError):
            assert (read.status, read.param) == (400, name.decode())
        else:
            assert read.tiers <= frozenset(TIERS)
            assert read.max_age is None or 0 <= read.max_age < math.inf
            assert read.ttl is None or 0 <= read.ttl < math.inf


# The body's object


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ({}, NONE),
        ({"no-cache": True}, Directives(no_cache=True)),
        ({"no-cache": False, "no-store": None}, NONE),
        ({"no-store": True}, Directives(no_store=True)),
        ({"ttl": 60}, Directives(ttl=60)),
        ({"ttl": Decimal("0.5")}, Directives(ttl=0.5)),
        ({"ttl": 0}, Directives(ttl=0)),
        ({"s-maxage": 60}, Directives(max_age=60)),
        ({"s-maxage": 0}, Directives(max_age=0, no_cache=True)),
        ({"unknown": 1, "namespace": "other"}, NONE),
    ],
)
def test_the_cache_object_is_read(cache: Any, expected: Directives) -> None:
    assert read_directives({}, cache) == expected


@pytest.mark.parametrize(
    ("cache", "param"),
    [
        (True, "cache"),
        (0, "cache"),
        ("no-cache", "cache"),
        ([], "cache"),
        ({"no-cache": "false"}, "cache.no-cache"),
        ({"no-cache": 1}, "cache.no-cache"),
        ({"no-store": 0}, "cache.no-store"),
        ({"ttl": "60"}, "cache.ttl"),
        ({"ttl": True}, "cache.ttl"),
        ({"ttl": -1}, "cache.ttl"),
        ({"ttl": Decimal("-0.1")}, "cache.ttl"),
        ({"ttl": [1]}, "cache.ttl"),
        ({"s-maxage": {}}, "cache.s-maxage"),
    ],
)
def test_a_cache_object_that_cannot_be_read_is_refused(cache: Any, param: str) -> None:
    assert refusal({}, cache).param == param


@some
@given(json_values() | st.dictionaries(st.sampled_from(["no-cache", "no-store", "ttl", "s-maxage"]), json_values()))
def test_any_cache_object_is_read_or_refused(cache: Any) -> None:
    read = attempt(lambda: read_directives({}, cache))
    assert isinstance(read, Directives) or read.status == 400


# Both, and the rest


def test_of_header_and_object_the_stricter_one_counts() -> None:
    both = read_directives(
        {b"cache-control": b"max-age=60, no-store", b"x-refrain-ttl": b"10m"}, {"s-maxage": 5, "ttl": 900}
    )
    assert both == Directives(no_store=True, max_age=5, ttl=600)
    other = read_directives(
        {b"cache-control": b"max-age=5", b"x-refrain-ttl": b"1h"}, {"s-maxage": 60, "no-cache": True, "ttl": 9}
    )
    assert other == Directives(no_cache=True, max_age=5, ttl=9)


def test_an_object_cannot_take_back_what_a_header_asks() -> None:
    assert read_directives({b"cache-control": b"no-store"}, {"no-store": False}).no_store


@pytest.mark.parametrize(("value", "seconds"), [(b"250ms", 0.25), (b" 10m ", 600), (b"0s", 0), (b"7d", 604800)])
def test_a_life_is_a_duration(value: bytes, seconds: float) -> None:
    assert read_directives({b"x-refrain-ttl": value}, None).ttl == seconds


@pytest.mark.parametrize("value", [b"", b"60", b"-1s", b"1.5h", b"1 h", b"10m, 1h", b"forever", b"99999999d", b"\xb2s"])
def test_a_life_that_is_no_duration_is_refused(value: bytes) -> None:
    assert refusal({b"x-refrain-ttl": value}).param == "x-refrain-ttl"


def test_tags_are_a_list() -> None:
    assert read_directives({b"x-refrain-tags": "a, b,,ä ,a".encode()}, None).tags == ("a", "b", "ä")
    assert read_directives({b"x-refrain-tags": b" , "}, None).tags == ()
    most = ",".join(f"{i:0{MAX_TAG}}" for i in range(MAX_TAGS)).encode()
    assert len(read_directives({b"x-refrain-tags": most}, None).tags) == MAX_TAGS


@pytest.mark.parametrize(
    "value",
    [b"\xff", b"x" * (MAX_TAG + 1), ",".join(map(str, range(MAX_TAGS + 1))).encode()],
    ids=["utf-8", "long", "many"],
)
def test_too_many_too_long_or_broken_tags_are_refused(value: bytes) -> None:
    assert refusal({b"x-refrain-tags": value}).param == "x-refrain-tags"


def test_tiers_narrow() -> None:
    assert read_directives({b"x-refrain-tier": b"Exact, semantic"}, None).tiers == {"exact", "semantic"}
    assert read_directives({b"x-refrain-tier": b"retrieval"}, None).tiers == {"retrieval"}


@pytest.mark.parametrize("value", [b"exact, all", b"*", b"exact semantic"])
def test_an_unknown_tier_is_refused(value: bytes) -> None:
    assert refusal({b"x-refrain-tier": value}).param == "x-refrain-tier"
