"""The audit log: what was taken away (answers, keys), by whom, and what came of it.

A line is written before the thing is done and completed after it: what could not be written is not done.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.roles import enter, own_tenant, read_limit
from gateway.decisions import new_request_id
from gateway.errors import ApiError
from gateway.principal import Principal
from gateway.state import AuditLine, StateError

if TYPE_CHECKING:
    from gateway.app import Gateway

log = structlog.get_logger("refrain")
T = TypeVar("T")


async def audit(gateway: "Gateway", request: Request) -> Response:
    """The latest lines, newest first; a `tenant_admin` sees what its own tenant's people have done."""
    principal = await enter(gateway, request)
    try:
        lines = await gateway.state.lines(tenant=own_tenant(principal), limit=read_limit(request))
    except StateError as error:
        raise _unavailable(error) from None
    return JSONResponse({"lines": lines})


async def audited(
    gateway: "Gateway",
    principal: Principal,
    action: str,
    details: Mapping[str, Any],
    act: Callable[[], Awaitable[T]],
    result: Callable[[T], Mapping[str, Any]],
) -> T:
    """Do it between the two halves of its line. Raises ApiError: what `act` does, and 503 where nothing can be
    written."""
    line = AuditLine(
        at=gateway.clock(),
        tenant=principal.tenant,
        user=principal.user,
        role=principal.role,
        action=action,
        details=details,
        request_id=new_request_id(),
    )
    try:
        number = await gateway.state.begin(line)
    except StateError as error:
        raise _unavailable(error) from None
    try:
        done = await act()
    except ApiError as error:
        await _end(gateway, number, line, {"error": error.code})
        raise
    await _end(gateway, number, line, result(done))
    return done


async def _end(gateway: "Gateway", number: int, line: AuditLine, result: Mapping[str, Any]) -> None:
    about = {"action": line.action, "by": line.user, "tenant": line.tenant, "role": line.role}
    log.info("audit", **about, details=dict(line.details), result=dict(result))
    try:
        await gateway.state.end(number, result=result)
    except StateError as error:
        # It is done; that it began is written.
        log.error("an audit line could not be completed", number=number, reason=str(error))


def _unavailable(error: StateError) -> ApiError:
    log.error("the audit log cannot be used", reason=str(error))
    text = "The audit log cannot be read or written, and nothing is done without it. See the gateway's log."
    return ApiError(503, text, code="audit_unavailable", headers={"retry-after": "5"})
