"""The engine's HTTP side: an OpenAI-style server with plain Starlette routes."""

import asyncio
import math
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.base import Priority
from backends.local.answer import CLIENT_LEFT, Answer, error_response
from backends.local.embeddings import parse_embeddings
from backends.local.errors import RequestError, wrong_value
from backends.local.limits import STALLED
from backends.local.params import ChatRequest, TextRequest, parse_chat, parse_text
from backends.local.replies import ChatForm, Head, TextForm
from backends.local.service import Service, log
from backends.local.work import Event, Origin

MAX_BODY = 10 * 2**20
LARGE_BODY = 100_000
"""Bytes from which a body is parsed in a thread."""
SALT_HEADER = "x-refrain-prefix-salt"
"""Names the partition of the prefix cache: requests with different ones share nothing."""
PARTY_HEADER = "x-refrain-party"
"""Who shares the model fairly with others."""
PRIORITY_HEADER = "x-refrain-priority"
"""`interactive`, which goes without saying, or `batch`."""
MAX_LABEL = 128

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response | Answer]]


def create_app(service: Service) -> Starlette:
    """The application; the service may still be loading."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        if not service.ready:
            return JSONResponse({"status": "loading", "detail": service.progress.detail}, 503)
        if (seconds := service.stalled) > STALLED:
            running = f"a step of the model has been running for {seconds:.0f} s"
            detail = running if math.isfinite(seconds) else "the GPU has failed, and no step can be done"
            return JSONResponse({"status": "stalled", "detail": detail}, 503)
        return JSONResponse({"status": "ready"})

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(request: Request) -> Response:
        model = {"id": service.name, "object": "model", "created": service.created, "owned_by": "refrain"}
        return JSONResponse({"object": "list", "data": [model]})

    async def chat(request: Request) -> Response | Answer:
        return await _answer(service, request, parse_chat, ChatForm)

    async def text(request: Request) -> Response | Answer:
        return await _answer(service, request, parse_text, TextForm)

    async def embeddings(request: Request) -> Response:
        return await _embed(service, request)

    async def http_error(request: Request, error: Exception) -> Response:
        """404 and 405."""
        if not isinstance(error, HTTPException):
            raise error
        message = f"{request.method} {request.url.path}: {error.detail}."
        unknown = RequestError(
            message, status=error.status_code, code="unknown_url" if error.status_code == 404 else None
        )
        response = error_response(unknown, service.metrics, _new_id("req-"))
        response.headers.update(error.headers or {})
        return response

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", text, methods=["POST"]),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
            Route("/v1/models", models),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ],
        exception_handlers={HTTPException: http_error},
    )
    app.router.redirect_slashes = False
    return app


async def _answer(
    service: Service,
    request: Request,
    parse: Callable[[object], ChatRequest | TextRequest],
    form: type[ChatForm] | type[TextForm],
) -> Response | Answer:
    """Check and submit one request."""
    arrived = time.perf_counter()
    head = Head(_new_id(form.id_prefix), int(time.time()), service.name, service.system_fingerprint)
    events: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def emit(event: Event) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    try:
        origin = Origin(_label(request, SALT_HEADER), _label(request, PARTY_HEADER), _priority(request))
        parsed = await _parsed(request, parse)
        job = await service.submit(parsed, emit, origin)
    except Exception as error:
        return _failure(service, error, head.id)
    options = parsed.options
    return Answer(
        events=events,
        cancel=lambda: service.cancel(job),
        form=form(logprobs=options.sampling.logprobs is not None),
        head=head,
        arrived=arrived,
        stream=options.stream,
        include_usage=options.include_usage,
        metrics=service.metrics,
    )


async def _embed(service: Service, request: Request) -> Response:
    request_id = _new_id("embd-")
    try:
        priority = _priority(request)
        parsed = await _parsed(request, parse_embeddings)
        reply = await service.embed(parsed, request.is_disconnected, priority)
    except Exception as error:
        return _failure(service, error, request_id)
    service.metrics.requests.labels("200").inc()
    service.metrics.tokens.labels("prompt").inc(reply.tokens)
    return Response(reply.body, headers={"x-request-id": request_id}, media_type="application/json")


def _failure(service: Service, error: Exception, request_id: str) -> Response:
    """Every error becomes an envelope here, and an unexpected one is logged without its text, which may quote the
    prompt."""
    if isinstance(error, ClientDisconnect):
        service.metrics.requests.labels(str(CLIENT_LEFT)).inc()
        return Response(status_code=CLIENT_LEFT)
    if isinstance(error, RequestError):
        return error_response(error, service.metrics, request_id)
    log(f"request failed: {type(error).__name__}\n{''.join(traceback.format_tb(error.__traceback__))}")
    hidden = RequestError("The engine failed on this request.", status=500, type="server_error", code="engine_failed")
    return error_response(hidden, service.metrics, request_id)


def _label(request: Request, name: str) -> str:
    value = request.headers.get(name, "")
    if len(value) > MAX_LABEL or not (value.isascii() and value.isprintable()):
        raise wrong_value(name, f"at most {MAX_LABEL} printable ASCII characters")
    return value


def _priority(request: Request) -> Priority:
    value = request.headers.get(PRIORITY_HEADER, "")
    if value not in ("", "interactive", "batch"):
        raise wrong_value(PRIORITY_HEADER, "interactive or batch")
    return "batch" if value == "batch" else "interactive"


async def _parsed(request: Request, parse: Callable[[object], T]) -> T:
    """The body, checked. A large one takes seconds, which the event loop has not: streams wait for it."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise RequestError(f"The body is over {MAX_BODY} bytes.", status=413, code="request_too_large")
    if len(body) <= LARGE_BODY:
        return parse(_decoded(body))
    return await asyncio.to_thread(lambda: parse(_decoded(body)))


def _decoded(body: bytearray) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("The body is no valid JSON.", code="invalid_json") from error


def _new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex
