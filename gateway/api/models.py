"""`/v1/models`: what may be asked for here. Names from the configuration, and what its backends list behind globs."""

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from backends.base import Backend, Call
from gateway.asgi import read_headers
from gateway.config import backend_for
from gateway.errors import ApiError, shorten
from gateway.snapshot import Snapshot
from gateway.upstream import read_answer, send

if TYPE_CHECKING:
    from gateway.app import Gateway

LIST_TIMEOUT = 3.0
"""Seconds for a backend to list its models; one that is slower is left out."""


async def list_models(gateway: "Gateway", request: Request) -> Response:
    snapshot = await _enter(gateway, request)
    return JSONResponse({"object": "list", "data": list((await _known(snapshot)).values())})


async def get_model(gateway: "Gateway", request: Request) -> Response:
    snapshot = await _enter(gateway, request)
    name = request.path_params["model"]
    known = await _known(snapshot)
    if name not in known:
        raise ApiError(404, f"There is no model {shorten(name)!r} here.", code="model_not_found", param="model")
    return JSONResponse(known[name])


async def _enter(gateway: "Gateway", request: Request) -> Snapshot:
    snapshot = gateway.snapshot()
    entrant = await snapshot.auth.enter(read_headers(request.scope))
    entrant.take()
    snapshot.endpoint(request.path_params.get("endpoint", "default")).admit(entrant.principal)
    return snapshot


async def _known(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """Model objects by name. A name that no client could be answered for is not listed."""
    config = snapshot.config
    literal = {
        name: {"id": name, "object": "model", "created": 0, "owned_by": backend}
        for name, backend in config.models.items()
        if not set("*?[") & set(name)
    }
    asked = [b for name, b in snapshot.backends.items() if name in config.models.values()]
    listed = await asyncio.gather(*(_listed(b) for b in asked))
    behind = {
        model["id"]: model
        for backend, models in zip(asked, listed, strict=True)
        for model in models
        if backend_for(config, model["id"]) == backend.name
    }
    return {**behind, **literal}


async def _listed(backend: Backend) -> list[dict[str, Any]]:
    try:
        async with asyncio.timeout(LIST_TIMEOUT):
            reply = await send(backend, Call("models", b"", method="GET"))
            try:
                _, found = await read_answer(reply)
            finally:
                await reply.aclose()
    except (ApiError, TimeoutError):
        return []
    data = found.get("data")
    listed = data if isinstance(data, list) else []
    return [m for m in listed if isinstance(m, dict) and isinstance(m.get("id"), str)]
