"""What must outlive the process beside the answers: revoked keys, erased documents, the audit log, what was used of the
limits.

One SQLite file and one thread that uses it, so the event loop never waits for a disk. What is written is on the disk
when a call returns. Other processes may have the file open too: all their revocations and audit lines are kept, but of
the counters only what the last one saved.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from gateway import state_table as table
from gateway.state_file import FOREIGN, StateError, open_state, state_path, translate
from gateway.state_table import AuditLine, Counter

__all__ = ["AuditLine", "State", "StateError", "state_path"]

DEADLINE = 5.0
"""Seconds that a call may take, its wait for those before it included."""

T = TypeVar("T")


class State:
    """Made by `open`; `durable` is false in memory. Every method raises StateError when it fails, is not done in time,
    or comes after `aclose`."""

    def __init__(self, path: Path | None) -> None:
        self.durable = path is not None
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._closed = False
        self._db: sqlite3.Connection | None = None  # this and the next belong to the thread
        self._inode = 0

    @classmethod
    async def open(cls, path: Path | None) -> Self:
        """Open or make the file; None: in memory. A file that cannot be used is left as it is."""
        state = cls(path)
        try:
            await state._soon(state._thread.submit(state._open))
        except BaseException:
            state._shut()
            raise
        return state

    async def revoke(self, digest: bytes, *, at: float, by: str) -> None:
        """A second time changes nothing."""
        await self._do(lambda db: table.revoke(db, digest, at, by))

    async def revoked(self) -> frozenset[bytes]:
        return await self._do(table.revoked)

    async def report_wrong(self, pairs: Iterable[tuple[bytes, bytes]], *, at: float, by: str) -> None:
        """Of each pair, the answer under the second key was wrong for the question of the first."""
        kept = list(pairs)
        await self._do(lambda db: table.report_wrong(db, kept, at, by))

    async def wrong_pairs(self) -> list[tuple[bytes, bytes]]:
        """All that were reported: (asked, served)."""
        return await self._do(table.wrong_pairs)

    async def note_erased(self, retriever: str, said: Iterable[tuple[str, bool]], *, at: float) -> None:
        """What was said of its documents, in this order: (id, whether it is to be found no more, or is there again)."""
        kept = list(said)
        await self._do(lambda db: table.note_erased(db, retriever, kept, at))

    async def erased(self) -> list[tuple[str, str]]:
        """All that are to be found no more: (retriever, document), the oldest notice first."""
        return await self._do(table.erased)

    async def begin(self, line: AuditLine) -> int:
        """Write down what is going to be done; `end` takes the number of the line."""
        return await self._do(lambda db: table.begin(db, line))

    async def end(self, number: int, *, result: Mapping[str, Any]) -> None:
        """Write down what came of it, once."""
        if not await self._do(lambda db: table.end(db, number, result)):
            raise StateError(f"The audit log has no line {number} that waits for its result.")

    async def lines(self, *, tenant: str | None, limit: int) -> list[dict[str, Any]]:
        """What the people of one tenant have done, or all (None), newest first. Without a `result` it is under way, or
        the process ended in between."""
        return await self._do(lambda db: table.lines(db, tenant, limit))

    async def save_counters(self, rows: Iterable[Counter]) -> None:
        """Keep these and no others."""
        kept = list(rows)
        await self._do(lambda db: table.save_counters(db, kept))

    async def counters(self, now: float) -> list[Counter]:
        """Those whose window has not ended."""
        return await self._do(lambda db: table.counters(db, now))

    async def aclose(self) -> None:
        """Do what was asked for and close the file. A second call does nothing."""
        if not self._closed:
            await self._soon(self._shut())

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StateError("The state is closed.")
        return await self._soon(self._thread.submit(lambda: work(self._connection())))

    async def _soon(self, work: Future[T]) -> T:
        try:
            async with asyncio.timeout(DEADLINE):
                return await asyncio.wrap_future(work)  # what has not begun by the deadline never will
        except TimeoutError:
            raise StateError(
                f"{self._path or 'The state in memory'} took more than {DEADLINE:g} s, and it may still be written. "
                "Look for a disk that hangs, or for another process that keeps the file locked."
            ) from None
        except FOREIGN as error:
            raise translate(self._path, error) from error

    def _shut(self) -> Future[None]:
        self._closed = True
        done = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        return done

    # The thread.

    def _open(self) -> None:
        self._db = open_state(self._path)
        self._inode = self._inode_now()

    def _connection(self) -> sqlite3.Connection:
        if self._db is None or self._inode_now() != self._inode:
            # What is written to a file without a name ends with the process.
            raise StateError(f"{self._path} was moved or removed while it was in use. Put it back, or restart.")
        return self._db

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _inode_now(self) -> int:
        return self._path.stat().st_ino if self._path is not None and self._path.exists() else 0
