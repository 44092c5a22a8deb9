"""The batch lane: all batches that have not ended, each on its way."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from math import ceil, inf
from typing import Any

import msgspec
import structlog

from gateway.batch.journey import Journey, Road
from gateway.batch.records import BatchRecord, End
from gateway.batch.run import Means
from gateway.batch.store import BatchStoreError, FileGone
from gateway.errors import ApiError

MOST_UNFINISHED = 1_000
"""Batches of one user that have not ended; one more is refused."""
COME_BACK = 60.0
"""Seconds after which whoever has so many may try again."""
LOOK_EVERY = 1.0
"""Seconds between two looks for batches whose time is over."""
TIDY_EVERY = 600.0
"""Seconds between two looks for files whose time is over."""

log = structlog.get_logger("refrain")


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _OutputLine(msgspec.Struct):
    response: _Response | None


_decode_line = msgspec.json.Decoder(_OutputLine).decode


class Lane:
    """`max_line` gives the most bytes of one request."""

    def __init__(self, means: Means, max_line: Callable[[], int]) -> None:
        self._means = means
        self.store = means.store
        self._road = Road(means, max_line)
        self._journeys: dict[str, Journey] = {}
        self._unfinished: Counter[tuple[str, str]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Go on with what an earlier process has left. Raises BatchStoreError."""
        for batch in await self.store.unfinished():
            self._begin(Journey(self._road, batch))
        self._watch(self._look())

    async def create(self, batch: BatchRecord, *, plain: bool = False) -> asyncio.Future[BatchRecord]:
        """A new one, on the disk when this returns; gives it when it has ended. `plain` as Journey has it. Raises
        BatchStoreError, and then it does not run, and ApiError 429."""
        if self._unfinished[batch.owner.who] >= MOST_UNFINISHED:
            text = f"{MOST_UNFINISHED} of your batches have not ended. Try again when some have, or cancel some."
            raise ApiError(429, text, code="too_many_batches", headers={"retry-after": f"{ceil(COME_BACK)}"})
        try:
            await self.store.create(batch)
        except BatchStoreError:
            # It may be in the file all the same. Its owner has heard that it is not.
            self._begin(Journey(self._road, batch, sure=False, end="cancelled"))
            raise
        return self._begin(Journey(self._road, batch, plain=plain))

    async def answer(self, ended: asyncio.Future[BatchRecord], seconds: float) -> tuple[int, bytes] | None:
        """Of a batch of one request: the status and body of its answer, if there is one within so many seconds. Raises
        BatchStoreError."""
        await asyncio.wait([ended], timeout=seconds)
        if not ended.done():
            return None
        batch = ended.result()
        file = batch.output_file or batch.error_file
        if file is None:
            return None
        try:
            line = b"".join([piece async for piece in self.store.content(file)])
        except FileGone:
            return None
        response = _decode_line(line).response
        return None if response is None else (response.status_code, bytes(response.body))

    @property
    def lines(self) -> Mapping[str, int]:
        """Those that have their result, by what it is."""
        return self._means.lines

    def states(self) -> dict[str, int]:
        """How many batches have not ended, by state."""
        return dict(Counter(journey.batch.state for journey in self._journeys.values()))

    def cancel(self, id: str) -> None:
        """One that is `cancelling` in the store: what is in flight is given up."""
        self._stop(id, "cancelled")

    async def aclose(self) -> None:
        """What is in flight is given up, and begins anew with the next process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.store.aclose()
        except BatchStoreError as error:
            log.warning("the store of batches was not closed", reason=str(error))

    def _begin(self, journey: Journey) -> asyncio.Future[BatchRecord]:
        id, who = journey.batch.id, journey.batch.owner.who
        self._journeys[id] = journey
        self._unfinished[who] += 1

        async def travel() -> None:
            await journey()
            del self._journeys[id]
            self._unfinished[who] -= 1
            if not self._unfinished[who]:
                del self._unfinished[who]

        self._watch(travel())
        return journey.ended

    def _stop(self, id: str, end: End) -> None:
        if id in self._journeys:
            self._journeys[id].stop(end)

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self) -> None:
        """Whose time is over?"""
        tidied = -inf
        while True:
            now = self._means.clock()
            for id, journey in self._journeys.items():
                if now >= journey.batch.deadline:
                    self._stop(id, "expired")
            if abs(now - tidied) >= TIDY_EVERY:
                tidied = now
                try:
                    await self.store.expire(now)
                except BatchStoreError as error:
                    log.warning("files whose time is over could not be removed", reason=str(error))
            await asyncio.sleep(LOOK_EVERY)
