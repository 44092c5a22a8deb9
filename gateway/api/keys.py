"""API keys, as far as a running gateway goes: which there are, and taking one back at once."""

from typing import TYPE_CHECKING, Any

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.audit import begin, end
from gateway.api.roles import enter, forbidden, own_tenant
from gateway.auth import Key
from gateway.errors import ApiError, bad_request
from gateway.front import INCOMING
from gateway.principal import Principal
from gateway.state import StateError
from gateway.strict_json import parse_object

if TYPE_CHECKING:
    from gateway.app import Gateway

log = structlog.get_logger("refrain")

ID_LENGTH = 12
"""Hexadecimal digits of a key's hash by which it is named: too few to make a guess at the key any easier."""


async def list_keys(gateway: "Gateway", request: Request) -> Response:
    """The configured keys; a `tenant_admin` sees those of its tenant."""
    tenant = own_tenant(await enter(gateway, request))
    keys = [k for k in gateway.identity.keys if tenant in (None, k.principal.tenant)]
    return JSONResponse({"keys": [_shown(key) for key in keys]})


async def revoke(gateway: "Gateway", request: Request) -> Response:
    """Take a key back, by its id: its next request is refused, and those after a restart too."""
    principal = await enter(gateway, request)
    body = parse_object(request.scope[INCOMING].body)
    key = _find(gateway, principal, _id(body))
    if key.principal.is_admin and not principal.is_admin:
        raise forbidden()
    shown = _shown(key)

    # At once, whatever becomes of the writing.
    gateway.identity.revoke(key)

    details = {name: shown[name] for name in ("id", "tenant", "user")}
    try:
        await gateway.state.revoke(key.digest, at=gateway.clock(), by=principal.user)
        number = await begin(gateway, request, principal, "revoke", details)
        await end(gateway, number, principal, "revoke", details, {"revoked": True})
    except StateError as error:
        log.error("a revocation could not be written", id=shown["id"], reason=str(error))
        text = (
            "The key is refused from now on, but not all of that could be written. Try again: a restart may forget it."
        )
        raise ApiError(503, text, code="not_recorded", headers={"retry-after": "5"}) from None
    return JSONResponse({"revoked": shown["id"], "durable": gateway.state.durable})


def _find(gateway: "Gateway", principal: Principal, id: str) -> Key:
    """Raises ApiError 404, also for another tenant's keys: whether there are any is not theirs to know."""
    tenant = own_tenant(principal)
    found = [k for k in gateway.identity.keys if k.digest.hex().startswith(id) and tenant in (None, k.principal.tenant)]
    if len(found) != 1:
        raise ApiError(404, "No key has this id; GET /admin/keys lists them.", code="key_not_found", param="id")
    return found[0]


def _id(body: dict[str, Any]) -> str:
    for name in body:
        if name != "id":
            raise bad_request("A revocation has one field, `id`.", param=str(name)[:64])
    text = body.get("id")
    text = text.removeprefix("sha256:").lower() if isinstance(text, str) else ""
    if not ID_LENGTH <= len(text) <= 64 or not set(text) <= set("0123456789abcdef"):
        message = f"`id` must be the first {ID_LENGTH} hexadecimal digits of the key's hash, or more of them."
        raise bad_request(message, param="id")
    return text


def _shown(key: Key) -> dict[str, Any]:
    p = key.principal
    return {
        "id": key.digest.hex()[:ID_LENGTH],
        "tenant": p.tenant,
        "user": p.user,
        "role": p.role,
        "permissions": sorted(p.permissions),
        "delegate": key.delegate,
        "limits": key.meter.shown() if key.meter is not None else {},
        "revoked": key.revoked,
    }
