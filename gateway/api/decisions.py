"""`GET /admin/decisions`: the latest decisions. A `tenant_admin` sees its own tenant's."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.roles import enter, own_tenant, read_limit
from gateway.decisions import Decision
from gateway.errors import ApiError, shorten
from gateway.principal import Principal

if TYPE_CHECKING:
    from gateway.app import Gateway


async def decisions(gateway: "Gateway", request: Request) -> Response:
    """Newest first; `id` for one, `limit` for how many."""
    principal = await enter(gateway, request)
    wanted = request.query_params.get("id")
    if wanted is not None:
        return JSONResponse(find_decision(gateway, principal, wanted, "id").as_dict())
    tenant, limit = own_tenant(principal), read_limit(request)
    seen = (d for d in gateway.recorder.ring if tenant is None or d.tenant == tenant)
    return JSONResponse({"decisions": [d.as_dict() for d, _ in zip(seen, range(limit), strict=False)]})


def find_decision(gateway: "Gateway", principal: Principal, id: str, param: str) -> Decision:
    """The decision of this id, which came in the field `param`. Raises ApiError 404, also for another tenant's."""
    tenant = own_tenant(principal)
    found = gateway.recorder.ring.find(id)
    if found is None or (tenant is not None and found.tenant != tenant):
        message = f"There is no decision {shorten(id)!r}: it is too old, or its id is wrong."
        raise ApiError(404, message, code="decision_not_found", param=param)
    return found
