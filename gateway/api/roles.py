"""Who may use the admin API, and how far: an `admin` everything, a `tenant_admin` its own tenant.

They come by a credential, or by the dashboard's cookie. That counts here only: nothing under /v1 looks at it.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from cache.match import Match
from gateway.asgi import Headers, read_headers
from gateway.auth import Authenticator, Key
from gateway.dashboard.cookie import from_own_page, read_cookie
from gateway.errors import ApiError, bad_request
from gateway.principal import Principal

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.sessions import Sessions

MAX_LISTED = 1000


async def enter(gateway: "Gateway", request: Request) -> Principal:
    """Raises ApiError 401 or 403."""
    auth, headers = gateway.snapshot().auth, read_headers(request.scope)
    key = _signed_in(auth, gateway.sessions, request.method, headers)
    principal = key.principal if key is not None else (await auth.enter(headers)).principal
    if principal.role == "member":
        raise forbidden()
    return principal


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


def _signed_in(auth: Authenticator, sessions: "Sessions", method: str, headers: Headers) -> Key | None:
    """The key that has signed in by cookie. None: whoever asks comes by a credential, or by none. Raises ApiError 401
    or 403."""
    value = read_cookie(headers)
    # A proxy in front may have its own `Authorization: Basic`, which is no credential here.
    bearer = headers.get(b"authorization", b"").lower().startswith(b"bearer")
    if value is None or not auth.required or bearer or b"x-api-key" in headers:
        return None
    if not from_own_page(method, headers):
        raise not_own_page()
    key = sessions.find(value, auth.keys)
    if key is None:
        text = "The session has ended: sign in to the dashboard again."
        raise ApiError(401, text, code="session_ended", headers={"www-authenticate": "Bearer"})
    return key


def not_own_page() -> ApiError:
    text = "By cookie this answers the dashboard's own page only. Behind a proxy, it must pass the `Host` header on."
    return ApiError(403, text, code="cross_origin")


def forbidden() -> ApiError:
    return ApiError(403, "This needs the role `admin`, or `tenant_admin` for its own tenant.", code="forbidden")


def read_limit(request: Request) -> int:
    """How many lines are asked for. Raises ApiError 400."""
    text = request.query_params.get("limit", "100")
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_LISTED):
        raise bad_request(f"`limit` must be a whole number from 1 to {MAX_LISTED}.", param="limit")
    return int(text)
