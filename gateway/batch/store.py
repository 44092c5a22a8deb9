"""What the batch lane keeps, in one file: uploads, batches, their lines and what came of them.

What was awaited is on the disk, and what fails has changed nothing. Long work goes in steps, so that others get their
turn and a call's time is that of a step; what a step has done stays done, and the call can be made again.
"""

import sqlite3
from asyncio import to_thread
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from gateway.batch import table, table_files
from gateway.batch.faults import in_pieces
from gateway.batch.records import LIVES, BatchRecord, End, Fault, FileRecord, Line, Result
from gateway.batch.store_file import BATCHES, BatchStoreError, FileGone, InUse, batches_path
from gateway.batch.table_files import Who
from gateway.durable_thread import DurableThread

__all__ = ["BatchStore", "BatchStoreError", "FileGone", "InUse", "batches_path"]

FAULTS_STEP = 100
"""Pieces of faults that are written at once."""

P = ParamSpec("P")
T = TypeVar("T")


class BatchStore:
    """Made by `open`, which refuses a file that another has open. Every method raises BatchStoreError when it fails, is
    not done in time, or comes after `aclose`. Others' files and batches are as if they were not there."""

    def __init__(self, file: DurableThread) -> None:
        self._file = file

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open or make the file. Uploads that were never finished go."""
        store = cls(await DurableThread.open(BATCHES, path, name="batches"))
        try:
            await store._do(table_files.abandon_all)
            await store._sweep()
        except BaseException:
            await store.aclose()
            raise
        return store

    # Files.

    async def begin(self, id: str) -> None:
        """Begin an upload, which ends with `keep` or `abandon`."""
        await self._do(table_files.begin, id)

    async def piece(self, id: str, data: bytes) -> None:
        await self._do(table_files.piece, id, data)

    async def keep(self, record: FileRecord) -> None:
        """The upload is whole: from here on it can be seen."""
        await self._do(table_files.keep, record)

    async def abandon(self, id: str) -> None:
        await self._do(table_files.abandon, id)
        await self._sweep()

    async def file(self, who: Who, id: str) -> FileRecord | None:
        return await self._do(table_files.find, who, id)

    async def files(
        self, who: Who, *, after: str | None, limit: int, newest_first: bool, purpose: str | None
    ) -> list[FileRecord] | None:
        """In the order they were made; None: there is no such `after`, and for a day there has been none."""
        return await self._do(table_files.page, who, after, limit, newest_first, purpose)

    async def delete_file(self, who: Who, id: str, *, at: float) -> bool:
        """Whether there was one. Of an output file, its lines go."""
        found = await self._do(table_files.delete, who, id, at)
        with suppress(BatchStoreError):  # it is deleted, and `expire` tidies up what this could not
            await self._sweep()
        return found

    async def content(self, id: str) -> AsyncIterator[bytes]:
        """In pieces. FileGone where there is no such file, or no longer."""
        data, number = await self._do(table_files.read, id, table_files.FIRST)
        while data:
            yield data
            data, number = await self._do(table_files.read, id, number)

    async def expire(self, now: float) -> int:
        """Delete the files whose time is over; how many. Batches go that ended long ago and have no file left."""
        count = await self._do(table_files.expire, now)
        while await self._do(table.forget, now - LIVES):
            pass
        await self._sweep()
        return count

    # Batches.

    async def create(self, batch: BatchRecord) -> None:
        await self._do(table.create, batch)

    async def batch(self, who: Who, id: str) -> BatchRecord | None:
        return await self._do(table.find, who, id)

    async def batches(self, who: Who, *, after: str | None, limit: int) -> list[BatchRecord] | None:
        """Newest first; None: there is no such `after`."""
        return await self._do(table.page, who, after, limit)

    async def unfinished(self) -> list[BatchRecord]:
        """All that have not ended, oldest first."""
        return await self._do(table.unfinished)

    async def add_lines(self, id: str, lines: Sequence[Line]) -> None:
        """They wait from when the batch is accepted. Nothing happens where it is no longer validating."""
        await self._do(table.add_lines, id, lines)

    async def drop_lines(self, id: str) -> None:
        """Begin the validation anew. What was found to be wrong goes, too."""
        while await self._do(table.drop_lines, id):
            pass

    async def accept(self, id: str, *, total: int, model: str | None, at: float) -> BatchRecord:
        """From here on it owes a result for each line, unless it is no longer validating."""
        return await self._do(table.accept, id, total, model, at)

    async def refuse(self, id: str, faults: Sequence[Fault], *, at: float) -> BatchRecord:
        """It has failed and has no lines, unless it is no longer validating."""
        await self.drop_lines(id)
        pieces = await to_thread(in_pieces, faults)
        for first in range(0, len(pieces), FAULTS_STEP):
            await self._do(table.add_faults, id, pieces[first : first + FAULTS_STEP])
        return await self._do(table.refuse, id, at)

    async def faults(self, id: str) -> bytes:
        """All that is wrong with the input of a batch that was refused, as JSON objects with commas between them."""
        found: list[bytes] = []
        pieces, number = await self._do(table.faults, id, table_files.FIRST)
        while pieces:
            found += pieces
            pieces, number = await self._do(table.faults, id, number)
        return b",".join(found)

    async def first_faults(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The first of them, for a list: all may be many megabytes."""
        return await self._do(table.first_faults, ids)

    async def waiting(self, id: str, *, after: int, limit: int) -> list[Line]:
        """Those without a result that come after this number, by number; fewer than `limit` where they are large, none
        where there are no more."""
        return await self._do(table.waiting, id, after, limit)

    async def finish(self, id: str, results: Sequence[Result]) -> BatchRecord:
        """A line that has a result keeps it, and is not counted again."""
        return await self._do(table.finish, id, results)

    async def cancel(self, who: Who, id: str, *, at: float) -> BatchRecord | None:
        """Begin to; one that has ended stays as it is."""
        return await self._do(table.cancel, who, id, at)

    async def end(self, id: str, state: End, *, at: float, left: Callable[[Line], Result] | None) -> BatchRecord:
        """Each line that still waits gets what `left` makes of it; with None there may be none. Then the batch is in
        its last state and has its files. One that is being cancelled ends as cancelled, one that has ended stays as it
        is, and one that was never accepted ends without its lines."""
        while await self._do(table.leave, id, left):
            pass
        await self._do(table.finalize, id, state, at)
        return await self._do(table.end, id, state, at)

    async def aclose(self) -> None:
        """Do what was asked for and close the file. A second call does nothing."""
        await self._file.aclose()

    async def _sweep(self) -> None:
        while await self._do(table_files.sweep):
            pass

    async def _do(
        self, statement: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._file.do(lambda db: statement(db, *args, **kwargs))
