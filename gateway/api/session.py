"""Signing in to the dashboard, and out: a key with the role against a cookie that no script can read."""

from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.roles import enter, not_own_page
from gateway.asgi import read_headers
from gateway.auth import Key
from gateway.dashboard.cookie import from_own_page, read_cookie, set_cookie
from gateway.errors import ApiError, bad_request
from gateway.front import INCOMING
from gateway.sessions import LIFE
from gateway.strict_json import parse_object

if TYPE_CHECKING:
    from gateway.app import Gateway

MAX_BODY = 4 * 1024
"""Bytes of a sign-in."""

log = structlog.get_logger("refrain")


async def sign_in(gateway: "Gateway", request: Request) -> Response:
    """204 with the cookie; without one where no key is needed. Raises ApiError 401 for a key that is none, 403 for one
    without the role."""
    headers = read_headers(request.scope)
    from_browser = b"origin" in headers or b"sec-fetch-site" in headers
    if from_browser and not from_own_page("POST", headers):
        raise not_own_page()  # a stranger's page would sign the person in as somebody else
    given = _read(request.scope[INCOMING].body)
    auth = gateway.snapshot().auth
    if not auth.required:
        await auth.enter(headers)
        return Response(status_code=204)
    try:
        entrant = await auth.enter({b"authorization": b"Bearer " + given.encode()})
    except ApiError as error:
        log.warning("sign-in refused", code=error.code)
        raise
    principal, key = entrant.principal, entrant.credential
    if principal.role == "member" or not isinstance(key, Key):
        text = "This key has the role `member`. The dashboard needs a key with the role `admin` or `tenant_admin`."
        raise ApiError(403, text, code="forbidden", param="key")
    if (former := read_cookie(headers)) is not None:
        gateway.sessions.close(former)
    value = gateway.sessions.open(key)
    log.info("signed in", tenant=principal.tenant, user=principal.user, role=principal.role)
    return Response(status_code=204, headers={"set-cookie": set_cookie(value, LIFE, headers)})


async def sign_out(gateway: "Gateway", request: Request) -> Response:
    """204, also where nobody was signed in."""
    headers = read_headers(request.scope)
    if not from_own_page("DELETE", headers):
        raise not_own_page()
    if (value := read_cookie(headers)) is not None:
        gateway.sessions.close(value)
    return Response(status_code=204, headers={"set-cookie": set_cookie("", 0, headers)})


async def who(gateway: "Gateway", request: Request) -> Response:
    """Who is signed in, and whether anybody needs to."""
    required = gateway.snapshot().auth.required
    try:
        principal = await enter(gateway, request)
    except ApiError as error:
        if not required or error.status not in (401, 403):
            raise
        principal = None
    return JSONResponse(
        {
            "signed_in": principal is not None,
            "required": required,
            "tenant": principal and principal.tenant,
            "user": principal and principal.user,
            "role": principal and principal.role,
        }
    )


def _read(raw: bytes) -> str:
    if len(raw) > MAX_BODY:
        raise ApiError(413, f"A sign-in has at most {MAX_BODY} bytes.", code="request_too_large")
    body = parse_object(raw)
    key = body.get("key")
    if body.keys() != {"key"} or not isinstance(key, str) or not key.strip():
        raise bad_request('A sign-in is {"key": "..."}.', param="key")
    return key
