"""The way of a request for vectors, top to bottom: take it apart, look each element up, get the rest, put the answer
together. Every step writes to the decision."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter

from cache.exact import ExactCache
from cache.freshness import Verdict, judge
from gateway.asgi import Receive
from gateway.deliver import attended
from gateway.embeddings.batch import Batch, understand
from gateway.embeddings.book import book
from gateway.embeddings.gather import Gathered, Gatherer
from gateway.embeddings.lookup import slots
from gateway.embeddings.render import render
from gateway.embeddings.turns import in_turns
from gateway.embeddings.vectors import whole
from gateway.errors import ApiError
from gateway.heads import JSON
from gateway.reception import Arrival
from gateway.strict_json import large_body
from gateway.visit import Visit


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One per application. `clock` is wall-clock seconds."""

    cache: ExactCache
    gatherer: Gatherer
    clock: Callable[[], float]

    async def __call__(self, visit: Visit, arrival: Arrival) -> None:
        """Raises ApiError and Disconnected."""
        d, raw = visit.decision, arrival.raw
        at = perf_counter()
        arguments = (raw, arrival.headers, arrival.query, arrival.endpoint, arrival.principal, visit.snapshot)
        batch = await asyncio.to_thread(understand, *arguments) if large_body(raw) else understand(*arguments)
        d.model, d.backend, d.key = batch.ask.model, batch.ask.backend.name, batch.ask.key
        visit.phase("parse", at)
        got = await self._look_up(visit, batch)
        missing = [number for number in range(len(batch.keys)) if number not in got.entries]
        if missing:
            if batch.ask.directives.only_if_cached:
                raise _not_cached(len(missing), len(batch.keys))
            await self._fetch(visit, batch, missing, got, arrival.receive)
        await self._answer(visit, batch, got)

    async def _look_up(self, visit: Visit, batch: Batch) -> Gathered:
        """What the exact tier has of it."""
        d, ask, got = visit.decision, batch.ask, Gathered()
        if ask.bypass is not None or ask.life is None:
            d.outcome = "bypass"
            visit.tier("exact", "skipped", ask.bypass)
            return got
        d.outcome = "miss"
        if ask.directives.no_cache:
            visit.tier("exact", "skipped", "no_cache")
            return got
        begun = perf_counter()
        found = await slots(self.cache, batch.keys, visit.left(ask.endpoint.config.budget))
        visit.phase("exact", begun)
        wall, mono = self.clock(), monotonic()
        verdicts: dict[int, Verdict] = {}
        for number, key in enumerate(batch.keys):
            if (slot := found.get(key)) is None or not whole(slot.entry.body):
                continue
            now = slot.now(wall, mono)
            verdicts[number] = verdict = judge(slot.entry, ask.life, now, max_age=ask.directives.max_age)
            if verdict.usable and not verdict.stale:
                got.entries[number] = slot.entry
                got.age = max(got.age or 0, slot.entry.age(now))
        self._say(visit, batch, got, verdicts)
        return got

    def _say(self, visit: Visit, batch: Batch, got: Gathered, verdicts: dict[int, Verdict]) -> None:
        if len(got.entries) == len(batch.keys):
            visit.decision.outcome = "exact"
            visit.tier("exact", "hit", ttl=int(min(verdict.ttl for verdict in verdicts.values())))
            return
        hits = sum(place in got.entries for place in batch.places)
        refused = next((verdict for number, verdict in verdicts.items() if number not in got.entries), None)
        why, ttl = (None, None) if refused is None else (refused.why, int(refused.ttl))
        if hits:
            visit.part_tier("exact", why, ttl, f"{hits}/{len(batch.places)}")
        else:
            visit.tier("exact", "miss", why, ttl)

    async def _fetch(self, visit: Visit, batch: Batch, missing: Sequence[int], got: Gathered, receive: Receive) -> None:
        d, begun = visit.decision, perf_counter()
        await attended(receive, self.gatherer(visit, batch, missing, got), visit.deadline)
        d.first_ms = (perf_counter() - visit.incoming.started) * 1000
        for number in got.joined:
            got.age = max(got.age or 0, got.entries[number].age(self.clock()))
        if not got.forwarded:
            d.outcome = "joined"
            visit.phase("join", begun)

    async def _answer(self, visit: Visit, batch: Batch, got: Gathered) -> None:
        entries, places = [got.entries[number] for number in range(len(batch.keys))], batch.places
        vectors, size = [entry.body for entry in entries], sum(len(entries[place].body) for place in places)
        tokens = book(visit.decision, entries, places, got)
        body = await in_turns(
            size, render, vectors, places, model=batch.ask.model, tokens=tokens, as_base64=batch.base64
        )
        await visit.outlet.whole(200, [JSON, *visit.head()], body)


def _not_cached(missing: int, asked: int) -> ApiError:
    message = f"Of {asked} inputs {missing} are not cached, and the request asked for a cached answer only."
    return ApiError(504, message, code="not_cached", headers={"x-should-retry": "false"})
