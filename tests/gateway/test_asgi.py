"""Reading bodies and watching clients, with the ASGI messages in the test's hand."""

import asyncio
import gzip
from collections.abc import Callable, Coroutine
from selectors import DefaultSelector, SelectorKey
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.asgi import BODY_TIMEOUT, Disconnected, Outlet, read_body, read_headers, send_error
from gateway.errors import ApiError
from tests.gateway.values import few

Messages = list[dict[str, Any]]


def request(*pieces: bytes) -> Messages:
    more = [True] * (len(pieces) - 1) + [False]
    return [{"type": "http.request", "body": p, "more_body": m} for p, m in zip(pieces, more, strict=True)]


GONE = {"type": "http.disconnect"}


class Receiver:
    """Gives out messages, then waits for ever."""

    def __init__(self, messages: Messages) -> None:
        self.left = list(messages)

    async def __call__(self) -> dict[str, Any]:
        if not self.left:
            await asyncio.Event().wait()
        return self.left.pop(0)


async def refusal(messages: Messages, limit: int = 10, header: tuple[str, bytes] | None = None) -> ApiError:
    headers = {header[0].encode(): header[1]} if header else {}
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(read_body(headers, Receiver(messages), limit), 5)
    return caught.value


# Headers


def test_repeated_headers_are_joined_like_lists() -> None:
    headers = [(b"a", b"1"), (b"b", b""), (b"a", b"2"), (b"a", b"")]
    assert read_headers({"headers": headers}) == {b"a": b"1, 2, ", b"b": b""}


# Bodies


@few
@given(st.lists(st.binary(max_size=5), min_size=1, max_size=6))
def test_a_body_is_read_from_its_pieces(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert asyncio.run(read_body({}, Receiver(request(*pieces)), len(whole))) == whole
    if whole:
        assert asyncio.run(refusal(request(*pieces), len(whole) - 1)).status == 413


@pytest.mark.parametrize("declared", [b"11", b"9" * 5000, b"-1", b"+1", b"1e1", b"abc", b" 5", b"5, 5", b"\xb2"])
async def test_a_declared_length_that_is_too_large_or_none_is_refused_unread(declared: bytes) -> None:
    error = await refusal([], header=("content-length", declared))
    assert (error.status, error.code) == (413, "request_too_large")


async def test_a_declared_length_within_the_limit_is_fine() -> None:
    declared = {b"content-length": b"0000000000000000000010"}
    assert await read_body(declared, Receiver(request(b"12345", b"67890")), 10) == b"1234567890"


async def test_a_body_over_the_limit_is_refused_as_soon_as_it_is_known() -> None:
    receiver = Receiver([*request(b"x" * 6, b"x" * 6, b"x" * 6, b"x")])
    with pytest.raises(ApiError) as caught:
        await read_body({}, receiver, 10)
    assert caught.value.status == 413
    assert len(receiver.left) == 2


@pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b"deflate", b"br", b"zstd", b"identity, gzip", b"x"])
async def test_a_compressed_body_is_refused_unread(encoding: bytes) -> None:
    error = await refusal(request(gzip.compress(b"0" * 1000)), header=("content-encoding", encoding))
    assert (error.status, error.code) == (415, "unsupported_content_encoding")


@pytest.mark.parametrize("encoding", [b"identity", b" Identity "])
async def test_identity_is_no_compression(encoding: bytes) -> None:
    assert await read_body({b"content-encoding": encoding}, Receiver(request(b"{}")), 10) == b"{}"


@pytest.mark.parametrize("messages", [[GONE], [*request(b"a", b"")[:1], GONE]], ids=["at once", "in the middle"])
async def test_a_client_that_leaves_while_sending_is_noticed(messages: Messages) -> None:
    with pytest.raises(Disconnected):
        await read_body({}, Receiver(messages), 10)


class _Hurried(DefaultSelector):
    """Where nothing happens, time passes at once."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.passed += timeout
        return ready


def hurried(work: Callable[[], Coroutine[Any, Any, float]]) -> float:
    """Run `work` in an event loop whose clock jumps over every wait; what it returns."""
    selector = _Hurried()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.passed  # type: ignore[method-assign]  # the loop's clock is the seam
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work())


@pytest.mark.parametrize("sent", [0, 1, 3])
def test_a_body_that_stops_arriving_is_given_up(sent: int) -> None:
    """Also one whose first piece never comes: a connection costs the client nothing, and us a place."""

    async def work() -> float:
        pieces = request(*[b"x"] * (sent + 1))[:sent]
        with pytest.raises(ApiError) as caught:
            async with asyncio.timeout(10 * BODY_TIMEOUT):
                await read_body({}, Receiver(pieces), 10)
        assert (caught.value.status, caught.value.code) == (408, "request_timeout")
        assert caught.value.headers == {"x-should-retry": "false"}
        return asyncio.get_running_loop().time()

    assert hurried(work) == pytest.approx(BODY_TIMEOUT, abs=0.01)


# Answers


async def test_an_error_is_sent_in_its_envelope_with_its_headers() -> None:
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(message)

    await send_error(send, ApiError(429, "Slow down: é.", headers={"retry-after": "7"}))
    head, body = sent
    headers = dict(head["headers"])
    assert (head["status"], headers[b"retry-after"], headers[b"content-type"]) == (429, b"7", b"application/json")
    assert int(headers[b"content-length"]) == len(body["body"])
    assert headers[b"cache-control"] == b"private, no-store"


async def test_an_outlet_counts_before_the_client_sees_the_end() -> None:
    order: list[str] = []

    async def send(message: Any) -> None:
        order.append(f"{message['type']} {message.get('more_body', False)}")

    outlet = Outlet(send, lambda: order.append("counted"))
    assert not outlet.started
    await outlet.start(200, [])
    assert outlet.started
    await outlet.write(b"a")
    await outlet.write(b"b", last=True)
    assert order == ["http.response.start False", "http.response.body True", "counted", "http.response.body False"]
    order.clear()
    await Outlet(send, lambda: order.append("counted")).whole(200, [], b"x")
    assert order[0] == "counted"
