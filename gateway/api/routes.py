"""Every route of the gateway, and what becomes of requests that match none."""

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api import (
    admin,
    audit,
    batches,
    decisions,
    documents,
    entries,
    feedback,
    files,
    health,
    keys,
    live,
    metrics,
    models,
    overview,
    purge,
    session,
    webhooks,
)
from gateway.asgi import App, Receive, Scope, Send
from gateway.ask import PATHS
from gateway.dashboard.page import page
from gateway.decisions import new_request_id
from gateway.errors import JSON_TYPE, ApiError
from gateway.logs import where
from gateway.normalize import Api
from gateway.reception import Handler as Errand

if TYPE_CHECKING:
    from gateway.app import Gateway

log = structlog.get_logger("refrain")

Handler = Callable[["Gateway", Request], Awaitable[Response]]
V1 = ("/v1", "/{endpoint}/v1")
ANSWERS: dict[str, Api] = {path: api for api, path in PATHS.items()}
_OURS = re.compile(rf"(?:/([^/]+))?/v1/(?:({'|'.join(ANSWERS)})|(embeddings)|vector_stores/([^/]+)/(search))")


def install(app: FastAPI, gateway: "Gateway") -> None:
    """Add all routes and error handlers to the application, but for what `Direct` takes."""
    for prefix in V1:
        for path in (*ANSWERS, "embeddings", "vector_stores/{id}/search"):
            app.router.routes.append(Route(f"{prefix}/{path}", _only_post))
        _add(app, gateway, "GET", prefix + "/models", models.list_models)
        _add(app, gateway, "GET", prefix + "/models/{model:path}", models.get_model)
        _add(app, gateway, "POST", prefix + "/files", files.upload)
        _add(app, gateway, "GET", prefix + "/files", files.list_files)
        _add(app, gateway, "GET", prefix + "/files/{id}", files.get_file)
        _add(app, gateway, "DELETE", prefix + "/files/{id}", files.delete_file)
        _add(app, gateway, "GET", prefix + "/files/{id}/content", files.content)
        _add(app, gateway, "POST", prefix + "/batches", batches.create)
        _add(app, gateway, "GET", prefix + "/batches", batches.list_batches)
        _add(app, gateway, "GET", prefix + "/batches/{id}", batches.get_batch)
        _add(app, gateway, "POST", prefix + "/batches/{id}/cancel", batches.cancel)
    _add(app, gateway, "GET", "/healthz", health.healthz)
    _add(app, gateway, "GET", "/readyz", health.readyz)
    _add(app, gateway, "GET", "/metrics", metrics.metrics)
    _add(app, gateway, "GET", "/admin/stats", admin.stats)
    _add(app, gateway, "GET", "/admin/decisions", decisions.decisions)
    _add(app, gateway, "GET", "/admin/overview", overview.overview)
    _add(app, gateway, "GET", "/admin/live", live.live)
    _add(app, gateway, "GET", "/admin/entries", entries.entries)
    _add(app, gateway, "POST", "/admin/purge", purge.purge)
    _add(app, gateway, "POST", "/admin/documents", documents.documents)
    _add(app, gateway, "POST", "/admin/feedback", feedback.feedback)
    _add(app, gateway, "GET", "/admin/keys", keys.list_keys)
    _add(app, gateway, "POST", "/admin/keys/revoke", keys.revoke)
    _add(app, gateway, "GET", "/admin/audit", audit.audit)
    _add(app, gateway, "POST", "/webhooks/{retriever}", webhooks.webhook)
    _add(app, gateway, "POST", "/dashboard/session", session.sign_in)
    _add(app, gateway, "DELETE", "/dashboard/session", session.sign_out)
    _add(app, gateway, "GET", "/dashboard/session", session.who)
    _add(app, gateway, "GET", "/dashboard", page)
    _add(app, gateway, "GET", "/dashboard/{path:path}", page)
    app.add_exception_handler(HTTPException, _no_route)


class Direct:
    """In front of the framework: requests for an answer, for embeddings and for search results go straight to what
    answers them. The framework's layers would take a tenth of a miss and a part of every piece of a stream, and have
    nothing to do for these."""

    def __init__(self, app: App, gateway: "Gateway") -> None:
        self._app = app
        self._pipeline = gateway.pipeline
        self._reception = gateway.reception
        self._errands: dict[str, Errand] = {"embeddings": gateway.embeddings, "search": gateway.searches}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _OURS.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        endpoint, answer, embeddings, store, search = found.groups(default="")
        endpoint = endpoint or "default"
        if answer:
            await self._pipeline(ANSWERS[answer], endpoint, scope, receive, send)
        else:
            api = embeddings or search
            await self._reception(self._errands[api], api, endpoint, scope, receive, send, name=store)


async def _only_post(request: Request) -> Response:
    raise HTTPException(405, headers={"allow": "POST"})


def _add(app: FastAPI, gateway: "Gateway", method: str, path: str, handler: Handler) -> None:
    async def endpoint(request: Request) -> Response:
        request.state.request_id = new_request_id()
        try:
            response = await handler(gateway, request)
        except ApiError as error:
            response = _render(error)
        except Exception as error:
            log.error("unexpected error", path=path, kind=type(error).__name__, where=where(error))
            response = _render(ApiError(500, "The gateway failed on this request.", code="internal_error"))
        response.headers.setdefault("cache-control", "private, no-store")
        response.headers["x-content-type-options"] = "nosniff"
        response.headers["x-request-id"] = request.state.request_id
        return response

    app.router.routes.append(Route(path, endpoint, methods=[method]))


def _render(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.headers, JSON_TYPE)


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    if status == 405:
        message, code = f"{request.method} is not allowed here.", "method_not_allowed"
    else:
        message, code = "There is nothing at this path. The API lives under /v1 and /<endpoint>/v1.", "unknown_url"
    response = _render(ApiError(status, message, code=code))
    response.headers.update({"cache-control": "private, no-store", "x-request-id": new_request_id()})
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
