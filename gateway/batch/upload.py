"""Taking in a file, `POST /v1/files`, without holding it: its bytes are handed on as they come."""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.asgi import BODY_TIMEOUT, SLOWEST, Disconnected, Headers, Message, Receive
from gateway.batch.form import Form, Upload, boundary_of, too_large
from gateway.errors import ApiError

FORM = 64 * 1024
"""So much may come beside the file: the form's other fields, headers and boundaries."""
PIECE = 512 * 1024
SLICE = 16 * 1024
"""So much of a body is read at a time; in between, others have their turn."""


async def read_upload(
    headers: Headers, receive: Receive, piece: Callable[[bytes], Awaitable[None]], *, limit: int
) -> Upload:
    """Hands on the file's bytes, at most `limit`, piece by piece, the last one when all is known to be well. Raises
    ApiError 400, 408, 413 (as soon as it is known) or 415, and Disconnected; then what was handed on is worth nothing.
    """
    form = Form(_boundary(headers, limit), limit)
    clock = asyncio.get_running_loop().time
    size, waited, more = 0, 0.0, True
    while more:
        begun = clock()
        message = await _next(receive, BODY_TIMEOUT + size / SLOWEST - waited)
        waited += clock() - begun  # and not the time that handing on takes, which is ours
        if message["type"] == "http.disconnect":
            raise Disconnected
        body: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(body)
        if size > limit + FORM:
            raise too_large(limit)
        for start in range(0, len(body), SLICE):
            form.feed(body[start : start + SLICE])
            if form.held >= PIECE:
                await piece(form.take())
            await asyncio.sleep(0)
    upload = form.close()
    if form.held:
        await piece(form.take())
    return upload


def _boundary(headers: Headers, limit: int) -> bytes:
    """What stands between the parts of this request, which is one that can be read."""
    declared = headers.get(b"content-length")
    if declared is not None and (not declared.isdigit() or int(declared[:20]) > limit + FORM):
        raise too_large(limit)
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() != b"identity":
        text = "Compressed request bodies are not accepted: send it without Content-Encoding."
        raise ApiError(415, text, code="unsupported_content_encoding")
    return boundary_of(headers.get(b"content-type"))


async def _next(receive: Receive, seconds: float) -> Message:
    """The next message, within so many seconds, or ApiError 408."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            return await receive()
    except TimeoutError:
        text = "The request's body did not arrive in time."
        raise ApiError(408, text, code="request_timeout", headers={"x-should-retry": "false"}) from None
