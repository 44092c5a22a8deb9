"""`GET /admin/overview`: what the dashboard shows at a glance. A `tenant_admin` sees its own tenant's figures."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.match import Match
from gateway.api.roles import enter, own
from gateway.dashboard.overview import View
from gateway.dashboard.tally import ALL, RANGES
from gateway.errors import bad_request
from gateway.principal import Principal

if TYPE_CHECKING:
    from gateway.app import Gateway

DEFAULT_RANGE = "1h"


async def overview(gateway: "Gateway", request: Request) -> Response:
    view = read_view(request, await enter(gateway, request))
    return JSONResponse(await gateway.overviews.make(gateway, view))


def read_view(request: Request, principal: Principal) -> View:
    """What is asked for, within what this principal may see. Raises ApiError 400 or 403."""
    # A field that a form has left empty is none.
    given = {name: value for name, value in request.query_params.items() if value}
    range_ = given.get("range", DEFAULT_RANGE)
    if range_ not in (*RANGES, ALL):
        raise bad_request(f"`range` must be one of {', '.join((*RANGES, ALL))}.", param="range")
    match = own(Match(tenant=given.get("tenant")), principal)
    decisions = given.get("decisions", "yes")
    if decisions not in ("yes", "no"):
        raise bad_request("`decisions` must be yes or no.", param="decisions")
    return View(range_, given.get("endpoint"), match.tenant, principal.is_admin, decisions == "yes")
