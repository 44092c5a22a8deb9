"""One client of a flight, which takes the answer at its own pace."""

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

from gateway.ask import Ask
from gateway.errors import ApiError
from gateway.visit import Visit

if TYPE_CHECKING:
    from gateway.flight import Flight

MAX_BEHIND = 2**20
"""Bytes that a client may be behind the fastest one, beside what had arrived when it joined."""
PATIENCE = 0.25
"""Seconds for which the others wait for one that is so far behind, all in all."""
PIECE = 64 * 1024
"""Bytes that a client gets at once: what the socket does not take stays here, where it is shared."""


class Listener:
    """One client of a flight. `error` is an end that is its own, not the flight's; `reader` is there for a stream, and
    `writing` while its socket takes what was read."""

    __slots__ = (
        *("_waits", "allowance", "ask", "error", "flight", "gone", "patience", "reader", "since", "visit", "writing"),
    )

    def __init__(self, flight: "Flight", visit: Visit, ask: Ask) -> None:
        self.flight = flight
        self.visit = visit
        self.ask = ask
        self.error: ApiError | None = None
        self.gone = False
        self.writing = False
        self.patience = PATIENCE
        self.reader = None if ask.form == "json" else flight.feed.reader(ask.form)
        self.allowance = MAX_BEHIND + self.behind
        self.since = perf_counter()
        self._waits: asyncio.Future[None] | None = None

    @property
    def behind(self) -> int:
        """Bytes that it has not taken yet."""
        return 0 if self.reader is None else self.reader.behind

    @property
    def ended(self) -> bool:
        """Nothing more will come."""
        return self.error is not None or self.flight.ended

    def take(self) -> bytes:
        """The next events of its stream, empty when there are none yet."""
        if self.reader is None:
            return b""
        data = self.reader.take(PIECE)
        self.flight.make_room()
        return data

    async def news(self) -> None:
        """Wait until something has changed."""
        if self.gone:
            return
        self._waits = asyncio.get_running_loop().create_future()
        await self._waits

    def wake(self) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    def depart(self) -> None:
        """The client has left."""
        self.gone = True
        self.wake()
