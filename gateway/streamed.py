"""A streamed reply on its way: handed on event by event, and put together to a whole answer."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from gateway.ask import Ask
from gateway.errors import ApiError
from gateway.prices.bill import Bill
from gateway.retrieval.citations import Citations
from gateway.upstream import Event, Json, broken, stream_error
from gateway.wire.assemble import Assembler

if TYPE_CHECKING:
    from gateway.fill import Hearers

DRAIN = 0.25
"""Seconds that a backend has to end its reply after its end marker."""

Batches = AsyncGenerator[list[Event], None]


class Streamed:
    """The reply to one call. `ended`: its end marker has come."""

    def __init__(self, ask: Ask, bill: Bill, citations: Citations | None, max_entry: int) -> None:
        """`max_entry`: bytes of the largest answer that is kept."""
        self.ended = False
        self._ask = ask
        self._bill = bill
        self._citations = citations
        self._max_entry = max_entry
        self._assembler = Assembler(ask.api)

    def so_far(self) -> Json:
        """What has come of the answer."""
        return self._assembler.result()

    def answer(self) -> Json:
        """The whole answer. Raises ApiError where something of it is missing."""
        answer = self.so_far()
        if not self._assembler.complete:
            raise broken("The backend's stream ended before its answer was complete.")
        return answer

    async def hand_on(self, batches: Batches, hearers: "Hearers") -> None:
        """Tell all that comes, up to the end. Raises ApiError."""
        heard, look_at = 0, self._max_entry
        async for events in batches:
            if self._citations is not None:
                events = self._citations.into_events(events)
            self._bill.first()
            good = self._take(events)
            self._bill.heard += good
            hearers.hear(events[:good])
            if self.ended:
                return
            if good < len(events):
                raise stream_error(events[good][1] or {}, self._ask.backend)
            await hearers.room()
            heard += sum(len(data) for data, _ in events)
            if heard > look_at:
                # The events are many times the answer, so now and then we look how large that is.
                look_at = 2 * heard
                if len(msgspec.json.encode(self.so_far())) > self._max_entry:
                    hearers.too_large()

    def _take(self, events: Sequence[Event]) -> int:
        """Add events to the answer, up to the end marker or an error; gives how many were added."""
        for number, (_, chunk) in enumerate(events):
            if chunk is None:  # [DONE]: clients get ours once the answer is known to be complete
                self.ended = True
                return number
            if chunk.get("error"):
                return number
            self._assembler.add(chunk)
        return len(events)


async def drain(batches: Batches) -> None:
    """Read what follows the end marker, so that the connection can be used again; a backend that holds it open for
    longer loses it."""
    with suppress(ApiError, TimeoutError):
        async with asyncio.timeout(DRAIN):
            async for _ in batches:
                pass
