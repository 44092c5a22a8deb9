"""How every request that Refrain answers itself begins and ends, whatever it asks for.

It begins with a decision, who asks, the limits, and the endpoint's policy; it ends with an answer, or with one error in
the envelope (before the first byte) or an error event (after it), and the decision is recorded either way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from gateway.asgi import Disconnected, Headers, Outlet, Receive, Scope, Send, read_headers
from gateway.auth import Entrant
from gateway.deadlines import deadline_of
from gateway.decisions import Decision, new_request_id
from gateway.errors import ApiError
from gateway.flight import stopping
from gateway.front import INCOMING, Incoming
from gateway.logs import where
from gateway.principal import Principal
from gateway.recorder import Recorder
from gateway.snapshot import Endpoint, Snapshot
from gateway.visit import Visit
from gateway.wire.sse import event

CLIENT_GONE = 499

log = structlog.get_logger("refrain")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that may come in. `query` is the query string; `name` is the part of the path that says what is asked
    for, where there is one."""

    endpoint: Endpoint
    principal: Principal
    raw: bytes = field(repr=False)
    headers: Headers = field(repr=False)
    query: str
    receive: Receive = field(repr=False)
    name: str = ""


Handler = Callable[[Visit, Arrival], Awaitable[None]]
"""Answers through `visit.outlet`. May raise ApiError and Disconnected."""


@dataclass(frozen=True, slots=True)
class Reception:
    """One per application. `clock` is wall-clock seconds."""

    recorder: Recorder
    snapshot: Callable[[], Snapshot]
    clock: Callable[[], float]

    async def __call__(
        self,
        handler: Handler,
        api: str,
        endpoint: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        name: str = "",
        entrant: Entrant | None = None,
    ) -> Visit:
        """Let `handler` answer one request to the endpoint of this name; `entrant` is who asks where the gateway itself
        says so, for the batch lane, and counts in the limits when that has counted it."""
        incoming: Incoming = scope[INCOMING]
        decision = Decision(new_request_id(), self.clock(), "", api)
        finish = partial(self.recorder.finish, decision, incoming.started)
        visit = Visit(self.snapshot(), incoming, decision, Outlet(send, finish), batch=entrant is not None)
        try:
            await handler(visit, await self._admit(visit, endpoint, scope, receive, name, entrant))
        except ApiError as error:
            await self._fail(visit, error)
        except Disconnected:
            decision.error, decision.status = "client_disconnected", CLIENT_GONE
        except asyncio.CancelledError:
            if visit.batch:  # the lane lets go of it
                decision.error, decision.status = "client_disconnected", CLIENT_GONE
                raise
            # The server ends what has not ended within the grace, and waits for nothing but this.
            await self._fail(visit, stopping())
        except Exception as error:
            log.error("unexpected error", request_id=decision.id, kind=type(error).__name__, where=where(error))
            await self._fail(visit, ApiError(500, "The gateway failed on this request.", code="internal_error"))
        finally:
            finish()
        return visit

    async def _admit(
        self, visit: Visit, name: str, scope: Scope, receive: Receive, part: str, entrant: Entrant | None
    ) -> Arrival:
        """Raises ApiError for who may not ask."""
        d, snapshot = visit.decision, visit.snapshot
        headers = read_headers(scope)
        if entrant is None:
            entrant = await snapshot.auth.enter(headers)
        d.principal, visit.credential = entrant.principal, entrant.credential
        d.endpoint = name if name in snapshot.endpoints else ""
        if not visit.batch:
            entrant.take()
        endpoint = snapshot.endpoint(name)
        endpoint.admit(entrant.principal)
        if not visit.batch:  # nobody waits for those
            visit.deadline = deadline_of(endpoint.config.deadline, headers, visit.incoming.started)
        visit.phase("auth", visit.incoming.started)
        query = scope["query_string"].decode("latin-1")
        return Arrival(endpoint, entrant.principal, visit.incoming.body, headers, query, receive, part)

    async def _fail(self, visit: Visit, error: ApiError) -> None:
        d, outlet = visit.decision, visit.outlet
        d.error = error.word
        if outlet.ended:
            return
        if outlet.streaming:
            # The status is out. An error event is the only honest end: SDKs raise on it, and no [DONE] follows.
            await outlet.write(event(error.body()), last=True)
            return
        d.status = error.status
        await outlet.error(error, visit.head())
