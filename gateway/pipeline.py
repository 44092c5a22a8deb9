"""The way of a request that was let in (gateway.reception), top to bottom: understand, exact tier, join a flight or
lead one.

Every step writes to the decision. A cache that fails is a miss.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic, perf_counter

from cache.exact import ExactCache
from cache.freshness import Verdict, expires_at, judge, refresh_at
from cache.stores.memory import STEP, Slot
from gateway.asgi import Receive, Scope, Send
from gateway.ask import Ask, understand
from gateway.auth import Entrant
from gateway.batch.plain import PlainCalls
from gateway.config.endpoints import Retrieval
from gateway.deliver import deliver
from gateway.errors import ApiError
from gateway.flights import Flights
from gateway.forms import stored_form
from gateway.front import Replay
from gateway.heads import reuse
from gateway.latency.budget import OVER_BUDGET, Durations
from gateway.normalize import Api
from gateway.reception import Arrival, Reception
from gateway.recorder import Recorder
from gateway.retrieval.grounds import DocumentsUnreachable, Grounding, without_documents
from gateway.reuse import Reuse
from gateway.semantics import Semantics
from gateway.strict_json import large_body
from gateway.visit import Visit
from gateway.why.explain import Explainer


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One per application. `clock` is wall-clock seconds; `lookups` is what those of the exact tier have taken that
    memory could not answer."""

    cache: ExactCache
    grounding: Grounding
    flights: Flights
    semantics: Semantics
    recorder: Recorder
    reception: Reception
    later: PlainCalls
    clock: Callable[[], float]
    lookups: Durations = field(default_factory=Durations)
    explainer: Explainer = field(default_factory=Explainer)

    async def __call__(
        self, api: Api, endpoint: str, scope: Scope, receive: Receive, send: Send, *, entrant: Entrant | None = None
    ) -> None:
        """Answer one request to the endpoint of this name; of `entrant` see Reception."""
        visit = await self.reception(partial(self._answer, api), api, endpoint, scope, receive, send, entrant=entrant)
        if visit.ask is not None:
            await self.explainer.explain(visit, self.clock(), large=large_body(visit.incoming.body))

    async def _answer(self, api: Api, visit: Visit, arrival: Arrival) -> None:
        d, snapshot, raw = visit.decision, visit.snapshot, arrival.raw
        at = perf_counter()
        arguments = (api, raw, arrival.headers, arrival.query, arrival.endpoint, arrival.principal, snapshot)
        ask = await asyncio.to_thread(understand, *arguments) if large_body(raw) else understand(*arguments)
        d.model, d.backend, d.stream = ask.model, ask.backend.name, ask.form != "json"
        visit.phase("parse", at)
        if (retrieval := arrival.endpoint.config.retrieval) is None:
            await self._answer_keyed(visit, ask, arrival)
        else:
            await self._answer_grounded(visit, ask, retrieval, arrival)

    async def _answer_grounded(self, visit: Visit, ask: Ask, retrieval: Retrieval, arrival: Arrival) -> None:
        """Answer from documents, or as the retriever's policy says where it is down."""
        try:
            ask = await self.grounding(visit, ask, retrieval, arrival.receive)
        except ApiError:
            visit.decision.outcome = "miss"
            raise
        if ask.grounds is None:  # nothing was asked of them
            ask = ask.resting_on(None)
        try:
            await self._answer_keyed(visit, ask, arrival)
            return
        except DocumentsUnreachable as error:
            # What is made now is not what the key stands for: whoever waited under it begins anew, each by itself.
            ask, reason = without_documents(ask, retrieval), error.reason
        visit.decision.tiers = ()
        visit.tier("retrieval", "miss", reason)
        await self._answer_keyed(visit, ask, arrival)

    async def _answer_keyed(self, visit: Visit, ask: Ask, arrival: Arrival) -> None:
        """Answer a request whose key is known."""
        assert ask.key  # without one it would share its answer with everybody
        d = visit.decision
        d.key, d.documents = ask.key, "" if ask.grounds is None else ask.grounds.shown
        if await self._reuse(visit, ask):
            return
        visit.ask, visit.known = ask, self.explainer.before(ask.key)
        if ask.directives.only_if_cached:
            if await self._reuse_similar(visit, ask):
                return
            message = "Nothing is cached for this request, and it asked for a cached answer only."
            raise ApiError(504, message, code="not_cached", headers={"x-should-retry": "false"})
        try:
            if self.later.take(visit, ask):
                await self.later(visit, ask, arrival)
            else:
                await self._fetch(visit, ask, arrival.receive)
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
        slot = self.cache.front.peek(ask.key)
        if slot is None:
            if not self.lookups.fit(visit.left(ask.endpoint.config.budget), begun):
                visit.tier("exact", "skipped", OVER_BUDGET)
                return await self._reuse_remembered(visit, ask)
            slot = await self.cache.get(ask.key)
            now = perf_counter()
            self.lookups.add(now - begun, now)
        visit.phase("exact", begun)
        if slot is None:
            visit.tier("exact", "miss")
            return await self._reuse_remembered(visit, ask)
        now = slot.now(self.clock(), monotonic())
        verdict = judge(slot.entry, life, now, max_age=asked.max_age, max_stale=asked.max_stale)
        if not verdict.usable:
            visit.tier("exact", "miss", verdict.why, int(verdict.ttl))
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
        if (spent := visit.take_spent()) is not None:
            self.recorder.charge(visit.decision, spent)
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
        # What the tiers that keep answers said before the failure.
        visit.decision.tiers = tuple(tier for tier in visit.decision.tiers if tier.name == "retrieval")
        await self._serve(visit, ask, visit.spare, verdict, now, "stale_if_error")
        return True

    async def _fetch(self, visit: Visit, ask: Ask, receive: Receive) -> None:
        filled = await deliver(self.flights.board(visit, ask), receive)
        if filled.slot is not None and filled.reuse is None:
            if visit.decision.outcome == "miss":  # one is enough to prepare what the next ones will be sent
                await stored_form(self.cache.front, ask, filled.slot)
            if filled.slot.entry.key == ask.key:  # not a fallback's answer: its own backend may be back any time
                self._learn(visit, ask, filled.slot, filled.slot.now(self.clock(), monotonic()))

    def _learn(self, visit: Visit, ask: Ask, slot: Slot, now: float) -> None:
        """Let the same bytes come the short way next time."""
        alias, life, credential = visit.incoming.alias, ask.life, visit.credential
        if alias is None or life is None or credential is None or not ask.plain:
            return
        grounds = ask.grounds
        until = min(refresh_at(slot.entry, life), credential.until, inf if grounds is None else grounds.expires)
        if until <= now:
            return
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
            grounds=grounds,
        )
        self.cache.front.alias(alias, slot, replay, Replay.SIZE)
