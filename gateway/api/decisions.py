"""`GET /admin/decisions`: the latest decisions, by filters and page by page. A `tenant_admin` sees its own tenant's."""

import asyncio
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.match import Match
from gateway.api.roles import enter, own, own_tenant, read_limit
from gateway.decisions import Outcome
from gateway.errors import JSON_TYPE, ApiError, bad_request, shorten
from gateway.hits import Record
from gateway.principal import Principal
from gateway.wanted import Wanted

if TYPE_CHECKING:
    from gateway.app import Gateway

OUTCOMES = (*get_args(Outcome), "error")
"""What `outcome` may ask for; `error`: what failed before it had one."""
STATUSES = ("error", "ok")
MAX_TEXT = 256
LOOKED_AT = 500
"""Decisions that are compared before the event loop gets a turn: about half a millisecond."""
SHOWN = 25
"""Decisions that are written out before it gets one: about a millisecond."""


class Gone:
    """A bound that is older than all that is kept."""


GONE = Gone()
_ID = re.compile(r"req_[0-9a-f]{1,32}_[0-9]{1,18}")


async def decisions(gateway: "Gateway", request: Request) -> Response:
    """Newest first. `id` for one; else those that meet all filters, older than `before` and newer than `after` (ids),
    at most `limit`; `next` is the `before` of the next page, null on the last."""
    principal = await enter(gateway, request)
    query = request.query_params
    if (id := query.get("id")) is not None:
        return JSONResponse(find_decision(gateway, principal, id, "id").as_dict())
    wanted, limit = _wanted(request, principal), read_limit(request)
    before, after = (_cursor(gateway, request, principal, name) for name in ("before", "after"))
    found = await _select(gateway.recorder.ring.copy(), wanted, before, after, limit + 1)
    page, more = found[:limit], len(found) > limit
    out = {"decisions": await _written(page), "next": page[-1].id if more else None}
    return Response(msgspec.json.encode(out), media_type=JSON_TYPE)


def find_decision(gateway: "Gateway", principal: Principal, id: str, param: str) -> Record:
    """The decision of this id, which came in the field `param`. Raises ApiError 404, also for another tenant's."""
    found = _own(gateway, principal, id)
    if found is None:
        message = f"There is no decision {shorten(id)!r}: it is too old, or its id is wrong."
        raise ApiError(404, message, code="decision_not_found", param=param)
    return found


def _own(gateway: "Gateway", principal: Principal, id: str) -> Record | None:
    tenant = own_tenant(principal)
    found = gateway.recorder.ring.find(id)
    return None if found is None or (tenant is not None and found.tenant != tenant) else found


def _given(request: Request, name: str) -> str | None:
    """An empty one, as forms send it, is none."""
    return request.query_params.get(name) or None


def _wanted(request: Request, principal: Principal) -> Wanted:
    """Raises ApiError 400 or 403."""
    text = _given(request, "text")
    if text is not None and len(text) > MAX_TEXT:
        raise bad_request(f"`text` is longer than {MAX_TEXT} characters.", param="text")
    return Wanted(
        endpoint=_given(request, "endpoint"),
        tenant=own(Match(tenant=_given(request, "tenant")), principal).tenant,
        model=_given(request, "model"),
        outcome=_one_of(request, "outcome", OUTCOMES),
        status=_one_of(request, "status", STATUSES),
        text=None if text is None else text.lower(),
    )


def _one_of(request: Request, name: str, words: tuple[str, ...]) -> str | None:
    value = _given(request, name)
    if value is not None and value not in words:
        raise bad_request(f"`{name}` must be one of {', '.join(words)}.", param=name)
    return value


def _cursor(gateway: "Gateway", request: Request, principal: Principal, name: str) -> str | Gone | None:
    """The id of the decision that is named as a bound. What is not kept any more, or not to be seen, is older than all
    others."""
    id = _given(request, name)
    if id is None:
        return None
    if not _ID.fullmatch(id):
        raise bad_request(f"`{name}` must be the id of a decision, such as req_1f0c_42.", param=name)
    return GONE if _own(gateway, principal, id) is None else id


async def _select(
    newest_first: Iterable[Record],
    wanted: Wanted,
    before: str | Gone | None,
    after: str | Gone | None,
    limit: int,
) -> list[Record]:
    """The first `limit` that are wanted, between the two bounds."""
    found: list[Record] = []
    if before is GONE:
        return found
    within = before is None
    for number, d in enumerate(newest_first, 1):
        if number % LOOKED_AT == 0:
            await asyncio.sleep(0)
        if d.id == after or len(found) == limit:
            break
        if within and wanted.accepts(d):
            found.append(d)
        within = within or d.id == before
    return found


async def _written(page: list[Record]) -> list[dict[str, Any]]:
    out = []
    for number, d in enumerate(page, 1):
        if number % SHOWN == 0:
            await asyncio.sleep(0)
        out.append(d.as_dict())
    return out
