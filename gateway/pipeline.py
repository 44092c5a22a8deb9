"""The way of a request, top to bottom: authenticate, understand, exact tier, join a flight or lead one.

Every step writes to the decision. A cache that fails is a miss; what goes wrong before the first byte becomes one
error in the envelope, what goes wrong after it an error event.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter

import structlog

from cache.exact import ExactCache
from cache.freshness import Verdict, expires_at, judge, refresh_at
from cache.stores.memory import STEP, Slot
from gateway.asgi import Disconnected, Outlet, Receive, Scope, Send, read_headers
from gateway.ask import Ask, understand
from gateway.decisions import Decision, new_request_id
from gateway.deliver import deliver
from gateway.errors import ApiError
from gateway.flight import stopping
from gateway.flights import Flights
from gateway.forms import stored_form
from gateway.front import INCOMING, Incoming, Replay
from gateway.heads import reuse
from gateway.logs import where
from gateway.normalize import Api
from gateway.recorder import Recorder
from gateway.reuse import Reuse
from gateway.semantics import Semantics
from gateway.snapshot import Snapshot
from gateway.visit import Visit
from gateway.wire.sse import event

log = structlog.get_logger("refrain")

LARGE_BODY = 8 * 1024
MANY_VALUES = 2_000
"""A body of more bytes, or of more commas, is parsed in a thread, so that it does not hold up the event loop."""

CLIENT_GONE = 499


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One per application. `clock` is wall-clock seconds."""

    cache: ExactCache
    flights: Flights
    semantics: Semantics
    recorder: Recorder
    snapshot: Callable[[], Snapshot]
    clock: Callable[[], float]

    async def __call__(self, api: Api, endpoint: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to the endpoint of this name."""
        incoming: Incoming = scope[INCOMING]
        decision = Decision(new_request_id(), self.clock(), "", api)
        finish = partial(self.recorder.finish, decision, incoming.started)
        visit = Visit(self.snapshot(), incoming, decision, Outlet(send, finish))
        try:
            await self._answer(visit, api, endpoint, scope, receive)
        except ApiError as error:
            await self._fail(visit, error)
        except Disconnected:
            decision.error, decision.status = "client_disconnected", CLIENT_GONE
        except asyncio.CancelledError:
            # The server ends what has not ended within the grace, and waits for nothing but this.
            await self._fail(visit, stopping())
        except Exception as error:
            log.error("unexpected error", request_id=decision.id, kind=type(error).__name__, where=where(error))
            await self._fail(visit, ApiError(500, "The gateway failed on this request.", code="internal_error"))
        finally:
            finish()

    async def _answer(self, visit: Visit, api: Api, name: str, scope: Scope, receive: Receive) -> None:
        d, snapshot, raw = visit.decision, visit.snapshot, visit.incoming.body
        headers = read_headers(scope)
        entrant = await snapshot.auth.enter(headers)
        d.principal, visit.credential = entrant.principal, entrant.credential
        d.endpoint = name if name in snapshot.endpoints else ""
        entrant.take()
        endpoint = snapshot.endpoint(name)
        endpoint.admit(entrant.principal)
        at = visit.phase("auth", visit.incoming.started)

        arguments = (api, raw, headers, scope["query_string"].decode("latin-1"), endpoint, d.principal, snapshot)
        if len(raw) < LARGE_BODY and raw.count(b",") < MANY_VALUES:
            ask = understand(*arguments)
        else:
            ask = await asyncio.to_thread(understand, *arguments)
        d.model, d.backend, d.key, d.stream = ask.model, ask.backend.name, ask.key, ask.form != "json"
        visit.phase("parse", at)

        if await self._reuse(visit, ask):
            return
        if ask.directives.only_if_cached:
            if await self._reuse_similar(visit, ask):
                return
            message = "Nothing is cached for this request, and it asked for a cached answer only."
            raise ApiError(504, message, code="not_cached", headers={"x-should-retry": "false"})
        try:
            await self._fetch(visit, ask, receive)
        except ApiError as error:
            if error.status < 500 or visit.outlet.started or not await self._instead(visit, ask):
                raise

    async def _reuse(self, visit: Visit, ask: Ask) -> bool:
        """Answer from the exact tier if it may and can."""
        d, asked, life = visit.decision, ask.directives, ask.life
        if ask.bypass is not None or life is None:
            d.outcome = "bypass"
            visit.tier("exact", "skipped", ask.bypass)
            return False
        d.outcome = "miss"
        if asked.no_cache:
            visit.tier("exact", "skipped", "no_cache")
            return False
        if "exact" not in asked.tiers:
            visit.tier("exact", "skipped", "tier_not_asked")
            return False
        begun = perf_counter()
        slot = await self.cache.get(ask.key)
        visit.phase("exact", begun)
        if slot is None:
            visit.tier("exact", "miss")
            return await self._reuse_remembered(visit, ask)
        now = slot.now(self.clock(), monotonic())
        verdict = judge(slot.entry, life, now, max_age=asked.max_age, max_stale=asked.max_stale)
        if not verdict.usable:
            visit.tier("exact", "miss", verdict.why)
            if verdict.on_error:
                visit.spare, visit.mark = slot, self.cache.mark()
            return await self._reuse_remembered(visit, ask)
        if verdict.refresh and not asked.only_if_cached:
            self.flights.refresh(visit, ask, slot.entry)
        elif not verdict.stale:
            self._learn(visit, ask, slot, now)
        why = "stale_while_revalidate" if verdict.stale and verdict.refresh else None
        await self._serve(visit, ask, slot, verdict, now, why)
        return True

    async def _reuse_remembered(self, visit: Visit, ask: Ask) -> bool:
        """Answer as the semantic tier has answered this request before."""
        reuse = self.semantics.remembered(ask, visit.snapshot.generation)
        return reuse is not None and await self._serve_similar(visit, ask, reuse, "alias")

    async def _reuse_similar(self, visit: Visit, ask: Ask) -> bool:
        """Answer from the semantic tier, for a request that has nobody called."""
        finding = await self.semantics.find(visit, ask)
        reuse = None if finding is None else self.semantics.reuse(finding, ask)
        return reuse is not None and await self._serve_similar(visit, ask, reuse)

    async def _serve_similar(self, visit: Visit, ask: Ask, reuse: Reuse, why: str | None = None) -> bool:
        body = await stored_form(self.cache.front, ask, reuse.slot)
        reuse.book(visit, why)
        await visit.outlet.whole(200, visit.headers(ask), body)
        return True

    async def _serve(self, visit: Visit, ask: Ask, slot: Slot, verdict: Verdict, now: float, why: str | None) -> None:
        d = visit.decision
        d.outcome = "stale" if verdict.stale else "exact"
        visit.tier("exact", "hit", why, ttl=int(verdict.ttl))
        reuse(d, slot.entry, now)
        await visit.outlet.whole(200, visit.headers(ask), await stored_form(self.cache.front, ask, slot))

    async def _instead(self, visit: Visit, ask: Ask) -> bool:
        """After a failure of the backend: serve the stale answer that was found on the way, if it still may be."""
        if visit.spare is None or ask.life is None:
            return False
        if self.cache.purged(visit.spare.entry, since=visit.mark):
            return False
        now = visit.spare.now(self.clock(), monotonic())
        verdict = judge(visit.spare.entry, ask.life, now, max_age=ask.directives.max_age)
        if not verdict.on_error:
            return False
        visit.decision.tiers = ()  # what the tier said before the failure
        await self._serve(visit, ask, visit.spare, verdict, now, "stale_if_error")
        return True

    async def _fetch(self, visit: Visit, ask: Ask, receive: Receive) -> None:
        filled = await deliver(self.flights.board(visit, ask), receive)
        if filled.slot is not None and filled.reuse is None:
            if visit.decision.outcome == "miss":  # one is enough to prepare what the next ones will be sent
                await stored_form(self.cache.front, ask, filled.slot)
            self._learn(visit, ask, filled.slot, filled.slot.now(self.clock(), monotonic()))

    def _learn(self, visit: Visit, ask: Ask, slot: Slot, now: float) -> None:
        """Let the same bytes come the short way next time."""
        alias, life, credential = visit.incoming.alias, ask.life, visit.credential
        if alias is None or life is None or credential is None or not ask.plain:
            return
        until = min(refresh_at(slot.entry, life), credential.until)
        replay = Replay(
            generation=visit.snapshot.generation,
            principal=ask.principal,
            credential=credential,
            endpoint=ask.endpoint.name,
            api=ask.api,
            model=ask.model,
            form=ask.form,
            expires=expires_at(slot.entry, life),
            until=until,
            deadline=perf_counter() + until - now + STEP,
            slot=slot,
        )
        self.cache.front.alias(alias, slot, replay, Replay.SIZE)

    async def _fail(self, visit: Visit, error: ApiError) -> None:
        d, outlet = visit.decision, visit.outlet
        d.error = error.code or error.type
        if outlet.ended:
            return
        if outlet.streaming:
            # The status is out. An error event is the only honest end: SDKs raise on it, and no [DONE] follows.
            await outlet.write(event(error.body()), last=True)
            return
        d.status = error.status
        await outlet.error(error, visit.head())
