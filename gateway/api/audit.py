"""The audit log: what was taken away (answers, keys), by whom, and what came of it.

A line is written before the thing is done and completed after it: what could not be written is not done.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.roles import enter, own_tenant, read_limit
from gateway.errors import ApiError
from gateway.principal import Principal
from gateway.retrieval.changes import Author
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


async def begin(
    gateway: "Gateway", request: Request, principal: Principal | Author, action: str, details: Mapping[str, Any]
) -> int:
    """Write down what is going to be done; gives the line's number. Raises StateError."""
    return await gateway.state.begin(
        AuditLine(
            at=gateway.clock(),
            tenant=principal.tenant,
            user=principal.user,
            role=principal.role,
            action=action,
            details=details,
            request_id=request.state.request_id,
        )
    )


async def end(
    gateway: "Gateway",
    number: int,
    principal: Principal | Author,
    action: str,
    details: Mapping[str, Any],
    result: Mapping[str, Any],
) -> None:
    """Write down what came of it."""
    who = {"by": principal.user, "tenant": principal.tenant, "role": principal.role}
    log.info("audit", action=action, **who, details=dict(details), result=dict(result))
    try:
        await gateway.state.end(number, result=result)
    except StateError as error:
        # It is done; that it began is written.
        log.error("an audit line could not be completed", number=number, reason=str(error))


async def audited(
    gateway: "Gateway",
    request: Request,
    principal: Principal | Author,
    action: str,
    details: Mapping[str, Any],
    act: Callable[[], Awaitable[T]],
    result: Callable[[T], Mapping[str, Any]],
) -> T:
    """Do it between the two halves of its line. Raises ApiError: what `act` does, and 503 where nothing can be
    written."""
    try:
        number = await begin(gateway, request, principal, action, details)
    except StateError as error:
        raise _unavailable(error) from None
    try:
        done = await act()
    except ApiError as error:
        await end(gateway, number, principal, action, details, {"error": error.code})
        raise
    await end(gateway, number, principal, action, details, result(done))
    return done


def _unavailable(error: StateError) -> ApiError:
    log.error("the audit log cannot be used", reason=str(error))
    text = "The audit log cannot be read or written, and nothing is done without it. See the gateway's log."
    return ApiError(503, text, code="audit_unavailable", headers={"retry-after": "5"})
