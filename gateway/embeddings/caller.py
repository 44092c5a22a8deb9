"""One upstream call for vectors: made, read, paid for, and kept element by element."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from backends.base import Call
from cache.entry import Entry, Usage
from cache.exact import ExactCache
from gateway.ask import Ask
from gateway.embeddings.batch import Batch
from gateway.embeddings.shares import share_cost, share_tokens
from gateway.embeddings.turns import in_turns
from gateway.embeddings.vectors import read_vectors
from gateway.errors import ApiError
from gateway.prices.bill import Bill, Learners
from gateway.recorder import Recorder
from gateway.snapshot import Snapshot
from gateway.upstream import read_whole, send, stream_error, timings, upstream_id
from gateway.visit import Visit

TURN = 16
"""Entries that are kept before others get their turn: about two milliseconds."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One per application. `clock` is wall-clock seconds, `current` the configuration in force."""

    cache: ExactCache
    recorder: Recorder
    clock: Callable[[], float]
    current: Callable[[], Snapshot]
    learners: Learners

    async def __call__(self, visit: Visit, batch: Batch, wanted: Sequence[int]) -> list[Entry]:
        """An entry for each of these elements; kept, if nothing speaks against it. The call is charged to `visit`.
        Raises ApiError."""
        ask = batch.ask
        mark = self.cache.mark()
        # A vector is as old as the call that made it.
        made = self.clock()
        call = await in_turns(len(ask.raw), batch.call, wanted)
        bill = Bill(self.learners, visit, replace(ask, raw=call.body), len(call.body))
        try:
            call = replace(call, priority=visit.priority(ask), turn=bill)
            vectors, upstream = await self._vectors(visit, ask, call, bill, len(wanted))
        except ApiError as error:
            self.recorder.observed.failed(ask.backend.name, error.word)
            raise
        finally:
            bill.end()
            if bill.settled:
                self.recorder.charge(visit.decision, bill.charge())
                visit.charge(bill.usage.total, bill.cost.usd or 0.0)
        bill.teach()
        weights = [batch.elements[number].weight for number in wanted]
        tokens, costs = share_tokens(bill.usage.total, weights), share_cost(bill.cost, weights)
        draft = _draft(batch, made, upstream)
        entries = [
            replace(draft, key=batch.keys[number], body=vector, usage=Usage(share), cost=cost)
            for number, vector, share, cost in zip(wanted, vectors, tokens, costs, strict=True)
        ]
        await self._keep(visit, batch, entries, mark)
        return entries

    async def _vectors(self, visit: Visit, ask: Ask, call: Call, bill: Bill, asked: int) -> tuple[list[bytes], str]:
        """The vectors, and the provider's id of the call."""
        try:
            reply = await send(ask.backend, call, ask.model, ask.body)
        except asyncio.CancelledError:
            bill.settle({}, left=True)
            raise
        except ApiError:
            visit.phase("upstream", bill.begun)
            raise
        answer: dict[str, Any] = {}
        try:
            visit.phase("first_byte", bill.begun)
            visit.decision.phases |= timings(reply)
            raw = await read_whole(reply)
            vectors, answer = await in_turns(len(raw), read_vectors, raw, asked)
            if "error" in answer:
                raise stream_error(answer, ask.backend)
        finally:
            # The backend has done its work, unless it says that it has not; what it does not count is counted by us.
            bill.settle(answer, left="error" not in answer)
            await reply.aclose()
        return vectors, upstream_id(reply)

    async def _keep(self, visit: Visit, batch: Batch, entries: Sequence[Entry], mark: int) -> None:
        d = visit.decision
        d.not_stored = self._reason(visit, batch, entries[0])
        if d.not_stored is not None:
            return
        for number, entry in enumerate(entries, 1):
            d.not_stored = await self.cache.put(entry, since=mark) or d.not_stored
            if number % TURN == 0:
                await asyncio.sleep(0)
        d.stored = d.not_stored is None

    def _reason(self, visit: Visit, batch: Batch, entry: Entry) -> str | None:
        """Why these vectors are not kept, or None."""
        if batch.ask.bypass is not None:
            return batch.ask.bypass
        if entry.expires <= entry.created:
            return "ttl_zero"
        return "policy_changed" if self.current().generation != visit.snapshot.generation else None


def _draft(batch: Batch, made: float, upstream: str) -> Entry:
    """What the entries of one call have in common."""
    ask = batch.ask
    life, asked_ttl = ask.life, ask.directives.ttl
    expires = min(made if life is None else life.end(made), made + (inf if asked_ttl is None else asked_ttl))
    return Entry(
        key=b"",
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
        keep_until=expires,
        upstream_id=upstream,
        tags=ask.directives.tags,
    )
