"""What files and batches have in common: each has an owner, and lists of them come in pages."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.asgi import read_headers
from gateway.auth import Entrant
from gateway.batch.lane import Lane
from gateway.errors import ApiError, bad_request, shorten

if TYPE_CHECKING:
    from gateway.app import Gateway


async def enter(gateway: "Gateway", request: Request) -> Entrant:
    """Whoever may use the endpoint in the path. Raises ApiError."""
    snapshot = gateway.snapshot()
    entrant = await snapshot.auth.enter(read_headers(request.scope))
    entrant.take()
    snapshot.endpoint(request.path_params.get("endpoint", "default")).admit(entrant.principal)
    return entrant


def lane_of(gateway: "Gateway") -> Lane:
    """Raises ApiError 501 where there is none."""
    if gateway.lane is None:
        text = "Batches need a store on the disk that no other gateway has: set store.durable_url to sqlite:///path."
        raise ApiError(501, text, code="batches_not_available", headers={"x-should-retry": "false"})
    return gateway.lane


def not_found(what: str, id: str, param: str | None = None) -> ApiError:
    """Somebody else's is as good as none."""
    text = f"There is no {what} {shorten(id)!r} of yours."
    return ApiError(404, text, code=f"{what}_not_found", param=param or f"{what}_id")


def as_json(shown: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(shown), media_type="application/json")


@dataclass(frozen=True, slots=True)
class Paging:
    """How many are given at once: at most, and to who does not say."""

    most: int
    usual: int


@dataclass(frozen=True, slots=True)
class Page:
    after: str | None
    limit: int
    newest_first: bool

    def shown(self, found: list[dict[str, Any]] | None) -> dict[str, Any]:
        """A list as OpenAI's clients read it. `found` may hold one more than was asked for; None: `after` is nobody's.
        Raises ApiError 404."""
        if found is None:
            raise ApiError(404, f"`after` names nothing of yours: {shorten(self.after or '')!r}.", param="after")
        data = found[: self.limit]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return {"object": "list", "data": data, **ends, "has_more": len(found) > self.limit}


def read_page(request: Request, paging: Paging) -> Page:
    """Raises ApiError 400."""
    asked = request.query_params
    text, order = asked.get("limit", str(paging.usual)), asked.get("order", "desc")
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= paging.most):
        raise bad_request(f"`limit` must be a whole number from 1 to {paging.most}.", param="limit")
    if order not in ("asc", "desc"):
        raise bad_request("`order` must be asc or desc.", param="order")
    return Page(asked.get("after"), int(text), order == "desc")
