"""One upstream call: make it, hand its events on as they come, and keep the answer if it may be kept.

An endpoint in `stream` mode always streams upstream, the others ask for the whole object; either way a whole answer
comes out. It is stored before anybody is told of its end, so that whoever asks again after reading it finds it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

import msgspec

from backends.base import Call, Reply
from cache.entry import Entry
from cache.exact import ExactCache
from cache.semantic.tier import Finding
from cache.stores.memory import Slot
from gateway.ask import Ask
from gateway.cacheability import answer_reason, asked_choices, well_formed
from gateway.decisions import Decision
from gateway.errors import ApiError
from gateway.fallback import Chain, Kept, kept, may_go_elsewhere
from gateway.latency.phases import give_up
from gateway.prices.bill import Bill, Learners
from gateway.retrieval.citations import citations_of
from gateway.reuse import Reuse
from gateway.semantics import Semantics
from gateway.snapshot import Snapshot
from gateway.streamed import Streamed, drain
from gateway.strict_json import large_body
from gateway.upstream import Event, Json, read_answer, read_events, send, stream_error, timings, upstream_id
from gateway.visit import Visit


class Hearers(Protocol):
    """Those who hear of an answer while it is made."""

    def asks(self) -> Iterable[Ask]:
        """What they have asked for."""

    def hear(self, events: Sequence[Event]) -> None:
        """The next events of a streamed answer."""

    async def room(self) -> None:
        """Wait until there is room for more."""

    def too_large(self) -> None:
        """The answer is over what the cache keeps, and still growing."""

    def landed(self, filled: "Filled") -> None:
        """The answer is whole."""


@dataclass(slots=True)
class Filled:
    """A whole answer. `streamed`: its hearers have heard it all; `slot`: its place in the cache, None if it was not
    kept, for the reason `not_stored`; `reuse`: it was made before, for another question or by another backend than the
    request's own; `forms`: other wire forms of it, once somebody has wanted them."""

    raw: bytes = field(repr=False)
    answer: Json = field(repr=False)
    streamed: bool
    slot: Slot | None
    not_stored: str | None
    reuse: Reuse | Kept | None = None
    forms: dict[str, asyncio.Future[bytes]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Kitchen:
    """What every call needs. `clock` is wall-clock seconds, `current` the configuration in force."""

    cache: ExactCache
    semantics: Semantics
    clock: Callable[[], float]
    current: Callable[[], Snapshot]
    learners: Learners = field(default_factory=Learners)


class Fill:
    """The call for one request; with `anew`, or after a `former` call that failed, no other question's answer will do.
    `chain` is whom the request may be sent to if this backend fails; it is a `fallback` itself once another one has.
    `calling`: it is decided that the backend is asked; `bill`: what the call takes, once it is made; `whole`: the
    answer is there."""

    def __init__(
        self,
        kitchen: Kitchen,
        visit: Visit,
        ask: Ask,
        *,
        anew: bool = False,
        former: "Fill | None" = None,
        chain: Chain | None = None,
    ) -> None:
        self._kitchen = kitchen
        self._visit = visit
        self._ask = ask
        self._ended = False
        self._finding: Finding | None = None if former is None else former._finding
        self._anew = anew or former is not None
        self._chain = chain
        self.fallback = chain is not None and bool(chain.failures)
        self.calling = self._anew or not kitchen.semantics.may_answer(ask)
        self.whole = False
        self._mark = kitchen.cache.mark()
        if ask.grounds is not None and ask.grounds.mark is not None:
            # A document that was taken back since it was found must not live on in an answer.
            self._mark = ask.grounds.mark
        # An answer is as old as the call that made it (RFC 9111, 4.2.3 counts the response delay too).
        self._draft = _draft(visit, ask, kitchen.clock())
        self._citations = citations_of(ask)
        self.bill: Bill | None = None
        self.upstream_id = ""

    @property
    def backend(self) -> str:
        """The name of the one that is asked."""
        return self._ask.backend.name

    @property
    def made(self) -> float:
        """When the call began, wall-clock seconds."""
        return self._draft.created

    def age(self) -> int:
        """Whole seconds since the call began, never negative."""
        return self._draft.age(self._kitchen.clock())

    def outdated(self) -> bool:
        """Has a purge, a new configuration, or the end of its day met the answer that is being made?"""
        life = self._ask.life
        return (
            (life is not None and life.turned(self.made, self._kitchen.clock()))
            or self._kitchen.cache.purged(self._draft, since=self._mark)
            or self._kitchen.current().generation != self._visit.snapshot.generation
        )

    async def run(self, hearers: Hearers) -> None:
        """Raises ApiError."""
        found = None
        if self.fallback:
            found = await self._kept(hearers)
        elif not self._anew:
            found = await self._similar()
        if found is not None:
            self.whole = True
            hearers.landed(found)
            return
        self.calling, ask = True, self._ask
        body = ask.body if ask.grounds is None else await ask.grounds.compose(ask)
        call = ask.call(stream=ask.endpoint.config.mode == "stream", body=body, priority=self._visit.priority(ask))
        self.bill = Bill(self._kitchen.learners, self._visit, ask, len(call.body))
        try:
            await self._call(replace(call, turn=self.bill), self.bill, hearers)
        finally:
            self.bill.end()

    async def instead(self, error: ApiError) -> "Fill | ApiError":
        """What follows on this failure, before anything of an answer has come: a call to the next backend of the chain,
        or the error that the client hears, not raised yet."""
        chain, ask = self._chain, self._ask
        if chain is None or self.bill is None or not (self.fallback or may_go_elsewhere(error)):
            return error.fresh()  # without a bill it was no backend that has failed
        name = chain.after(self.backend, error)
        chain.note(self._visit.decision, name or chain.told.backend)
        if name is None:
            return chain.told.error
        there = self._visit.snapshot.backends[name]
        ask = await asyncio.to_thread(ask.on, there) if large_body(ask.raw) else ask.on(there)
        return Fill(self._kitchen, self._visit, ask, former=self, chain=chain)

    def sign(self, d: Decision) -> None:
        """Write down whose answer it is, where that is not the request's own backend."""
        if self._chain is not None and self.fallback:
            self._chain.note(d, self.backend)
            d.key = self._ask.key

    async def _call(self, call: Call, bill: Bill, hearers: Hearers) -> None:
        ask = self._ask
        try:
            reply = await send(ask.backend, call, ask.model, ask.body)
        except asyncio.CancelledError:
            bill.settle({}, left=True)
            raise
        except ApiError:
            self._visit.phase("upstream", bill.begun)
            raise
        try:
            self._visit.phase("first_byte", bill.begun)
            self._visit.decision.phases |= timings(reply)
            self.upstream_id = upstream_id(reply)
            if reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
                await self._stream(reply, bill, hearers)
            else:
                hearers.landed(await self._whole(reply, bill))
        except (ApiError, asyncio.CancelledError):
            if not bill.settled:
                bill.settle({}, left=True)
            raise
        finally:
            await reply.aclose()

    async def _similar(self) -> Filled | None:
        """The answer to a question that means the same, if there is one."""
        semantics = self._kitchen.semantics
        self._finding = finding = await semantics.find(self._visit, self._ask)
        reuse = None if finding is None else semantics.reuse(finding, self._ask)
        if reuse is None:
            return None
        semantics.remember(self._ask, reuse, self._visit.snapshot.generation)
        return Filled(reuse.slot.entry.body, {}, False, reuse.slot, None, reuse)

    async def _kept(self, hearers: Hearers) -> Filled | None:
        """What this backend has answered before, where the request's own has failed."""
        give_up(self._visit.decision.phases)
        found = await kept(self._kitchen.cache, self._ask, hearers.asks, self._kitchen.clock)
        return None if found is None else Filled(found.slot.entry.body, {}, False, found.slot, None, found)

    async def _whole(self, reply: Reply, bill: Bill) -> Filled:
        raw, answer = await read_answer(reply)
        self._ended = True
        if self._citations is not None:
            answer = self._citations.into_answer(answer)
            raw = msgspec.json.encode(answer)
        if answer.get("error"):
            bill.settle(answer)
            raise stream_error(answer, self._ask.backend)
        bill.heard = len(raw) // 4
        return await self._keep(raw, answer, bill, streamed=False)

    async def _stream(self, reply: Reply, bill: Bill, hearers: Hearers) -> None:
        streamed = Streamed(self._ask, bill, self._citations, self._kitchen.cache.max_entry)
        try:
            async with aclosing(read_events(reply)) as batches:
                await streamed.hand_on(batches, hearers)
                self._ended, answer = streamed.ended, streamed.answer()
                hearers.landed(await self._keep(msgspec.json.encode(answer), answer, bill, streamed=True))
                if self._ended:
                    await drain(batches)
        except (ApiError, asyncio.CancelledError) as error:
            if not self.whole:  # as far as the backend has said
                bill.settle(streamed.so_far(), left=not isinstance(error, ApiError))
            raise

    async def _keep(self, raw: bytes, answer: Json, bill: Bill, *, streamed: bool) -> Filled:
        """Store the answer if nothing speaks against it."""
        self.whole = True
        bill.settle(answer)
        bill.teach()
        entry = replace(self._draft, body=raw, usage=bill.usage, cost=bill.cost, upstream_id=self.upstream_id)
        cache = self._kitchen.cache
        reason = self._reason(entry, answer) or await cache.put(entry, since=self._mark)
        if reason is None:  # what was found was found for the request's own backend
            self._kitchen.semantics.learn(None if self.fallback else self._finding, entry)
        return Filled(raw, answer, streamed, cache.front.peek(entry.key) if reason is None else None, reason)

    def _reason(self, entry: Entry, answer: Json) -> str | None:
        ask = self._ask
        if ask.bypass is not None:
            return ask.bypass
        if not self._ended:
            return "no_end_marker"
        if entry.expires <= entry.created:
            return "ttl_zero"
        if self._kitchen.current().generation != self._visit.snapshot.generation:
            return "policy_changed"
        return answer_reason(ask.api, answer, asked=asked_choices(ask.body))


def servable(ask: Ask, filled: Filled) -> bool:
    """Can this answer be streamed to a client? (As JSON any object is handed on, as it is.)"""
    return filled.streamed or well_formed(ask.api, filled.answer)


def _draft(visit: Visit, ask: Ask, made: float) -> Entry:
    """The entry-to-be, without what is not known before the answer."""
    life, asked_ttl = ask.life, ask.directives.ttl
    end, keep = (life.end(made), life.keep) if life is not None else (made, 0.0)
    expires = min(end, made + (inf if asked_ttl is None else asked_ttl))
    return Entry(
        key=ask.key,
        scope=ask.scope.digest(),
        tenant=ask.principal.tenant,
        user=ask.principal.user,
        endpoint=ask.endpoint.name,
        api=ask.api,
        model=ask.model,
        backend=ask.backend.name,
        body=b"",
        created=made,
        expires=expires,
        keep_until=expires + keep,
        tags=ask.directives.tags,
        documents=() if ask.grounds is None else ask.grounds.documents,
    )
