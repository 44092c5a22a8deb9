"""The ledger's file, and the one thread that uses it: no request ever waits for this disk.

Unlike the state, sums are no reason not to serve. So a file that is damaged, another program's or another version's is
moved aside and a new one begun; and while none can be had, what is to be written waits in memory.
"""

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import structlog

from cache.stores import SQLITE
from gateway.ledger import table as table
from gateway.ledger.sums import Sums
from gateway.ledger.table import Key, Rows
from gateway.ledger.waiting import Waiting

DEADLINE = 5.0
"""Seconds that a call may take, its wait for those before it included."""
WRITTEN_WITHIN = 60.0
"""Seconds that a writing may take: thousands of keys take some, and nobody waits for it but the next one."""
BUSY_TIMEOUT = 2.0
"""Seconds to wait for a lock that another process holds."""
MOST_GIVEN = 1_000
"""Batches that wait for a thread that hangs; of more the oldest are not written."""
DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_FOREIGN = (sqlite3.Error, OSError, ValueError, OverflowError)

log = structlog.get_logger("refrain")
T = TypeVar("T")


class LedgerError(Exception):
    """The ledger's file could not be read or written."""


def ledger_path(store_url: str, durable_url: str | None) -> Path | None:
    """Beside what must outlive the process, or beside the answers, in a file of its own; None: in memory."""
    url = store_url if durable_url is None else durable_url
    if not url.startswith(SQLITE):
        return None
    beside = Path(url.removeprefix(SQLITE))
    return beside.with_name(f"{beside.stem}.ledger{beside.suffix}")


class LedgerFile:
    """Opened by its first use; after a failure the next use tries again. None: in memory. What is asked for is read by
    a thread and a connection of its own, so that nothing that takes long keeps anybody from writing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._reader = self._writer if path is None else ThreadPoolExecutor(1, thread_name_prefix="ledger-reader")
        # Both ends may be used from any thread.
        self._given: deque[tuple[Mapping[Key, Sums], float]] = deque(maxlen=MOST_GIVEN)
        self._history: list[tuple[Key, Sums]] = []  # what others have written, until it is asked for
        self._blind = False
        self._read = False  # this and the next ones belong to the writer
        self._waiting = Waiting()
        self._db: sqlite3.Connection | None = None
        self._inode = 0

    def give(self, batch: Mapping[Key, Sums], now: float) -> None:
        """What came by `now` (wall-clock seconds), to be written by the next `write`. Nobody changes it any more."""
        self._given.append((batch, now))

    async def write(self, now: float) -> None:
        """Raises LedgerError; then all is kept for the next time."""
        await _do(self._writer, lambda: self._write(now), WRITTEN_WITHIN)

    def history(self) -> list[tuple[Key, Sums]]:
        """All that was in the file before, by key: once, after the first good `write`."""
        found, self._history = self._history, []
        return found

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` makes of the file; while it cannot be read, of what waits to be written. Raises LedgerError."""
        if self._path is None:
            return await _do(self._writer, lambda: self._on_file(work))
        path = self._path
        try:
            found = await _do(self._reader, lambda: _look(path, work))
        except LedgerError as error:
            damaged = error.__cause__ is not None and _damaged(error.__cause__)
            if not self._blind:
                log.warning("the ledger cannot be read, what it shows is not all", reason=str(error))
            self._blind = True
            return await _do(self._writer, lambda: self._instead(work, damaged=damaged))
        self._blind = False
        return found

    async def aclose(self) -> None:
        """Raises LedgerError when the thread hangs."""
        try:
            await _do(self._writer, self._close)
        finally:
            for thread in (self._writer, self._reader):
                thread.shutdown(wait=False)

    # The writer.

    def _write(self, now: float) -> None:
        while self._given:
            self._waiting.add(*self._given.popleft())
        self._on_file(lambda db: self._add(db, now))

    def _add(self, db: sqlite3.Connection, now: float) -> None:
        before = [] if self._read else list(table.totals(db))
        table.add(db, self._waiting.rows(), now)
        self._waiting.clear()
        self._read, self._history = True, [*self._history, *before]

    def _instead(self, work: Callable[[sqlite3.Connection], T], *, damaged: bool) -> T:
        if damaged:
            with suppress(*_FOREIGN):
                self._on_file(_whole)  # it is set aside here
        memory = _open(None)
        try:
            table.add(memory, self._waiting.rows(), 0.0)
            return work(memory)
        finally:
            memory.close()

    def _on_file(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connection())
        except _FOREIGN as error:
            damaged = self._path is not None and _damaged(error)
            whole = self._rescued() if damaged else []
            self._close()
            if self._path is None or not damaged:
                raise
            self._set_aside(self._path)
            table.add(self._connection(), Rows(whole, [], []), 0.0)
            return work(self._connection())

    def _rescued(self) -> list[tuple[Key, Sums]]:
        """All time's sums, if they can still be read."""
        try:
            return [] if self._db is None else list(table.totals(self._db))
        except _FOREIGN:
            return []

    def _connection(self) -> sqlite3.Connection:
        if self._db is None or self._inode != self._inode_now():
            self._close()
            self._db = _open(self._path)
            self._inode = self._inode_now()
        return self._db

    def _set_aside(self, path: Path) -> None:
        """Keep what is there under another name: somebody may want to look."""
        aside = next(a for n in range(1, 10_000) if not (a := path.with_name(f"{path.name}.damaged-{n}")).exists())
        for end in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
        log.warning("the ledger's file cannot be used: it was set aside, and a new one begun", moved_to=str(aside))

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


async def _do(thread: ThreadPoolExecutor, work: Callable[[], T], seconds: float = DEADLINE) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(thread.submit(work))
    except TimeoutError:
        raise LedgerError(f"it took more than {seconds:g} s") from None
    except _FOREIGN as error:
        raise LedgerError(str(error)) from error


def _whole(db: sqlite3.Connection) -> None:
    """Raises _NotOurs for a file that is damaged anywhere."""
    if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise _NotOurs("damaged")


def _look(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """By a connection that only reads."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)
    try:
        return work(db)
    finally:
        db.close()


class _NotOurs(sqlite3.DatabaseError):
    """A database, but no ledger that is whole and of this version."""


def _damaged(error: BaseException) -> bool:
    return isinstance(error, _NotOurs) or getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(path or ":memory:", timeout=BUSY_TIMEOUT, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = NORMAL")  # a crash of the machine may cost the last second, never the file
        db.execute(f"PRAGMA journal_size_limit = {4 * 1024 * 1024}")
        if not db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(table.SCHEMA)
        if not table.ours(db) or db.execute("PRAGMA quick_check(totals)").fetchone()[0] != "ok":
            raise _NotOurs("not a ledger of this version, or damaged")
    except BaseException:
        db.close()
        raise
    return db
