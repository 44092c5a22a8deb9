"""One batch from its creation to its end, also over restarts, failures of the store, and a change of mind.

It is validated as a whole before anything of it runs. What is done stays done, so after a failure all of it can be done
again, from where the store says that it is: a call that has failed may have changed the file all the same.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import structlog

from gateway.batch.input import Reader
from gateway.batch.records import ENDED, BatchRecord, End, Fault, Line
from gateway.batch.run import Means, Run, left_by
from gateway.batch.shown import CODES_OF_ENDS
from gateway.batch.store import BatchStoreError, FileGone
from gateway.batch.turns import Turns
from gateway.logs import where

ACTIVE = 4
"""Batches of one user that run at once."""
VALIDATING = 2
"""Batches that are validated at once, each of another tenant."""
AGAIN = 5.0
"""Seconds until a batch is tried again that the store has failed."""
CHUNK = 1000
"""Lines that are written at once."""

log = structlog.get_logger("refrain")


@dataclass(frozen=True, slots=True)
class Road:
    """What all of them share; `max_line` gives the most bytes of one request."""

    means: Means
    max_line: Callable[[], int]
    validating: Turns = field(default_factory=lambda: Turns(1, VALIDATING))
    running: Turns = field(default_factory=lambda: Turns(ACTIVE))


class Journey:
    """`sure`: the batch is known to be in the store, as it is here. `plain`: it is one plain call, which was counted
    and read when it came. `end` is what it comes to before its last line, once it is to."""

    def __init__(
        self, road: Road, batch: BatchRecord, *, sure: bool = True, plain: bool = False, end: End | None = None
    ) -> None:
        self.batch = batch
        self.ended: asyncio.Future[BatchRecord] = asyncio.get_running_loop().create_future()
        self._road = road
        self._store = road.means.store
        self._sure = sure
        self._plain = plain
        self._end = end
        self._work: asyncio.Task[None] | None = None

    def stop(self, end: End) -> None:
        """Give up what is in flight, and come to this end."""
        if self._end is None:
            self._end = end
            if self._work is not None:
                self._work.cancel()

    async def __call__(self) -> None:
        """All of it."""
        id = self.batch.id
        while True:
            try:
                if self._sure or await self._find():
                    self._sure = False
                    await self._work_watched()
                    await self._finish()
                    self.ended.set_result(self.batch)
                return
            except BatchStoreError as error:
                log.warning("a batch waits for its store", batch=id, reason=str(error))
            except Exception as error:
                log.error("a batch waits after a failure", batch=id, kind=type(error).__name__, where=where(error))
            await asyncio.sleep(AGAIN)

    async def _find(self) -> bool:
        """Take it as the store has it. False: it is not there."""
        found = await self._store.batch(self.batch.owner.who, self.batch.id)
        if found is None:
            return False
        self.batch = found
        return True

    async def _work_watched(self) -> None:
        """Validate and run it, unless it is to end before."""
        if self._end is not None or self.batch.state in ENDED:
            return
        self._work = asyncio.create_task(self._validate_and_run())
        try:
            await asyncio.wait([self._work])
        except asyncio.CancelledError:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
            raise
        if not self._work.cancelled():
            self._work.result()

    async def _validate_and_run(self) -> None:
        owner, road = self.batch.owner, self._road
        if self.batch.state == "validating":
            async with nullcontext() if self._plain else road.validating.of(owner.tenant):
                self.batch = await self._validate()
        if self.batch.state == "in_progress":
            async with nullcontext() if self._plain else road.running.of(owner.who):
                await Run(road.means, self.batch, counted=self._plain)()

    async def _validate(self) -> BatchRecord:
        id, store, clock = self.batch.id, self._store, self._road.means.clock
        await store.drop_lines(id)  # of a process that has ended in between
        reader = Reader(self.batch.url, max_line=self._road.max_line())
        try:
            async for piece in store.content(self.batch.input_file):
                await self._keep(reader, await asyncio.to_thread(reader.feed, piece))
        except FileGone:
            gone = Fault("file_not_found", "The input file was deleted before it was read.", "input_file_id")
            return await store.refuse(id, [gone], at=clock())
        await self._keep(reader, await asyncio.to_thread(reader.close))
        if reader.faults:
            return await store.refuse(id, reader.faults, at=clock())
        return await store.accept(id, total=reader.total, model=reader.model, at=clock())

    async def _keep(self, reader: Reader, lines: list[Line]) -> None:
        if not reader.faults:
            for first in range(0, len(lines), CHUNK):
                await self._store.add_lines(self.batch.id, lines[first : first + CHUNK])

    async def _finish(self) -> None:
        """The end that it comes to."""
        batch = self.batch
        if batch.state in ENDED:
            return
        end = "cancelled" if batch.state == "cancelling" else self._end or "completed"
        if batch.state == "validating":
            await self._store.drop_lines(batch.id)  # they are nobody's requests yet
        left = None if end == "completed" else left_by(batch, *CODES_OF_ENDS[end])
        self.batch = batch = await self._store.end(batch.id, end, at=self._road.means.clock(), left=left)
        counts = {"total": batch.total, "completed": batch.completed, "failed": batch.failed}
        log.info("a batch has ended", batch=batch.id, state=batch.state, **counts)
