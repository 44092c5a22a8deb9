"""ASGI in small: types, headers as a mapping, reading a bounded body, sending a whole answer."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping, Sequence
from time import monotonic
from types import CoroutineType
from typing import Any

from gateway.errors import ApiError
from gateway.heads import JSON, PRIVATE, Header

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = dict[bytes, bytes]

BODY_TIMEOUT = 30.0
SLOWEST = 16 * 1024
"""A request body has so many seconds, and one more for every so many bytes: a client that is slower than that holds a
connection and a buffer for nothing."""


class Disconnected(Exception):
    """The client left before it had its answer."""


def read_headers(scope: Scope) -> Headers:
    """Headers by lower-case name; repeated ones joined by ", " as HTTP lists are."""
    found: Headers = {}
    for name, value in scope["headers"]:
        found[name] = found[name] + b", " + value if name in found else value
    return found


async def read_body(headers: Headers, receive: Receive, limit: int, why: str = "server.max_body") -> bytes:
    """The request's body, at most `limit` bytes; `why` tells the client what sets the limit. Raises ApiError 413 (as
    soon as it is known), 415 or 408, and Disconnected."""
    declared = headers.get(b"content-length")
    if declared is not None and (not declared.isdigit() or int(declared[:20]) > limit):
        raise _too_large(limit, why)
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() != b"identity":
        # Inflating what a client sends is how small requests become large ones.
        text = "Compressed request bodies are not accepted: send it without Content-Encoding."
        raise ApiError(415, text, code="unsupported_content_encoding")
    message = await _next(receive, BODY_TIMEOUT)
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        pieces, size, begun = [body], len(body), monotonic()
        while message.get("more_body"):
            if size > limit:
                raise _too_large(limit, why)
            message = await _next(receive, begun + BODY_TIMEOUT + size / SLOWEST - monotonic())
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
        body = b"".join(pieces)
    if message["type"] == "http.disconnect":
        raise Disconnected
    if len(body) > limit:
        raise _too_large(limit, why)
    return body


async def _next(receive: Receive, seconds: float) -> Message:
    """The next message, within so many seconds, or ApiError 408."""
    # Nearly always the message is here already, and a timer would cost more than all else that a hit does. So the
    # first step is taken without one.
    coming = receive()
    if not isinstance(coming, CoroutineType):
        coming = _awaiting(coming)
    try:
        waits_for = coming.send(None)
    except StopIteration as here:
        message: Message = here.value
        return message
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            return await _Rest(coming, waits_for)
    except TimeoutError:
        text = "The request's body did not arrive in time."
        raise ApiError(408, text, code="request_timeout", headers={"x-should-retry": "false"}) from None


class _Rest:
    """The rest of a coroutine whose first step has been taken; `waits_for` is what that step gave to the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, Message], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Message]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    value = yield waits_for
                except BaseException as error:
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(value)
        except StopIteration as done:
            message: Message = done.value
            return message


async def _awaiting(awaitable: Awaitable[Message]) -> Message:
    return await awaitable


def _too_large(limit: int, why: str) -> ApiError:
    text = f"The request's body is over {limit} bytes ({why})."
    return ApiError(413, text, code="request_too_large", headers={"connection": "close"})


async def send_whole(send: Send, status: int, headers: Sequence[Header], body: bytes) -> None:
    """One answer in one piece. `headers` come without Content-Length."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, body: bytes, headers: Sequence[Header] = (PRIVATE,)) -> None:
    await send_whole(send, status, [JSON, *headers], body)


async def send_error(send: Send, error: ApiError, headers: Sequence[Header] = (PRIVATE,)) -> None:
    own = [(name.encode(), value.encode("latin-1", "replace")) for name, value in error.headers.items()]
    await send_whole(send, error.status, [JSON, *headers, *own], error.body())


class Outlet:
    """A response being sent. Once its head is out (`started`) no status can change, and while it is `streaming` an
    error can only be an event; when it has `ended` nothing can be said any more.

    `before_last` is called when all is ready but the last piece: what the client sees done is then already counted.
    """

    def __init__(self, send: Send, before_last: Callable[[], None]) -> None:
        self._send = send
        self._before_last = before_last
        self.started = False
        self.streaming = False
        self.ended = False

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        self.started = self.streaming = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        if last:
            self.ended = True
            self._before_last()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def whole(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        self.started = self.ended = True
        self._before_last()
        await send_whole(self._send, status, headers, body)

    async def error(self, error: ApiError, headers: Sequence[Header]) -> None:
        self.started = self.ended = True
        self._before_last()
        await send_error(self._send, error, headers)
