"""The admin API: stats, decisions, entries, purge, metrics. A `tenant_admin` sees and purges its own tenant only."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.entry import Entry
from cache.match import Match
from cache.stores.base import StoreUnavailable
from gateway.asgi import read_headers
from gateway.config.units import parse_duration
from gateway.errors import ApiError, bad_request, shorten
from gateway.front import INCOMING
from gateway.metrics import render
from gateway.principal import Principal
from gateway.strict_json import parse_object

if TYPE_CHECKING:
    from gateway.app import Gateway

log = structlog.get_logger("refrain")

MAX_LISTED = 1000
CRITERIA = ("key", "tags", "documents", "endpoint", "model", "tenant", "user", "older_than")
LATER = ("like", "soft")


async def stats(gateway: "Gateway", request: Request) -> Response:
    principal = _enter(gateway, request)
    out = gateway.recorder.ledger.stats(_tenant(principal))
    stores = await gateway.cache.stats()
    out["tiers"] = {"exact": {name: _store(s) for name, s in stores.items()}} if principal.is_admin else {}
    out["backends"] = {name: {"state": state} for name, state in gateway.backends().items()}
    out["semantic"] = {}
    return JSONResponse(out)


async def decisions(gateway: "Gateway", request: Request) -> Response:
    """The latest decisions, newest first; `id` for one, `limit` for how many."""
    principal = _enter(gateway, request)
    tenant, ring = _tenant(principal), gateway.recorder.ring
    wanted = request.query_params.get("id")
    if wanted is not None:
        found = ring.find(wanted)
        if found is None or (tenant is not None and found.tenant != tenant):
            message = f"There is no decision {shorten(wanted)!r}: it is too old, or its id is wrong."
            raise ApiError(404, message, code="decision_not_found", param="id")
        return JSONResponse(found.as_dict())
    limit = _limit(request)
    seen = (d for d in ring if tenant is None or d.tenant == tenant)
    return JSONResponse({"decisions": [d.as_dict() for d, _ in zip(seen, range(limit), strict=False)]})


async def entries(gateway: "Gateway", request: Request) -> Response:
    """Stored answers without their text, newest first."""
    principal = _enter(gateway, request)
    query = request.query_params
    match = Match(
        endpoint=query.get("endpoint"), model=query.get("model"), tenant=query.get("tenant"), user=query.get("user")
    )
    try:
        found = await gateway.cache.entries(_own(match, principal), limit=_limit(request))
    except StoreUnavailable:
        raise _store_down() from None
    now = gateway.clock()
    return JSONResponse({"entries": [_entry(e, now) for e in found]})


async def purge(gateway: "Gateway", request: Request) -> Response:
    """Remove stored answers by criteria that must all hold; `dry_run` only counts."""
    principal = _enter(gateway, request)
    body = parse_object(request.scope[INCOMING].body)
    match, dry_run = read_purge(body, gateway.clock())
    match = _own(match, principal)
    try:
        purged = await gateway.cache.purge(match, dry_run=dry_run)
    except StoreUnavailable:
        raise _store_down() from None
    log.info("purge", by=principal.user, tenant=principal.tenant, criteria=sorted(body), purged=purged, dry_run=dry_run)
    return JSONResponse({"purged": purged})


async def metrics(gateway: "Gateway", request: Request) -> Response:
    principal = _enter(gateway, request)
    if not principal.is_admin:
        raise _forbidden()
    ready = {name: state == "ready" for name, state in gateway.backends().items()}
    flights = gateway.flights
    text = render(
        gateway.recorder.ledger,
        await gateway.cache.stats(),
        ready,
        flights=flights.count,
        listeners=flights.listening,
    )
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def read_purge(body: dict[str, Any], now: float) -> tuple[Match, bool]:
    """The criteria of a purge request and whether it is a dry run. Raises ApiError 400 with the field's name."""
    for name in body:
        if name in LATER:
            raise bad_request(f"`{name}` is not supported yet.", param=name, code="not_supported")
        if name not in (*CRITERIA, "dry_run"):
            raise bad_request(f"`{shorten(name)}` is no criterion: {', '.join(CRITERIA)}.", param=shorten(name))
    dry_run = body.get("dry_run", False)
    if not isinstance(dry_run, bool):
        raise bad_request("`dry_run` must be true or false.", param="dry_run")
    if not any(name in body for name in CRITERIA):
        raise bad_request(f'Say what to purge: {", ".join(CRITERIA)}. Everything is {{"older_than": "0s"}}.')
    match = Match(
        key=_key(body),
        tags=_names(body, "tags"),
        documents=_names(body, "documents"),
        endpoint=_text(body, "endpoint"),
        model=_text(body, "model"),
        tenant=_text(body, "tenant"),
        user=_text(body, "user"),
        older_than=_before(body, now),
    )
    return match, dry_run


def _key(body: dict[str, Any]) -> bytes | None:
    text = _text(body, "key")
    try:
        key = None if text is None else bytes.fromhex(text)
    except ValueError:
        key = b""
    if key is not None and len(key) != 32:
        raise bad_request("`key` must be 64 hexadecimal digits, as /admin/entries shows them.", param="key")
    return key


def _text(body: dict[str, Any], name: str) -> str | None:
    if name not in body:
        return None
    if not isinstance(body[name], str) or not body[name]:
        raise bad_request(f"`{name}` must be a text.", param=name)
    return str(body[name])


def _names(body: dict[str, Any], name: str) -> frozenset[str] | None:
    if name not in body:
        return None
    value = body[name]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
        raise bad_request(f"`{name}` must be a list of texts.", param=name)
    return frozenset(names)


def _before(body: dict[str, Any], now: float) -> float | None:
    text = _text(body, "older_than")
    if text is None:
        return None
    try:
        return now - parse_duration(text)
    except ValueError as error:
        raise bad_request(f"`older_than`: {error}", param="older_than") from None


def _enter(gateway: "Gateway", request: Request) -> Principal:
    principal = gateway.snapshot().auth.principal(read_headers(request.scope))
    if principal.role == "member":
        raise _forbidden()
    return principal


def _tenant(principal: Principal) -> str | None:
    return None if principal.is_admin else principal.tenant


def _own(match: Match, principal: Principal) -> Match:
    if principal.is_admin:
        return match
    if match.tenant not in (None, principal.tenant):
        raise _forbidden()
    return replace(match, tenant=principal.tenant)


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "100")
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_LISTED):
        raise bad_request(f"`limit` must be a whole number from 1 to {MAX_LISTED}.", param="limit")
    return int(text)


def _forbidden() -> ApiError:
    return ApiError(403, "This needs the role `admin`, or `tenant_admin` for its own tenant.", code="forbidden")


def _store_down() -> ApiError:
    return ApiError(
        503, "The store does not answer; try again.", code="store_unavailable", headers={"retry-after": "5"}
    )


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
