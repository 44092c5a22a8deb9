"""`GET /admin/live`: what `/admin/overview` says, and the decisions, as they come (server-sent events)."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.api.overview import read_view
from gateway.api.roles import enter
from gateway.dashboard.live import Seat
from gateway.errors import ApiError
from gateway.heads import SSE
from gateway.http import ENDLESS

if TYPE_CHECKING:
    from gateway.app import Gateway


class EventStream(StreamingResponse):
    """The events of one seat, which is given back however the stream ends."""

    def __init__(self, gateway: "Gateway", request: Request, seat: Seat) -> None:
        view = seat.view

        async def allowed() -> bool:
            """Is whoever asked still who may see this? A key is revoked, a session ends, a role changes."""
            try:
                return read_view(request, await enter(gateway, request)) == view
            except ApiError:
                return False

        # The second header is for nginx, which gathers answers unless it is told not to.
        headers = {"content-type": SSE[1].decode(), "x-accel-buffering": "no"}
        super().__init__(seat.events(allowed), headers=headers)
        self._seat = seat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ENDLESS] = True
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._seat.leave()


async def live(gateway: "Gateway", request: Request) -> Response:
    view = read_view(request, await enter(gateway, request))
    if request.method == "HEAD":
        return Response(media_type=SSE[1].decode())
    return EventStream(gateway, request, gateway.live.join(view))
