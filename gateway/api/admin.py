"""The admin API that only looks: stats, entries, metrics. A `tenant_admin` sees its own tenant only."""

from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.entry import Entry
from cache.match import Match
from cache.stores.base import StoreUnavailable
from gateway.api.purge import store_down
from gateway.api.roles import enter, enter_admin, own, own_tenant, read_limit
from gateway.metrics import render

if TYPE_CHECKING:
    from gateway.app import Gateway


async def stats(gateway: "Gateway", request: Request) -> Response:
    principal = await enter(gateway, request)
    out = gateway.recorder.ledger.stats(own_tenant(principal))
    stores = await gateway.cache.stats()
    out["tiers"] = {"exact": {name: _store(s) for name, s in stores.items()}} if principal.is_admin else {}
    out["backends"] = {name: {"state": state} for name, state in gateway.backends().items()}
    out["semantic"] = gateway.semantics.stats() if principal.is_admin else {}
    return JSONResponse(out)


async def entries(gateway: "Gateway", request: Request) -> Response:
    """Stored answers without their text, newest first."""
    principal = await enter(gateway, request)
    query = request.query_params
    match = Match(
        endpoint=query.get("endpoint"), model=query.get("model"), tenant=query.get("tenant"), user=query.get("user")
    )
    try:
        found = await gateway.cache.entries(own(match, principal), limit=read_limit(request))
    except StoreUnavailable:
        raise store_down() from None
    now = gateway.clock()
    return JSONResponse({"entries": [_entry(e, now) for e in found]})


async def metrics(gateway: "Gateway", request: Request) -> Response:
    await enter_admin(gateway, request)
    ready = {name: state == "ready" for name, state in gateway.backends().items()}
    flights = gateway.flights
    text = render(
        gateway.recorder.ledger,
        await gateway.cache.stats(),
        ready,
        flights=flights.count,
        listeners=flights.listening,
        semantic=gateway.semantics.stats(),
    )
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _store(stats: Any) -> dict[str, Any]:
    return {
        name: getattr(stats, name)
        for name in ("entries", "bytes", "max_bytes", "evicted", "corrupt", "dropped", "healthy")
    }


def _entry(e: Entry, now: float) -> dict[str, Any]:
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
        "tags": list(e.tags),
        "documents": list(e.documents),
    }
