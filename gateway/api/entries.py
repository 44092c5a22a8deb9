"""`GET /admin/entries`: what is stored. A `tenant_admin` sees its own tenant's."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.entry import Entry
from cache.match import Match
from cache.stores.base import StoreUnavailable
from gateway.api.audit import audited
from gateway.api.purge import read_key, store_down
from gateway.api.roles import enter, own, read_limit
from gateway.errors import ApiError
from gateway.retrieval.labels import named

if TYPE_CHECKING:
    from gateway.app import Gateway


async def entries(gateway: "Gateway", request: Request) -> Response:
    """Without their text, newest first. With `key` that one alone and its answer, as JSON in a text; whoever reads one
    is in the audit log."""
    principal = await enter(gateway, request)
    match = own(_read(request, gateway.retrievers.names()), principal)
    if match.key is None:
        found = await _find(gateway, match, read_limit(request))
        return JSONResponse({"entries": [_shown(e, gateway.clock()) for e in found]})

    async def inspect() -> Entry:
        found = await _find(gateway, match, 1)
        if not found:
            raise ApiError(404, "There is no entry of this key.", code="entry_not_found", param="key")
        return found[0]

    details = {"key": match.key.hex()}
    entry = await audited(gateway, request, principal, "inspect", details, inspect, lambda e: {"user": e.user})
    return JSONResponse({"entries": [{**_shown(entry, gateway.clock()), "answer": _text(entry)}]})


def _text(entry: Entry) -> str:
    """What is kept, as text."""
    if entry.api == "embeddings" and len(entry.body) % 4 == 0:
        return str(np.frombuffer(entry.body, "<f4").tolist())
    return entry.body.decode(errors="replace")


async def _find(gateway: "Gateway", match: Match, limit: int) -> list[Entry]:
    try:
        return await gateway.cache.entries(match, limit=limit)
    except StoreUnavailable:
        raise store_down() from None


def _read(request: Request, retrievers: Iterable[str]) -> Match:
    # A field that a form has left empty is none.
    given = {name: value for name, value in request.query_params.items() if value}
    return Match(
        key=read_key(given["key"]) if "key" in given else None,
        tags=frozenset({given["tag"]}) if "tag" in given else None,
        documents=named(given["document"], retrievers) if "document" in given else None,
        endpoint=given.get("endpoint"),
        model=given.get("model"),
        tenant=given.get("tenant"),
        user=given.get("user"),
        text=given.get("text"),
    )


def _shown(e: Entry, now: float) -> dict[str, Any]:
    return {
        "key": e.key.hex(),
        "endpoint": e.endpoint,
        "api": e.api,
        "model": e.model,
        "backend": e.backend,
        "tenant": e.tenant,
        "user": e.user,
        "created": e.created,
        "expires": e.expires,
        "age": e.age(now),
        "bytes": e.size,
        "tokens": e.usage.total,
        "cost": {"ms": e.cost.ms, "usd": e.cost.usd},
        "upstream_id": e.upstream_id or None,
        "tags": list(e.tags),
        "documents": list(e.documents),
    }
