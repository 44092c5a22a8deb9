"""The HTTP reply to one request, made from the events of the model's thread: whole, or as server-sent events.

The head goes out with the first token, so that a failure before it has its own status. A client that leaves cancels
the request, queued or running.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backends.local.errors import RequestError
from backends.local.metrics import Metrics
from backends.local.replies import Form, Head, Written
from backends.local.work import Begun, ChoiceEnd, Event, Failed, FinishReason, Piece, TokenLogprob, Usage

CLIENT_LEFT = 499


def error_response(error: RequestError, metrics: Metrics, request_id: str) -> Response:
    headers = {"x-request-id": request_id}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    metrics.requests.labels(str(error.status)).inc()
    return _json(error.envelope(), error.status, headers)


def _json(content: dict[str, Any], status: int, headers: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def _server_timing(**seconds: float) -> str:
    """The header's value, which is in milliseconds."""
    return ", ".join(f"{phase};dur={1000 * value:.1f}" for phase, value in seconds.items())


class Answer:
    """The ASGI application that answers one submitted request. `events` begins with Begun or Failed and ends with Usage
    or Failed. `arrived` is when the request came, by time.perf_counter()."""

    def __init__(
        self,
        *,
        events: asyncio.Queue[Event],
        cancel: Callable[[], None],
        form: Form,
        head: Head,
        arrived: float,
        stream: bool,
        include_usage: bool,
        metrics: Metrics,
    ) -> None:
        self._events = events
        self._cancel = cancel
        self._form = form
        self._head = head
        self._arrived = arrived
        self._stream = stream
        self._include_usage = include_usage
        self._metrics = metrics
        self._left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(self._watch(receive))
        try:
            match await self._events.get():
                case Begun() as begun if self._stream:
                    await self._send_stream(begun, send)
                case Begun() as begun:
                    await (await self._whole(begun))(scope, receive, send)
                case Failed() as failed:
                    await self._error(failed)(scope, receive, send)
                case event:
                    raise AssertionError(f"the first event is {type(event).__name__}")
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
        if self._left or event.reason == "cancelled":  # nobody reads it; for the metrics
            return RequestError("The client left.", status=CLIENT_LEFT)
        status, code, message = {
            "stopping": (503, "engine_stopping", "The engine is stopping."),
            "failed": (500, "engine_failed", "The model failed on this request."),
            "out_of_memory": (503, "engine_out_of_memory", "The engine ran out of memory on this request."),
        }[event.reason]
        return RequestError(message, status=status, type="server_error", code=code)

    def _error(self, event: Failed) -> Response:
        return error_response(self._failure(event), self._metrics, self._head.id)

    async def _whole(self, begun: Begun) -> Response:
        texts: defaultdict[int, list[str]] = defaultdict(list)
        logprobs: defaultdict[int, list[TokenLogprob]] = defaultdict(list)
        reasons: dict[int, FinishReason] = {}
        while True:
            match await self._events.get():
                case Piece(choice, text, tokens):
                    texts[choice].append(text)
                    logprobs[choice] += tokens
                case ChoiceEnd(choice, reason):
                    reasons[choice] = reason
                case Usage() as usage:
                    self._count(usage)
                    choices = [Written("".join(texts[i]), reasons[i], logprobs[i]) for i in sorted(reasons)]
                    timing = _server_timing(
                        queue=begun.queued,
                        prefill=begun.prefill,
                        decode=usage.decode,
                        total=time.perf_counter() - self._arrived,
                    )
                    headers = {"x-request-id": self._head.id, "server-timing": timing}
                    return _json(self._form.whole(self._head, choices, usage), 200, headers)
                case Failed() as failed:
                    return self._error(failed)

    async def _send_stream(self, begun: Begun, send: Send) -> None:
        headers = {
            "x-request-id": self._head.id,
            "cache-control": "no-cache",
            "server-timing": _server_timing(queue=begun.queued, prefill=begun.prefill),
        }
        start = Response(None, 200, headers, media_type="text/event-stream")
        # This length is that of the empty body above; a stream has none.
        raw = [(name, value) for name, value in start.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        opened: set[int] = set()
        last = False
        while not last:
            # What came while the last piece was being sent goes out together.
            events = [await self._events.get()]
            while not self._events.empty():
                events.append(self._events.get_nowait())
            chunks = [chunk for event in events for chunk in self._chunks(event, opened)]
            data = b"".join(b"data: " + chunk + b"\n\n" for chunk in chunks)
            last = isinstance(events[-1], Usage | Failed)
            await send({"type": "http.response.body", "body": data, "more_body": not last})

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
                    chunks.append(form.piece(head, event))
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
