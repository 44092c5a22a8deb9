"""One batch on its way: its lines are run, a few at a time, and what comes of them is written down.

A line counts as in flight until its result is on the disk. So after a kill no more of them run twice than that few.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import structlog

from cache.stores.base import StoreUnavailable
from gateway.auth import Entrant
from gateway.batch.inside import Answer, Inside, returning
from gateway.batch.patience import own_doing, wait_before_next
from gateway.batch.records import BatchRecord, Line, Result
from gateway.batch.shown import answered, unanswered
from gateway.batch.store import BatchStore, BatchStoreError
from gateway.errors import ApiError
from gateway.snapshot import Snapshot

WIDTH = 32
"""Lines of one batch that are in flight."""
AHEAD = 64
"""Lines that are read at once."""
SHARE_OF_OTHERS = 0.25
"""Of each limit of the owner this much is left to calls that somebody waits for."""
LOOK_AGAIN = 60.0
"""Seconds after which limits are looked at again: they may have been changed."""
STORE_AGAIN = 5.0
"""Seconds until what could not be written is tried again."""
LAST_WRITING = 2.0
"""Seconds for what is being written when a batch is stopped."""

log = structlog.get_logger("refrain")


@dataclass(frozen=True, slots=True)
class Means:
    """What every run needs. `clock` is wall-clock seconds; `flush` has the cache write what it holds; `lines`
    counts what comes of them."""

    store: BatchStore
    inside: Inside
    current: Callable[[], Snapshot]
    clock: Callable[[], float]
    flush: Callable[[], Awaitable[None]]
    lines: Counter[str] = field(default_factory=Counter)


class Run:
    """The lines of one batch that is in progress; `counted`: its requests are in their owner's limits already."""

    def __init__(self, means: Means, batch: BatchRecord, *, counted: bool = False) -> None:
        self._means = means
        self._batch = batch
        self._counted = counted
        self._hands = asyncio.Semaphore(WIDTH)
        self._flying: set[asyncio.Task[None]] = set()
        self._results: list[Result] = []
        self._written: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Until no line is left to be run. When it is cancelled, what was in flight has no result."""
        after = 0
        try:
            while found := await self._read(after):
                after = found[-1].number
                for line in found:
                    await self._hands.acquire()
                    task = asyncio.create_task(self._line(line))
                    self._flying.add(task)
                    task.add_done_callback(self._flying.discard)
            while self._flying:
                await asyncio.wait(self._flying)
        finally:
            for task in self._flying:
                task.cancel()
            await asyncio.gather(*self._flying, return_exceptions=True)
            if (writing := self._writing) is not None:
                await asyncio.wait([writing], timeout=LAST_WRITING)
                writing.cancel()

    async def _read(self, after: int) -> list[Line]:
        """The next lines without a result."""
        while True:
            try:
                return await self._means.store.waiting(self._batch.id, after=after, limit=AHEAD)
            except BatchStoreError as error:  # what is in flight goes on
                log.warning("the lines of a batch could not be read", batch=self._batch.id, reason=str(error))
                await asyncio.sleep(STORE_AGAIN)

    async def _line(self, line: Line) -> None:
        try:
            await self._write(await self._run(line))
        finally:
            self._hands.release()

    async def _run(self, line: Line) -> Result:
        """What comes of it in the end. It counts once in the limits of its owner, however often it is tried."""
        id, means = self._batch.id, self._means
        tries = failed = 0
        counted = self._counted
        while True:
            try:
                entrant = returning(self._batch.owner, means.current().auth)
            except ApiError as error:
                return answered(id, line, error.status, "", error.body())
            if not counted:
                await self._count(entrant)
                counted = True
                continue  # the key may have been revoked meanwhile
            answer = await self._ask(line, entrant)
            request_id = answer.headers.get("x-request-id", "")
            if answer.status < 400:
                return answered(id, line, answer.status, request_id, answer.body)
            code = code_of(answer.body)
            tries, failed = tries + 1, failed + own_doing(code)
            wait = wait_before_next(answer, code, tries, failed, secrets.randbelow(1000) / 1000)
            if wait is None:
                return answered(id, line, answer.status, request_id, answer.body)
            await asyncio.sleep(wait)

    async def _count(self, entrant: Entrant) -> None:
        """Wait until the limits of its owner have room for one more request, beside a share for calls that somebody
        waits for."""
        meter = entrant.credential.meter
        if meter is None:
            return
        while not meter.take(SHARE_OF_OTHERS):  # noqa: ASYNC110  it is the clock that makes room
            await asyncio.sleep(min(meter.wait(SHARE_OF_OTHERS), LOOK_AGAIN))

    async def _ask(self, line: Line, entrant: Entrant) -> Answer:
        answer = await self._means.inside(self._batch, line.body, entrant)
        me = asyncio.current_task()
        if me is not None and me.cancelling():
            raise asyncio.CancelledError  # the answer is that of somebody who has been sent away
        return answer

    async def _write(self, result: Result) -> None:
        """Returns when it is on the disk. All that come meanwhile are written at once."""
        self._results.append(result)
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        written = self._written
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        await asyncio.shield(written)

    async def _write_all(self) -> None:
        while self._results:
            results, self._results = self._results, []
            written, self._written = self._written, None
            while True:
                try:
                    with suppress(StoreUnavailable):
                        await self._means.flush()  # else an equal line would be asked again after a kill
                    await self._means.store.finish(self._batch.id, results)
                    break
                except BatchStoreError as error:
                    log.warning("the results of a batch could not be written", batch=self._batch.id, reason=str(error))
                    await asyncio.sleep(STORE_AGAIN)
            self._means.lines.update("answered" if result.good else "failed" for result in results)
            if written is not None:
                written.set_result(None)
        self._writing = None


def left_by(batch: BatchRecord, code: str, message: str) -> Callable[[Line], Result]:
    """What becomes of the lines that were not run."""
    return lambda line: unanswered(batch.id, line, code, message)


def code_of(body: bytes) -> str:
    """The code of an error in the envelope; empty, where it has none."""
    try:
        error = msgspec.json.decode(body).get("error") or {}
        return str(error.get("code") or "")
    except (msgspec.DecodeError, AttributeError):
        return ""
