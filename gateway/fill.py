"""A miss: call the backend, hand the answer on as it comes, and keep it if it may be kept.

An endpoint in `stream` mode always streams upstream, the others ask for the whole object; the client gets the form
that it asked for either way. The answer is stored before its last byte leaves, so that whoever asks again after
reading it finds it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from math import inf
from time import perf_counter

import msgspec

from backends.base import Reply
from cache.entry import Cost, Entry, Usage
from cache.exact import ExactCache
from cache.stores.memory import Slot
from gateway.ask import Ask
from gateway.cacheability import answer_reason, asked_choices, well_formed
from gateway.errors import ApiError
from gateway.prices import call_cost
from gateway.snapshot import Snapshot
from gateway.upstream import Event, Json, broken, read_answer, read_events, send, stream_error, upstream_id, usage_of
from gateway.visit import Visit
from gateway.wire.assemble import Assembler
from gateway.wire.render import client_event, render_stream
from gateway.wire.sse import DONE_EVENT

DRAIN = 0.25
"""Seconds that a backend has to end its reply after its end marker."""


async def fill(
    cache: ExactCache, clock: Callable[[], float], current: Callable[[], Snapshot], visit: Visit, ask: Ask
) -> Slot | None:
    """Answer from the backend. Gives the slot of the answer if it was kept; `current` is the configuration in force
    by then. Raises ApiError."""
    return await _Fill(cache, clock, current, visit, ask).run()


class _Fill:
    def __init__(
        self,
        cache: ExactCache,
        clock: Callable[[], float],
        current: Callable[[], Snapshot],
        visit: Visit,
        ask: Ask,
    ) -> None:
        self._cache = cache
        # An answer is as old as the call that made it (RFC 9111, 4.2.3 counts the response delay too).
        self._made = clock()
        self._current = current
        self._visit = visit
        self._ask = ask
        self._mark = cache.mark()
        self._begun = perf_counter()
        self._ended = False

    async def run(self) -> Slot | None:
        ask, visit = self._ask, self._visit
        reply = await send(ask.backend, ask.call(stream=ask.endpoint.config.mode == "stream"), ask.model, ask.body)
        try:
            visit.phase("first_byte", self._begun)
            visit.decision.upstream_id = upstream_id(reply)
            if reply.headers.get("content-type", "").lower().startswith("text/event-stream"):
                return await self._stream(reply)
            return await self._whole(reply)
        finally:
            await reply.aclose()

    async def _whole(self, reply: Reply) -> Slot | None:
        ask, visit = self._ask, self._visit
        raw, answer = await read_answer(reply)
        self._ended = True
        if answer.get("error"):
            raise stream_error(answer, ask.backend)
        if ask.form != "json" and not well_formed(ask.api, answer):
            self._book(usage_of(answer), unserved=True)
            raise broken("The backend's answer has no choices to stream.")
        slot = await self._keep(raw, answer)
        body = raw if ask.form == "json" else render_stream(ask.api, answer, include_usage=ask.form == "sse+usage")
        await visit.outlet.whole(200, visit.headers(ask), body)
        return slot

    async def _stream(self, reply: Reply) -> Slot | None:
        ask, visit, outlet = self._ask, self._visit, self._visit.outlet
        assembler = Assembler(ask.api)
        async with aclosing(read_events(reply)) as batches:
            async for events in batches:
                if out := self._take(events, assembler):
                    if not outlet.started:
                        visit.decision.status = 200
                        await outlet.start(200, visit.headers(ask))
                    await outlet.write(out)
                if self._ended:
                    break
            slot = await self._complete(assembler)
            if self._ended:
                await _drain(batches)
        return slot

    async def _complete(self, assembler: Assembler) -> Slot | None:
        """The stream is over: answer what is still to be answered."""
        ask, visit, outlet = self._ask, self._visit, self._visit.outlet
        answer = assembler.result()
        if not assembler.complete:
            self._book(usage_of(answer), unserved=True)
            raise broken("The backend's stream ended before its answer was complete.")
        raw = msgspec.json.encode(answer)
        slot = await self._keep(raw, answer)
        if ask.form == "json":
            await outlet.whole(200, visit.headers(ask), raw)
        else:
            if not outlet.started:
                await outlet.start(200, visit.headers(ask))
            await outlet.write(DONE_EVENT, last=True)
        return slot

    def _take(self, events: Sequence[Event], assembler: Assembler) -> bytes:
        """Add events to the answer; gives what the client is to see of them."""
        form = self._ask.form
        out = []
        for data, chunk in events:
            if chunk is None:  # [DONE]: ours is sent once the answer is known to be complete
                self._ended = True
                break
            if chunk.get("error"):
                raise stream_error(chunk, self._ask.backend)
            assembler.add(chunk)
            if form != "json" and (piece := client_event(data, chunk, usage=form == "sse+usage")):
                out.append(piece)
        return b"".join(out)

    async def _keep(self, raw: bytes, answer: Json) -> Slot | None:
        """Book the call, and store its answer if nothing speaks against it."""
        d = self._visit.decision
        entry = self._entry(raw, answer)
        d.not_stored = self._reason(entry, answer)
        if d.not_stored is None:
            d.not_stored = await self._cache.put(entry, since=self._mark)
        d.stored = d.not_stored is None
        return self._cache.front.peek(entry.key) if d.stored else None

    def _reason(self, entry: Entry, answer: Json) -> str | None:
        ask = self._ask
        if ask.bypass is not None:
            return ask.bypass
        if not self._ended:
            return "no_end_marker"
        if entry.expires <= entry.created:
            return "ttl_zero"
        if self._current().generation != self._visit.snapshot.generation:
            return "policy_changed"
        return answer_reason(ask.api, answer, asked=asked_choices(ask.body))

    def _entry(self, raw: bytes, answer: Json) -> Entry:
        ask, life, made = self._ask, self._ask.endpoint.life, self._made
        usage = usage_of(answer)
        cost = self._book(usage)
        ttl, keep = (life.ttl, life.keep) if life is not None else (0.0, 0.0)
        asked_ttl = ask.directives.ttl if ask.directives.ttl is not None else inf
        expires = made + min(ttl, asked_ttl)
        return Entry(
            key=ask.key,
            scope=ask.scope.digest(),
            tenant=ask.principal.tenant,
            user=ask.principal.user,
            endpoint=ask.endpoint.name,
            api=ask.api,
            model=ask.model,
            backend=ask.backend.name,
            body=raw,
            created=made,
            expires=expires,
            keep_until=expires + keep,
            usage=usage,
            cost=cost,
            upstream_id=self._visit.decision.upstream_id,
            tags=ask.directives.tags,
        )

    def _book(self, usage: Usage, *, unserved: bool = False) -> Cost:
        """Write the call's time, tokens and money into the decision."""
        visit, ask = self._visit, self._ask
        d, config = visit.decision, visit.snapshot.config
        ms = (perf_counter() - self._begun) * 1000
        hourly = config.backends[ask.backend.name].hourly_cost
        usd = call_cost(ask.model, usage, ms, prices=config.prices, hourly_cost=hourly)
        d.phases["upstream"] = ms
        d.consumed = usage.total
        d.served, d.unserved = (0, usage.total) if unserved else (usage.total, 0)
        d.usd = usd
        d.status = 200
        return Cost(ms, usd)


async def _drain(batches: AsyncGenerator[list[Event], None]) -> None:
    """Read what follows the end marker, so that the connection can be used again; a backend that holds it open for
    longer loses it."""
    with suppress(ApiError, TimeoutError):
        async with asyncio.timeout(DRAIN):
            async for _ in batches:
                pass
