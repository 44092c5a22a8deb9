"""One upstream call: make it, hand its events on as they come, and keep the answer if it may be kept.

An endpoint in `stream` mode always streams upstream, the others ask for the whole object; either way a whole answer
comes out. It is stored before anybody is told of its end, so that whoever asks again after reading it finds it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import Protocol

import msgspec

from backends.base import Reply
from cache.entry import Cost, Entry, Usage
from cache.exact import ExactCache
from cache.semantic.tier import Finding
from cache.stores.memory import Slot
from gateway.ask import Ask
from gateway.cacheability import answer_reason, asked_choices, well_formed
from gateway.errors import ApiError
from gateway.prices import call_cost
from gateway.reuse import Reuse
from gateway.semantics import Semantics
from gateway.snapshot import Snapshot
from gateway.upstream import (
    Event,
    Json,
    broken,
    cached_of,
    read_answer,
    read_events,
    send,
    stream_error,
    timings,
    upstream_id,
    usage_of,
)
from gateway.visit import Visit
from gateway.wire.assemble import Assembler

DRAIN = 0.25
"""Seconds that a backend has to end its reply after its end marker."""


class Hearers(Protocol):
    """Those who hear of an answer while it is made."""

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
    kept, for the reason `not_stored`; `reuse`: it is another question's answer, and nobody was called; `forms`: other
    wire forms of it, once somebody has wanted them."""

    raw: bytes = field(repr=False)
    answer: Json = field(repr=False)
    streamed: bool
    slot: Slot | None
    not_stored: str | None
    reuse: Reuse | None = None
    forms: dict[str, asyncio.Future[bytes]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Kitchen:
    """What every call needs. `clock` is wall-clock seconds, `current` the configuration in force."""

    cache: ExactCache
    semantics: Semantics
    clock: Callable[[], float]
    current: Callable[[], Snapshot]


class Fill:
    """The call for one request; with `anew`, or after a `former` call that failed, no other question's answer will do.
    `calling`: it is decided that the backend is asked; `whole`: the answer is there; `usage` and `cost` are what the
    call is known to have taken, also when it failed, and `cached` the part of the prompt that the backend had, if it
    has said so; `charged` is what counts against limits."""

    def __init__(
        self, kitchen: Kitchen, visit: Visit, ask: Ask, *, anew: bool = False, former: "Fill | None" = None
    ) -> None:
        self._kitchen = kitchen
        self._visit = visit
        self._ask = ask
        self._begun = perf_counter()
        self._ended = False
        self._finding: Finding | None = None if former is None else former._finding
        self._anew = anew or former is not None
        self.calling = self._anew or not kitchen.semantics.may_answer(ask)
        self.whole = False
        self._mark = kitchen.cache.mark()
        # An answer is as old as the call that made it (RFC 9111, 4.2.3 counts the response delay too).
        self._draft = _draft(visit, ask, kitchen.clock())
        self._heard = 0  # events, each about a token
        self.usage = Usage()
        self.cost = Cost()
        self.cached: int | None = None
        self.charged: tuple[int, float] = (0, 0.0)  # tokens, USD
        self.upstream_id = ""

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
        ask = self._ask
        if not self._anew:
            if (similar := await self._similar()) is not None:
                hearers.landed(similar)
                return
            self.calling = True
            self._begun = perf_counter()
        call = ask.call(stream=ask.endpoint.config.mode == "stream")
        try:
            reply = await send(ask.backend, call, ask.model, ask.body)
        except asyncio.CancelledError:
            self._book({}, left=True)
            raise
        try:
            self._visit.phase("first_byte", self._begun)
            self._visit.decision.phases |= timings(reply)
            self.upstream_id = upstream_id(reply)
            if reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
                await self._stream(reply, hearers)
            else:
                hearers.landed(await self._whole(reply))
        except asyncio.CancelledError:
            if not self.cost.ms:
                self._book({}, left=True)
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
        self.whole = True
        semantics.remember(self._ask, reuse, self._visit.snapshot.generation)
        return Filled(reuse.slot.entry.body, {}, False, reuse.slot, None, reuse)

    async def _whole(self, reply: Reply) -> Filled:
        raw, answer = await read_answer(reply)
        self._ended = True
        self._heard = len(raw) // 4
        if answer.get("error"):
            raise stream_error(answer, self._ask.backend)
        return await self._keep(raw, answer, streamed=False)

    async def _stream(self, reply: Reply, hearers: Hearers) -> None:
        assembler = Assembler(self._ask.api)
        try:
            async with aclosing(read_events(reply)) as batches:
                await self._hand_on(batches, assembler, hearers)
                hearers.landed(await self._complete(assembler))
                if self._ended:
                    await _drain(batches)
        except (ApiError, asyncio.CancelledError) as error:
            if not self.whole:  # as far as the backend has said
                self._book(assembler.result(), left=not isinstance(error, ApiError))
            raise

    async def _hand_on(
        self, batches: AsyncGenerator[list[Event], None], assembler: Assembler, hearers: Hearers
    ) -> None:
        heard, look_at = 0, self._kitchen.cache.max_entry
        async for events in batches:
            good = self._take(events, assembler)
            hearers.hear(events[:good])
            if self._ended:
                return
            if good < len(events):
                raise stream_error(events[good][1] or {}, self._ask.backend)
            await hearers.room()
            heard += sum(len(data) for data, _ in events)
            if heard > look_at:
                # The events are many times the answer, so now and then we look how large that is.
                look_at = 2 * heard
                if len(msgspec.json.encode(assembler.result())) > self._kitchen.cache.max_entry:
                    hearers.too_large()

    def _take(self, events: Sequence[Event], assembler: Assembler) -> int:
        """Add events to the answer, up to the end marker or an error; gives how many were added."""
        for number, (_, chunk) in enumerate(events):
            if chunk is None:  # [DONE]: clients get ours once the answer is known to be complete
                self._ended = True
                return number
            if chunk.get("error"):
                return number
            assembler.add(chunk)
            self._heard += 1
        return len(events)

    async def _complete(self, assembler: Assembler) -> Filled:
        answer = assembler.result()
        if not assembler.complete:
            raise broken("The backend's stream ended before its answer was complete.")
        return await self._keep(msgspec.json.encode(answer), answer, streamed=True)

    async def _keep(self, raw: bytes, answer: Json, *, streamed: bool) -> Filled:
        """Store the answer if nothing speaks against it."""
        self.whole = True
        self._book(answer)
        entry = replace(self._draft, body=raw, usage=self.usage, cost=self.cost, upstream_id=self.upstream_id)
        cache = self._kitchen.cache
        reason = self._reason(entry, answer) or await cache.put(entry, since=self._mark)
        if reason is None:
            self._kitchen.semantics.learn(self._finding, entry)
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

    def _book(self, answer: Json, *, left: bool = False) -> None:
        """Note what the call took; `left`: nobody waited for the end of it."""
        ask, config = self._ask, self._visit.snapshot.config
        ms = (perf_counter() - self._begun) * 1000
        hourly = config.backends[ask.backend.name].hourly_cost
        self.usage, self.cached = usage_of(answer), cached_of(answer)

        def price(usage: Usage) -> float | None:
            return call_cost(ask.model, usage, ms, prices=config.prices, hourly_cost=hourly)

        self.cost = Cost(ms, price(self.usage))
        # A backend reports its usage last, so whoever leaves before that would have everything for nothing. An event
        # is about a token, and a token about four bytes of a prompt.
        taken = self.usage
        if not taken.total and (self._heard or left):
            taken = Usage(len(ask.raw) // 4, self._heard)
        self.charged = (taken.total, price(taken) or 0.0)


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
    )


async def _drain(batches: AsyncGenerator[list[Event], None]) -> None:
    """Read what follows the end marker, so that the connection can be used again; a backend that holds it open for
    longer loses it."""
    with suppress(ApiError, TimeoutError):
        async with asyncio.timeout(DRAIN):
            async for _ in batches:
                pass
