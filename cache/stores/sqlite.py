"""The store of one machine: a SQLite file in WAL mode.

The event loop never touches SQLite. One thread writes (sqlite_writer), one reads; other processes may have the same
file open. What is put survives the end of the process, however it ends, after `write_interval` seconds.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

from cache.entry import Entry
from cache.match import Match
from cache.stores import codec
from cache.stores import sqlite_table as table
from cache.stores.base import StoreStats, StoreUnavailable
from cache.stores.sqlite_file import connect, is_damage
from cache.stores.sqlite_writer import Writer

T = TypeVar("T")


class SQLiteStore:
    """Made by `open`. At most `max_bytes` in the file, of entries whose body has at most `max_body` bytes."""

    def __init__(self, path: Path, writer: Writer, *, max_bytes: int, max_body: int, now: Callable[[], float]) -> None:
        self._path = path
        self._writer = writer
        self._max_bytes = max_bytes
        self._max_body = max_body
        self._now = now
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sqlite-reader")
        self._connection: sqlite3.Connection | None = None  # the reader thread's
        self._generation = 0
        self._corrupt = 0
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        max_bytes: int,
        max_body: int,
        now: Callable[[], float] = time.time,
        write_interval: float = 0.25,
    ) -> Self:
        """Open or make the file. One that is damaged or of another version is moved aside; StoreError when there can
        be no file at `path`. `now` is the wall clock in seconds."""
        path = Path(path)
        writer = await asyncio.to_thread(
            Writer, path, max_bytes=max_bytes, max_body=max_body, now=now, write_interval=write_interval
        )
        return cls(path, writer, max_bytes=max_bytes, max_body=max_body, now=now)

    async def get(self, key: bytes) -> Entry | None:
        waiting = self._writer.pending(key)
        entry = waiting.entry if waiting is not None else await self._read(self._load, key)
        if entry is None or entry.keep_until <= self._now():
            return None
        self._writer.touch(key)
        return entry

    async def put(self, entry: Entry) -> None:
        self._writer.put(entry)

    async def purge(self, match: Match, *, dry_run: bool = False) -> int:
        return await asyncio.wrap_future(self._writer.purge(match, dry_run=dry_run))

    async def entries(self, match: Match, *, limit: int) -> list[Entry]:
        await self.flush()
        return await self._read(self._list, match, limit)

    async def stats(self) -> StoreStats:
        """What is written; what waits to be is not counted."""
        entries, size = await self._read(table.totals)
        return StoreStats(
            entries,
            size,
            self._max_bytes,
            evicted=self._writer.evicted,
            corrupt=self._corrupt,
            dropped=self._writer.dropped,
            healthy=self._writer.healthy,
        )

    async def flush(self) -> None:
        await asyncio.wrap_future(self._writer.flush())

    async def aclose(self) -> None:
        """Write what waits and end both threads. A second call does nothing."""
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._reader.shutdown()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _read(self, work: Callable[..., T], *args: object) -> T:
        """Run `work(connection, *args)` in the reader thread."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._in_reader, work, *args)

    # In the reader thread.

    def _in_reader(self, work: Callable[..., T], *args: object) -> T:
        generation = self._writer.generation
        try:
            if self._connection is None or self._generation != generation:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                self._connection = connect(self._path)
                self._connection.text_factory = bytes  # whatever stands in the file, reading it must not fail
                self._generation = generation
            return work(self._connection, *args)
        except sqlite3.Error as error:
            if is_damage(error):
                self._writer.report_damage(generation, str(error))
            raise StoreUnavailable(f"could not read: {error}") from error

    def _list(self, connection: sqlite3.Connection, match: Match, limit: int) -> list[Entry]:
        readable = (self._load(connection, key) for key in table.newest(connection, match, self._now()))
        return list(islice((entry for entry in readable if entry is not None), max(0, limit)))

    def _load(self, connection: sqlite3.Connection, key: bytes) -> Entry | None:
        """The entry of the key; a value that is none is removed."""
        value = table.value_of(connection, key, self._max_body + codec.MAX_FIELDS)
        if value is None:
            return None
        try:
            if not isinstance(value, bytes):
                raise codec.CorruptEntry("not bytes")
            return codec.decode(value, key=key, max_body=self._max_body)
        except codec.CorruptEntry:
            self._corrupt += 1
            self._writer.forget(key)
            return None
