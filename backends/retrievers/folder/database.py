"""A folder's database: its file, and the one thread that uses it.

It saves embedding everything again after a restart, and remembers what was erased. The folder can be searched without
it: a file that is damaged, another program's or another version's is set aside and a new one begun.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from backends.retrievers.folder import table
from backends.retrievers.folder.index import Vectors
from backends.retrievers.folder.table import Memory, Refused, Row

DEADLINE = 120.0
"""Seconds that a call may take, its wait for those before it included: a first index has hundreds of megabytes."""
BUSY_TIMEOUT = 2.0
"""Seconds to wait for a lock that another process holds."""
DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_FOREIGN = (sqlite3.Error, OSError, ValueError, OverflowError)

_log = logging.getLogger(__name__)
T = TypeVar("T")


class DatabaseError(Exception):
    """The file could not be read or written."""


class Database:
    """Opened by its first use; after a failure the next use tries again. None: in memory.

    `begun` counts the files begun: whoever has written something sees by it that it is no longer there.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="folder")
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._memory = Memory()  # as last read or written
        self.begun = 0

    async def rows(self) -> list[Row]:
        return await self._do(table.rows)

    async def memory(self) -> Memory:
        def work(db: sqlite3.Connection) -> Memory:
            self._memory = table.memory(db)
            return self._memory

        return await self._do(work)

    async def remember(self, what: Memory) -> None:
        def work(db: sqlite3.Connection) -> None:
            table.remember(db, what)
            self._memory = what

        await self._do(work)

    async def vectors(self, embedder: str, dimensions: int, digests: Sequence[bytes]) -> dict[bytes, Vectors]:
        return await self._do(lambda db: table.vectors(db, embedder, dimensions, digests))

    async def put_vectors(self, embedder: str, made: Sequence[tuple[bytes, Vectors]]) -> None:
        await self._do(lambda db: table.put_vectors(db, embedder, made))

    async def save(self, put: Iterable[Row], gone: Iterable[str]) -> set[bytes]:
        return await self._do(lambda db: table.save(db, put, gone))

    async def drop(self, digests: Collection[bytes]) -> None:
        await self._do(lambda db: table.drop(db, digests))

    async def refused(self, rules: str) -> dict[str, Refused]:
        return await self._do(lambda db: table.refused(db, rules))

    async def refuse(self, rules: str, files: Mapping[str, Refused]) -> None:
        await self._do(lambda db: table.refuse(db, rules, files))

    async def drop_unused(self, embedder: str) -> None:
        await self._do(lambda db: table.drop_unused(db, embedder))

    async def discard(self, digests: Collection[bytes]) -> None:
        await self._do(lambda db: table.discard(db, digests))

    async def erase(self, documents: Collection[str]) -> None:
        """Overwrites them in the file: what is deleted otherwise stays in the log until that is used again."""

        def work(db: sqlite3.Connection) -> None:
            table.drop(db, table.save(db, (), documents))
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await self._do(work)

    async def aclose(self) -> None:
        """Harmless when called twice."""
        with suppress(RuntimeError, DatabaseError):  # the thread has been shut down, or hangs
            await self._do(lambda db: None, self._close)
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[[sqlite3.Connection], T], instead: Callable[[], T] | None = None) -> T:
        """Raises DatabaseError."""
        job = instead or (lambda: self._on_file(work))
        try:
            async with asyncio.timeout(DEADLINE):
                return await asyncio.wrap_future(self._thread.submit(job))
        except TimeoutError:
            raise DatabaseError(f"it took more than {DEADLINE:g} s") from None
        except _FOREIGN as error:
            raise DatabaseError(str(error)) from error

    # The thread.

    def _on_file(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connection())
        except _FOREIGN as error:
            if self._path is None:
                raise
            if not _damaged(error):
                self._close()
                raise
            remembered = self._rescued()
            self._close()
            self._set_aside(self._path)
            table.remember(self._connection(), remembered)
            return work(self._connection())

    def _connection(self) -> sqlite3.Connection:
        if self._db is None or self._inode != self._inode_now():
            self._close()
            self._db, new = _open(self._path)
            self._inode = self._inode_now()
            if new:
                self.begun += 1
                if self._memory != Memory():  # the file was taken away
                    table.remember(self._db, self._memory)
        return self._db

    def _rescued(self) -> Memory:
        """What was remembered, as far as it can still be read."""
        if self._memory != Memory() or self._path is None:
            return self._memory
        try:
            db = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            try:
                return table.memory(db) if table.ours(db) else Memory()
            finally:
                db.close()
        except _FOREIGN:
            return Memory()

    def _set_aside(self, path: Path) -> None:
        """Keep what is there under another name: somebody may want to look."""
        aside = next(a for n in range(1, 10_000) if not (a := path.with_name(f"{path.name}.damaged-{n}")).exists())
        for end in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
        _log.warning("the database of a folder cannot be used: it was set aside as %s, and a new one begun", aside)

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def _inode_now(self) -> int:
        try:
            return self._path.stat().st_ino if self._path is not None else 0
        except FileNotFoundError:
            return -1


class _NotOurs(sqlite3.DatabaseError):
    """A database, but none of a folder that is whole and of this version."""


def _damaged(error: BaseException) -> bool:
    return isinstance(error, _NotOurs) or getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED


def _open(path: Path | None) -> tuple[sqlite3.Connection, bool]:
    """A connection, and whether the file is new."""
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it has the texts of documents
    db = sqlite3.connect(path or ":memory:", timeout=BUSY_TIMEOUT, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = NORMAL")  # a crash of the machine may cost the last second, never the file
        db.execute("PRAGMA secure_delete = ON")
        db.execute(f"PRAGMA journal_size_limit = {4 * 1024 * 1024}")
        new = not db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if new:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(table.SCHEMA)
        elif not table.ours(db) or db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise _NotOurs("not a folder's database of this version, or damaged")
    except BaseException:
        db.close()
        raise
    return db, new
