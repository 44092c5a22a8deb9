"""Says of each request that no cache has answered why that is; and remembers what was asked, for the next one.

It is done when the client has its answer, and compares with what was known when the request came.
"""

import asyncio
import secrets
from collections import deque
from math import inf

import structlog

from gateway.ask import Ask
from gateway.decisions import Decision, Tier
from gateway.logs import where
from gateway.visit import Visit
from gateway.why.nearest import Before, Found, Nearest
from gateway.why.sketch import Sketch, sketch
from gateway.why.why import Why, code_of

LATE = 64
"""Answers that may still be made for others when whoever began them has left: so many are looked for."""

log = structlog.get_logger("refrain")


class Explainer:
    """One per gateway."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)
        self._nearest = Nearest()
        # Not the requests themselves, which may be large.
        self._late: deque[tuple[Decision, bytes, Sketch, float]] = deque(maxlen=LATE)

    def before(self, key: bytes) -> Before:
        """What is known when a request of this key comes."""
        if self._late:
            self._catch_up()
        return self._nearest.before(key)

    async def explain(self, visit: Visit, now: float, *, large: bool) -> None:
        """Write into the decision why no cache has answered, and learn the request. A defect here is nobody's trouble
        but the log's. `now` is wall-clock seconds; `large`: too large a body to look at on the event loop."""
        d, ask, known = visit.decision, visit.ask, visit.known
        if ask is None or known is None or d.outcome not in ("miss", "bypass"):
            return
        try:
            if ask.bypass is not None:
                d.why = Why(ask.bypass)
                return
            if d.failures:  # a fallback's answer is kept where the next such request may find it
                ask = ask.on(visit.snapshot.backends[d.backend])
            made = await asyncio.to_thread(sketch, ask, self._secret) if large else sketch(ask, self._secret)
            found = self._nearest.find(ask.scope.digest(), made, before=known, now=now)
            d.why = explain(d, found, now)
            self._learn(d, ask.scope.digest(), made, _ends(ask, d.at))
        except Exception as error:
            log.error("unexpected error", request_id=d.id, kind=type(error).__name__, where=where(error))

    def _learn(self, d: Decision, scope: bytes, made: Sketch, ends: float) -> None:
        reason = d.not_stored
        if not d.stored and reason is None:
            if d.error != "client_disconnected":
                return  # there was no answer
            reason = "client_left"
            self._late.append((d, scope, made, ends))
        self._nearest.learn(scope, made, ends=ends, reason=reason)

    def _catch_up(self) -> None:
        """Some answers were made and kept although whoever began them had left."""
        for late in list(self._late):
            d, scope, made, ends = late
            if d.stored or d.not_stored is not None:
                self._late.remove(late)
                self._nearest.learn(scope, made, ends=ends, reason=d.not_stored)


def explain(d: Decision, found: Found, now: float) -> Why:
    """Why this request, which may be answered from a cache, was not. `found` is what came before in its scope."""
    exact = _tier(d, "exact")
    if exact is not None and exact.why is not None:
        if exact.result == "skipped":
            return Why(exact.why)
        ago = None if exact.ttl is None else float(-exact.ttl)
        return Why(exact.why, (), d.key, amount=ago)
    if found.same is not None:
        if found.same.reason is not None:
            return Why("not_stored_before", reason=found.same.reason)
        if found.same.ends <= now:
            return Why("expired", amount=now - found.same.ends)
        return Why("purged_or_evicted")
    if found.nearest is None:
        return Why("first_request")
    nearest = found.nearest.sketch.key
    code = "continued" if found.continued else code_of(found.differs)
    said = _tier(d, "semantic")
    if code != "question":
        # Another question may have been nearer, to whom the semantic tier has looked.
        if said is None or said.similarity is None:
            return Why(code, found.differs, nearest)
        return Why(code, found.differs, nearest, reason=said.why, amount=said.similarity)
    if said is None:
        return Why(code, found.differs, nearest, reason="tier_off")
    if said.source is not None:
        nearest = said.source
    return Why(code, found.differs, nearest, reason=said.why, amount=said.similarity)


def _tier(d: Decision, name: str) -> Tier | None:
    return next((tier for tier in d.tiers if tier.name == name), None)


def _ends(ask: Ask, at: float) -> float:
    """When the life of the answer to it is over; never, as far as is known here, where others may renew it."""
    ttl = ask.directives.ttl
    if ask.life is not None and ask.life.revalidate:
        return inf
    return min(inf if ask.life is None else ask.life.end(at), inf if ttl is None else at + ttl)
