"""Who may use the admin API, and how far: an `admin` everything, a `tenant_admin` its own tenant."""

from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from cache.match import Match
from gateway.asgi import read_headers
from gateway.errors import ApiError, bad_request
from gateway.principal import Principal

if TYPE_CHECKING:
    from gateway.app import Gateway

MAX_LISTED = 1000


async def enter(gateway: "Gateway", request: Request) -> Principal:
    """Raises ApiError 401 or 403."""
    entrant = await gateway.snapshot().auth.enter(read_headers(request.scope))
    if entrant.principal.role == "member":
        raise forbidden()
    return entrant.principal


async def enter_admin(gateway: "Gateway", request: Request) -> Principal:
    """The same, for what concerns the whole gateway."""
    principal = await enter(gateway, request)
    if not principal.is_admin:
        raise forbidden()
    return principal


def own_tenant(principal: Principal) -> str | None:
    """The one tenant that this principal sees; None: all."""
    return None if principal.is_admin else principal.tenant


def own(match: Match, principal: Principal) -> Match:
    """The match within what this principal may see. Raises ApiError 403."""
    if principal.is_admin:
        return match
    if match.tenant not in (None, principal.tenant):
        raise forbidden()
    return replace(match, tenant=principal.tenant)


def forbidden() -> ApiError:
    return ApiError(403, "This needs the role `admin`, or `tenant_admin` for its own tenant.", code="forbidden")


def read_limit(request: Request) -> int:
    """How many lines are asked for. Raises ApiError 400."""
    text = request.query_params.get("limit", "100")
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_LISTED):
        raise bad_request(f"`limit` must be a whole number from 1 to {MAX_LISTED}.", param="limit")
    return int(text)
