"""Upstream replies, read through a real connection: answers, events, and errors in our envelope without secrets."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from backends.base import (
    BackendError,
    BackendStarting,
    BackendTimeout,
    Call,
    CannotBeInTime,
    ConnectFailed,
    Overloaded,
    ReplyBroken,
    ReplyTooLarge,
)
from backends.remote import RemoteBackend
from cache.entry import Usage
from gateway.backend_errors import failure
from gateway.errors import ApiError
from gateway.upstream import (
    cached_of,
    mask,
    read_answer,
    read_events,
    send,
    stream_error,
    timings,
    upstream_id,
    usage_of,
)
from tests.support.upstream import Reply, Upstream, free_port, upstream

CALL = Call("chat/completions", b"{}")
MODEL = "test-model-2024-10-21"
KEY = "sk-upstream-secret-0123456789"


@pytest.fixture(scope="module")
def served() -> Iterator[Upstream]:
    with upstream() as app:
        yield app


@pytest.fixture(scope="module")
async def backend(served: Upstream) -> AsyncIterator[RemoteBackend]:
    remote = RemoteBackend("fake", base_url=served.url, api_key=KEY, max_reply=1 << 20, between_chunks_timeout=5)
    yield remote
    await remote.aclose()


def answers(served: Upstream, *pieces: bytes, status: int = 200, **more: Any) -> None:
    served.script = lambda seen, number: Reply(list(pieces), status=status, **more)


async def refused(backend: RemoteBackend) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await send(backend, CALL, MODEL)
    return caught.value


def envelope(message: Any, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


# Statuses


@pytest.mark.parametrize("status", [400, 404, 409, 413, 415, 422, 429])
async def test_what_the_client_can_mend_keeps_its_text(served: Upstream, backend: RemoteBackend, status: int) -> None:
    raw = envelope("Too many tokens.", type="invalid_request_error", param="messages", code="context_length_exceeded")
    answers(served, raw, status=status)
    error = await refused(backend)
    assert error.status == status
    assert error.envelope() == json.loads(raw)["error"]


@pytest.mark.parametrize("status", [401, 403])
async def test_credentials_refused_upstream_are_our_trouble(
    served: Upstream, backend: RemoteBackend, status: int
) -> None:
    answers(served, envelope(f"Incorrect API key provided: {KEY}"), status=status, headers={"retry-after": "1"})
    error = await refused(backend)
    assert (error.status, error.code) == (502, "backend_auth_failed")
    assert error.headers == {"x-should-retry": "false"}
    assert KEY[:10] not in error.message


@pytest.mark.parametrize(
    ("status", "ours"),
    [(500, 500), (503, 503), (529, 529), (599, 599), (201, 502), (204, 502), (302, 502), (402, 502), (418, 502)],
)
async def test_other_statuses_keep_their_text_to_themselves(
    served: Upstream, backend: RemoteBackend, status: int, ours: int
) -> None:
    location = {"location": "http://internal.example/secret"}
    answers(served, *([] if status == 204 else [envelope("disk /dev/sda of http://internal.example is full")]),
            status=status, headers=location)  # fmt: skip
    error = await refused(backend)
    assert (error.status, error.code) == (ours, "backend_error")
    assert "internal" not in error.message + repr(error.headers)
    assert error.type == "server_error"


@pytest.mark.parametrize("status", [500, 503])
async def test_what_our_own_engine_reports_is_said_in_our_words(
    served: Upstream, backend: RemoteBackend, status: int
) -> None:
    answers(served, envelope("internal", code="engine_out_of_memory"), status=status)
    error = await refused(backend)
    assert (error.status, error.code) == (status, "engine_out_of_memory")
    assert error.message == "The engine ran out of memory on this request."
    for code in ("engine_unknown", ["engine_failed"], None):
        answers(served, envelope("internal", code=code), status=status)
        error = await refused(backend)
        assert (error.code, error.message) == ("backend_error", f"Backend 'fake' answered {status}.")


async def test_headers_about_retries_pass_and_no_others(served: Upstream, backend: RemoteBackend) -> None:
    retry = {"retry-after": "7.5", "retry-after-ms": "7500", "x-should-retry": "true"}
    others = {"set-cookie": "a=b", "x-ratelimit-remaining-requests": "0", "x-request-id": "up-1"}
    for status in (429, 503):
        answers(served, envelope("slow down"), status=status, headers={**retry, **others})
        assert (await refused(backend)).headers == retry


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<html>Bad request</html>",
        b"[]",
        b"null",
        b'"text"',
        b'{"error": "a string"}',
        b'{"error": null}',
        b'{"detail": [{"msg": "x"}]}',
        b'{"error": {"message": "cut',
        b"\xff\xfe",
        b'{"error":' * 50_000,
    ],
)
async def test_an_error_without_an_envelope_gets_one(served: Upstream, backend: RemoteBackend, raw: bytes) -> None:
    answers(served, raw, status=400)
    error = await refused(backend)
    assert (error.status, error.code, error.param) == (400, "backend_error", None)
    assert error.message == "Backend 'fake' refused the request (400)."
    assert error.type == "invalid_request_error"


async def test_odd_members_of_an_envelope_are_dropped(served: Upstream, backend: RemoteBackend) -> None:
    answers(served, envelope({"a": 1}, type=5, param=["x"], code=429), status=429)
    error = await refused(backend)
    assert error.envelope() == {
        "message": "Backend 'fake' refused the request (429).",
        "type": "rate_limit_exceeded",
        "param": None,
        "code": None,
    }


async def test_a_long_error_text_is_cut(served: Upstream, backend: RemoteBackend) -> None:
    answers(served, envelope("x" * 100_000, code="c" * 100_000), status=400)
    error = await refused(backend)
    assert len(error.message) == 2000
    assert len(error.code or "") <= 2000


@pytest.mark.parametrize(
    "secret",
    [
        KEY,
        "sk-proj-AbC_123-456789",
        "sk-ant-api03-AbCdEf",
        "Bearer abcdef123456",
        "bearer abcdef123456",
        "rf-0123456789abcdef",
        "http://10.0.0.1:8000/v1/chat?token=abc",
        "https://user:password@internal.example/",
        "sk-****************6789",
        "redis://user:password@10.0.0.1/0",
    ],
)
async def test_what_looks_like_a_credential_is_masked(served: Upstream, backend: RemoteBackend, secret: str) -> None:
    answers(served, envelope(f"You sent '{secret}'.", code=secret, param=secret, type=secret), status=400)
    error = await refused(backend)
    shown = json.dumps(error.envelope())
    assert secret.split()[-1][:12] not in shown
    assert "You sent" in error.message


@pytest.mark.parametrize(
    "key", ["0123456789abcdef0123456789abcdef", "AIzaSyD-9canary_key", "hf_canary7CANARYcanary", "sk_live_canary51x"]
)
async def test_our_own_key_is_masked_whatever_it_looks_like(served: Upstream, key: str) -> None:
    answers(served, envelope(f"API key not valid: {key}."), status=400)
    backend = RemoteBackend("fake", base_url=served.url, api_key=key)
    try:
        assert key not in (await refused(backend)).message
    finally:
        await backend.aclose()


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
        "Invalid type for 'messages[0].content': expected a string, but got an integer instead.",
        f"The model {MODEL} does not exist.",
        "Unsupported value: 'temperature' does not support 0.2 with this model.",
        "Rate limit reached: Limit 200000, Used 195000. Please try again in 1.5s.",
    ],
)
async def test_what_the_client_is_to_read_stays_readable(served: Upstream, backend: RemoteBackend, text: str) -> None:
    answers(served, envelope(text, param="max_completion_tokens", code="context_length_exceeded"), status=400)
    error = await refused(backend)
    assert (error.message, error.param, error.code) == (text, "max_completion_tokens", "context_length_exceeded")


def test_masking_takes_no_long_time() -> None:
    for text in ("a" * 2000, "1" * 2000, "a." * 1000, "bearer " * 300, "a-" * 1000 + "://"):
        begun = time.thread_time()
        mask(text, "m")
        assert time.thread_time() - begun < 0.5


# Failures


async def test_a_backend_that_cannot_be_reached_is_a_502() -> None:
    backend = RemoteBackend("gone", base_url=f"http://127.0.0.1:{free_port()}/v1")
    error = await refused(backend)
    await backend.aclose()
    assert (error.status, error.code) == (502, "backend_unreachable")
    assert "127.0.0.1" not in error.message


async def test_an_error_reply_that_is_cut_or_huge_is_a_failure_of_the_backend(
    served: Upstream, backend: RemoteBackend
) -> None:
    answers(served, b'{"error": {"mess', status=400, cut=True)
    assert (await refused(backend)).code == "backend_reply_broken"
    answers(served, *[b"x" * 100_000] * 12, status=400)
    assert (await refused(backend)).code == "backend_reply_too_large"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ConnectFailed("x"), 502, "backend_unreachable"),
        (BackendTimeout("x", "connect"), 504, "backend_timeout_connect"),
        (BackendTimeout("x", "first_byte"), 504, "backend_timeout_first_byte"),
        (BackendTimeout("x", "between_chunks"), 504, "backend_timeout_between_chunks"),
        (ReplyBroken("x"), 502, "backend_reply_broken"),
        (ReplyTooLarge("x"), 502, "backend_reply_too_large"),
        (BackendStarting("x", 5.0), 503, "backend_starting"),
        (CannotBeInTime("x", 5.0), 503, "deadline_too_short"),
    ],
)
def test_every_failure_has_its_status_and_code(error: BackendError, status: int, code: str) -> None:
    found = failure(error)
    assert (found.status, found.code, found.message, found.type) == (status, code, "x", "server_error")


@pytest.mark.parametrize(("seconds", "header"), [(5.0, "5"), (0.2, "1"), (0.0, "1")])
def test_a_starting_engine_says_when_to_come_back(seconds: float, header: str) -> None:
    assert failure(BackendStarting("x", seconds)).headers == {"retry-after": header}


@pytest.mark.parametrize(
    ("seconds", "after", "after_ms"),
    [(5.0, "5", "5000"), (5.0001, "6", "5001"), (0.2, "1", "200"), (0.0, "1", "1"), (60.0, "60", "60000")],
)
def test_what_is_refused_is_told_when_to_come_back(seconds: float, after: str, after_ms: str) -> None:
    for error in (Overloaded("x", seconds), CannotBeInTime("x", seconds)):
        assert failure(error).headers == {"retry-after": after, "retry-after-ms": after_ms}


def test_too_much_is_for_all_who_wait_and_too_late_for_one() -> None:
    overloaded = failure(Overloaded("x", 1.0))
    assert (overloaded.status, overloaded.type, overloaded.final) == (429, "rate_limit_exceeded", True)
    assert not failure(CannotBeInTime("x", 1.0)).final


# Answers


async def test_an_answer_is_read_whole(served: Upstream, backend: RemoteBackend) -> None:
    raw = '{"id": "x",\n "choices": [{"text": "é😀"}]}'.encode()
    answers(served, *[raw[i : i + 7] for i in range(0, len(raw), 7)])
    reply = await send(backend, CALL, MODEL)
    assert await read_answer(reply) == (raw, json.loads(raw))
    await reply.aclose()


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"a": 1e999}', b'{"a":' * 100_000, b"<html>"]
)
async def test_an_answer_that_is_no_object_is_a_broken_reply(
    served: Upstream, backend: RemoteBackend, raw: bytes
) -> None:
    answers(served, raw)
    reply = await send(backend, CALL, MODEL)
    with pytest.raises(ApiError) as caught:
        await read_answer(reply)
    assert (caught.value.status, caught.value.code) == (502, "backend_reply_broken")
    await reply.aclose()


async def test_an_answer_that_is_cut_is_a_broken_reply(served: Upstream, backend: RemoteBackend) -> None:
    answers(served, b'{"a": 1}', cut=True)
    reply = await send(backend, CALL, MODEL)
    with pytest.raises(ApiError) as caught:
        await read_answer(reply)
    assert caught.value.code == "backend_reply_broken"
    await reply.aclose()


async def events_of(backend: RemoteBackend) -> list[Any]:
    reply = await send(backend, CALL, MODEL)
    try:
        return [parsed async for batch in read_events(reply) for _, parsed in batch]
    finally:
        await reply.aclose()


async def test_events_are_read_in_any_split(served: Upstream, backend: RemoteBackend) -> None:
    raw = ': hi\r\n\r\ndata: {"a": "é"}\r\n\r\nevent: x\ndata: {"a": "😀"}\r\rdata: [DONE]\n\n'.encode()
    for size in (1, 3, 1000):
        answers(served, *[raw[i : i + size] for i in range(0, len(raw), size)])
        assert await events_of(backend) == [{"a": "é"}, {"a": "😀"}, None]


async def test_a_last_event_without_its_empty_line_counts(served: Upstream, backend: RemoteBackend) -> None:
    answers(served, b'data: {"a": 1}\n\ndata: {"a": 2}')
    assert await events_of(backend) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("data", [b"{", b"[]", b"1", b"\xff", b'"x"', b'{"a": 1e999}', b"[" * 100_000])
async def test_an_event_that_is_no_object_is_a_broken_reply(
    served: Upstream, backend: RemoteBackend, data: bytes
) -> None:
    answers(served, b"data: " + data + b"\n\n")
    with pytest.raises(ApiError) as caught:
        await events_of(backend)
    assert (caught.value.status, caught.value.code) == (502, "backend_reply_broken")


async def test_a_stream_that_is_cut_is_a_broken_reply(served: Upstream, backend: RemoteBackend) -> None:
    answers(served, b'data: {"a": 1}\n\n', cut=True)
    with pytest.raises(ApiError) as caught:
        await events_of(backend)
    assert caught.value.code == "backend_reply_broken"


def test_an_error_in_the_middle_of_a_stream_is_masked_like_every_other() -> None:
    backend = RemoteBackend("fake", base_url="http://internal.example/v1", api_key="canarysecret")
    text = f"key {KEY} or canarysecret expired at internal.example"
    error = stream_error({"error": {"message": text, "type": "server_error", "code": "oops"}}, backend)
    assert (error.status, error.code) == (502, "oops")
    assert error.message == "key *** or *** expired at ***"
    assert stream_error({"error": "text"}, backend).code == "backend_error"


@pytest.mark.parametrize("secret", ["sk-live-canary-secret", "sk-proj-onlyletters", "key_abcdefgh"])
def test_a_key_without_a_digit_is_masked_too(secret: str) -> None:
    assert secret not in mask(f"Incorrect API key provided: {secret}.", "m")


# Small things read from replies


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 99}, Usage(3, 4)),
        ({"prompt_tokens": 3}, Usage(3, 0)),
        ({"prompt_tokens": -3, "completion_tokens": 2**53}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": "4"}, Usage()),
        ({"prompt_tokens": 1.5, "completion_tokens": None}, Usage()),
        (None, Usage()),
        ([], Usage()),
    ],
)
def test_usage_is_what_the_backend_reports_where_that_can_be_true(usage: Any, expected: Usage) -> None:
    assert usage_of({"usage": usage}) == expected
    assert usage_of(None) == Usage()


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 64}}, 64),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": False}}, None),
        ({"prompt_tokens_details": {"cached_tokens": -1}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 1.0}}, None),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {}}, None),
        ({"prompt_tokens_details": []}, None),
        ({"prompt_tokens": 3}, None),
        (None, None),
        ([], None),
    ],
)
def test_what_the_backend_had_of_the_prompt_is_what_it_says_if_it_does(usage: Any, expected: int | None) -> None:
    assert cached_of({"usage": usage}) == expected
    assert cached_of(None) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("queue;dur=0.25, prefill;dur=33", {"upstream_queue": 0.25, "upstream_prefill": 33.0}),
        ("prefill;dur=7.5,decode;dur=9, total;dur=20.0", {"upstream_prefill": 7.5}),
        ("queue;dur=1;desc=x, prefill", {}),
        ("queue;dur=-1, prefill;dur=1e9", {}),
        ("queue;dur=nan, myqueue;dur=1", {}),
        ("cdn-cache;desc=HIT", {}),
        ("", {}),
    ],
)
async def test_an_engines_times_before_the_first_token_are_phases(
    served: Upstream, backend: RemoteBackend, value: str, expected: dict[str, float]
) -> None:
    answers(served, b"{}", headers={"server-timing": value})
    reply = await send(backend, CALL, MODEL)
    assert timings(reply) == expected
    await reply.aclose()


@pytest.mark.parametrize(
    ("value", "kept"), [("req_abc-123", True), ("x" * 128, True), ("x" * 129, False), ("a\tb", False), ("é", False)]
)
async def test_an_upstream_id_is_kept_where_it_is_safe_in_a_header(
    served: Upstream, backend: RemoteBackend, value: str, kept: bool
) -> None:
    answers(served, b"{}", headers={"x-request-id": value})
    reply = await send(backend, CALL, MODEL)
    assert upstream_id(reply) == (value if kept else "")
    await reply.aclose()
