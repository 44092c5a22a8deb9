"""`POST /admin/feedback`: was the answer right that a request was given from the semantic tier?"""

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.audit import audited
from gateway.api.decisions import find_decision
from gateway.api.roles import enter
from gateway.errors import ApiError, bad_request, shorten
from gateway.front import INCOMING
from gateway.hits import Record
from gateway.state import StateError
from gateway.strict_json import parse_object

if TYPE_CHECKING:
    from gateway.app import Gateway

FIELDS = ("request_id", "correct")


async def feedback(gateway: "Gateway", request: Request) -> Response:
    """An answer that was wrong is not served to that question again, by any question that has it. A `tenant_admin`
    speaks of its own tenant's requests."""
    principal = await enter(gateway, request)
    request_id, correct = _read(parse_object(request.scope[INCOMING].body))
    decision = find_decision(gateway, principal, request_id, "request_id")
    pair = decision.key, _source(decision)
    # At once, whatever becomes of the writing.
    pairs = [] if correct else gateway.semantics.report(*pair)

    async def act() -> None:
        try:
            await gateway.state.report_wrong(pairs, at=gateway.clock(), by=principal.user)
        except StateError:
            text = "It is not served again, but that could not be written: a restart may forget it. Try again."
            raise ApiError(503, text, code="not_recorded", headers={"retry-after": "5"}) from None

    details = {"request_id": request_id, "correct": correct, "key": pair[0].hex(), "source": pair[1].hex()}
    await audited(gateway, request, principal, "feedback", details, act, lambda _: {"recorded": True})
    gateway.semantics.judged[correct] += 1
    return JSONResponse({"recorded": True, "source": pair[1].hex()})


def _read(body: dict[str, Any]) -> tuple[str, bool]:
    for name in body:
        if name not in FIELDS:
            raise bad_request(f"Feedback has the fields {', '.join(FIELDS)}.", param=shorten(name))
    request_id, correct = body.get("request_id"), body.get("correct")
    if not isinstance(request_id, str) or not request_id:
        raise bad_request("`request_id` must be the x-request-id of an answer.", param="request_id")
    if not isinstance(correct, bool):
        raise bad_request("`correct` must be true or false.", param="correct")
    return request_id, correct


def _source(decision: Record) -> bytes:
    """The key of the answer that served it. Raises ApiError 409 where it was not another question's."""
    for tier in decision.tiers:
        if tier.name == "semantic" and tier.result == "hit" and tier.source is not None:
            return tier.source
    text = "This request was not answered from the semantic tier. To have another answer made, purge its key."
    raise ApiError(409, text, code="not_semantic", param="request_id")
