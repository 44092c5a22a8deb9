"""The byte-identical path: its digest tells apart whatever could change the answer, and only that."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.front import BEHAVIOUR, alias_of, is_plain
from tests.gateway.values import some
from tests.support.gateway import Running, config_text, running
from tests.support.upstream import Upstream, upstream

Headers = list[tuple[bytes, bytes]]
HEADERS: Headers = [
    (b"host", b"localhost"),
    (b"authorization", b"Bearer abc"),
    (b"content-type", b"application/json"),
    (b"content-length", b"2"),
]


def alias(headers: Headers, path: str = "/v1/chat/completions", query: bytes = b"", body: bytes = b"{}") -> bytes:
    assert is_plain(dict(headers), headers)
    return alias_of(dict(headers), path, query, body)


def test_the_same_request_has_the_same_digest() -> None:
    assert alias(HEADERS) == alias(list(HEADERS))
    assert len(alias(HEADERS)) == 32
    assert alias(HEADERS[::-1]) == alias(HEADERS)


def test_headers_that_change_nothing_are_not_in_the_digest() -> None:
    more = [(b"user-agent", b"x"), (b"x-stainless-retry-count", b"1"), (b"accept", b"*/*"), (b"traceparent", b"00-1")]
    assert alias([*more, *HEADERS]) == alias(HEADERS)


def test_every_part_is_in_the_digest() -> None:
    others = [
        alias([(b"authorization", b"Bearer abd")]),
        alias([(b"host", b"evil.example"), *HEADERS[1:]]),
        alias([(b"authorization", b"bearer abc")]),
        alias([(b"x-api-key", b"Bearer abc")]),
        alias([(b"authorization", b"Bearer abc"), (b"x-api-key", b"abc")]),
        alias([]),
        alias(HEADERS, path="/other/v1/chat/completions"),
        alias(HEADERS, query=b"api-version=1"),
        alias(HEADERS, body=b"{} "),
        alias(HEADERS, body=b""),
        alias(HEADERS, path="/v1/chät"),
        alias(HEADERS),
    ]
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("name", sorted(BEHAVIOUR))
def test_a_header_that_changes_behaviour_sends_the_request_the_long_way(name: bytes) -> None:
    for headers in ([*HEADERS, (name, b"")], [(name, b"x"), *HEADERS]):
        assert not is_plain(dict(headers), headers)


@pytest.mark.parametrize("twice", [b"authorization", b"x-api-key", b"host", b"accept"])
def test_a_header_that_comes_twice_sends_the_request_the_long_way(twice: bytes) -> None:
    headers = [*HEADERS, (twice, b"1"), (twice, b"1")]
    assert not is_plain(dict(headers), headers)


def test_what_design_names_as_changing_behaviour_does() -> None:
    named = "cache-control x-refrain-ttl x-refrain-tags x-refrain-tier prefer openai-beta"
    named += " anthropic-version anthropic-beta content-encoding"
    assert {name.encode() for name in named.split()} <= BEHAVIOUR


parts = st.tuples(
    *[st.binary(max_size=3)] * 4, st.text("/ab1,;", max_size=3), st.binary(max_size=3), st.binary(max_size=3)
)


@some
@given(parts, parts)
def test_parts_do_not_run_into_each_other(a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    names = (b"authorization", b"x-api-key", b"x-refrain-on-behalf", b"content-type")

    def digest(*parts: Any) -> bytes:
        return alias(list(zip(names, parts[:4], strict=True)), *parts[4:])

    assert (digest(*a) == digest(*b)) == (a == b)


# Through a real server


@pytest.fixture(scope="module")
def served() -> Iterator[Upstream]:
    with upstream() as app:
        yield app


def test_an_open_gateway_checks_whose_page_asks_on_the_byte_identical_path_too(served: Upstream) -> None:
    text = config_text(served.url)
    open_text = text[: text.index("\nauth:")] + "\nauth: {required: false}\n"
    body = b'{"model": "test-model", "messages": [{"role": "user", "content": "Who may read this?"}]}'
    with running(open_text) as gateway:
        assert gateway.raw(body).status_code == 200
        assert gateway.raw(body).headers["cache-status"].startswith("exact; hit")
        for foreign in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            answer = gateway.raw(body, **foreign)
            assert answer.status_code == 403, "the answer of somebody on this machine went to another's page"


@pytest.fixture(scope="module")
def gateway(served: Upstream) -> Iterator[Running]:
    with running(config_text(served.url)) as found:
        yield found


def outcome(answer: Any) -> tuple[str, str]:
    detail = answer.headers.get("server-timing", "")
    return answer.headers["x-refrain-cache"], "short" if "auth" not in detail else "long"


def test_the_third_time_at_the_latest_no_body_is_parsed(gateway: Running) -> None:
    body = b'{"messages": [{"role": "user", "content": "short way?"}], "model": "test-model"}'
    assert outcome(gateway.raw(body)) == ("miss", "long")
    gateway.raw(body)
    assert outcome(gateway.raw(body)) == ("exact", "short")
    assert outcome(gateway.raw(body + b" ")) == ("exact", "long")


def test_a_body_that_steers_the_cache_never_comes_the_short_way(gateway: Running, served: Upstream) -> None:
    body = b'{"cache": {"no-cache": true}, "messages": [{"role": "user", "content": "steer"}], "model": "test-model"}'
    before = served.calls
    assert [outcome(gateway.raw(body)) for _ in range(3)] == [("miss", "long")] * 3
    assert served.calls == before + 3


def test_the_short_way_ends_with_the_entrys_life(gateway: Running, served: Upstream) -> None:
    body = b'{"messages": [{"role": "user", "content": "how long?"}], "model": "test-model"}'
    for _ in range(3):
        found = gateway.raw(body, path="/short/v1")
    assert outcome(found) == ("exact", "short")
    gateway.clock.offset += 61
    try:
        assert outcome(gateway.raw(body, path="/short/v1")) == ("miss", "long")
    finally:
        gateway.clock.offset -= 61
