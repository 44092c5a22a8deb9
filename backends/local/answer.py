"""The HTTP reply to one request, made from the events of the model's thread: whole, or as server-sent events.

The head goes out with the first event, so that a failure before it has its own status. A client that leaves cancels
the request, queued or running.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backends.local.errors import RequestError
from backends.local.metrics import Metrics
from backends.local.replies import Form, Head
from backends.local.work import ChoiceEnd, Event, Failed, FinishReason, Piece, Usage

CLIENT_LEFT = 499


def error_response(error: RequestError, metrics: Metrics, request_id: str) -> Response:
    headers = {"x-request-id": request_id}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    metrics.requests.labels(str(error.status)).inc()
    return _json(error.envelope(), error.status, headers)


def _json(content: dict[str, Any], status: int, headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


class Answer:
    """The ASGI application that answers one submitted request. `events` ends with Usage or Failed."""

    def __init__(
        self,
        *,
        events: asyncio.Queue[Event],
        cancel: Callable[[], None],
        form: Form,
        head: Head,
        stream: bool,
        include_usage: bool,
        metrics: Metrics,
    ) -> None:
        self._events = events
        self._cancel = cancel
        self._form = form
        self._head = head
        self._stream = stream
        self._include_usage = include_usage
        self._metrics = metrics
        self._left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(self._watch(receive))
        try:
            first = await self._events.get()
            if self._stream and not isinstance(first, Failed):
                await self._send_stream(first, send)
            else:
                response = await self._whole(first)
                await response(scope, receive, send)
        finally:
            self._cancel()
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._cancel()

    def _failure(self, event: Failed) -> RequestError:
        """What the client is told about an answer that came to no end."""
        if self._left:  # nobody reads it; for the metrics
            return RequestError("The client left.", status=CLIENT_LEFT)
        if event.cancelled:
            return RequestError("The engine is stopping.", status=503, type="server_error", code="engine_stopping")
        return RequestError("The model failed on this request.", status=500, type="server_error", code="engine_failed")

    async def _whole(self, event: Event) -> Response:
        texts: dict[int, list[str]] = {}
        choices: list[tuple[str, FinishReason]] = []
        while True:
            match event:
                case Piece(choice, text):
                    texts.setdefault(choice, []).append(text)
                case ChoiceEnd(choice, reason):
                    choices.append(("".join(texts.get(choice, [])), reason))
                case Usage():
                    self._count(event)
                    return _json(self._form.whole(self._head, choices, event), 200, {"x-request-id": self._head.id})
                case Failed():
                    return error_response(self._failure(event), self._metrics, self._head.id)
            event = await self._events.get()

    async def _send_stream(self, event: Event, send: Send) -> None:
        headers = {"x-request-id": self._head.id, "cache-control": "no-cache"}
        start = Response(None, 200, headers, media_type="text/event-stream")
        # This length is that of the empty body above; a stream has none.
        raw = [(name, value) for name, value in start.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        opened: set[int] = set()
        while True:
            data = b"".join(b"data: " + chunk + b"\n\n" for chunk in self._chunks(event, opened))
            last = isinstance(event, Usage | Failed)
            await send({"type": "http.response.body", "body": data, "more_body": not last})
            if last:
                return
            event = await self._events.get()

    def _chunks(self, event: Event, opened: set[int]) -> list[bytes]:
        """The data of the server-sent events that one event becomes. An error is never followed by [DONE]."""
        form, head = self._form, self._head
        chunks: list[dict[str, Any]] = []
        match event:
            case Piece(choice) | ChoiceEnd(choice):
                if choice not in opened:
                    opened.add(choice)
                    if (opening := form.opening(head, choice)) is not None:
                        chunks.append(opening)
                if isinstance(event, Piece):
                    chunks.append(form.piece(head, choice, event.text))
                else:
                    chunks.append(form.end(head, choice, event.reason))
            case Usage():
                self._count(event)
                usage = [msgspec.json.encode(form.usage(head, event))] if self._include_usage else []
                return [*usage, b"[DONE]"]
            case Failed():
                self._metrics.requests.labels(str(CLIENT_LEFT if self._left else 200)).inc()
                return [msgspec.json.encode(self._failure(event).envelope())]
        if self._include_usage:
            chunks = [chunk | {"usage": None} for chunk in chunks]
        return [msgspec.json.encode(chunk) for chunk in chunks]

    def _count(self, usage: Usage) -> None:
        self._metrics.requests.labels("200").inc()
        self._metrics.tokens.labels("prompt").inc(usage.prompt)
        self._metrics.tokens.labels("completion").inc(usage.completion)
