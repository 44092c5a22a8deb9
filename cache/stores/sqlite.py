"""The store of one machine: a SQLite file in WAL mode.

The event loop never touches SQLite. One thread writes (sqlite_writer), one answers gets, and one lists, so that no
request waits for a listing (sqlite_reader); other processes may have the same file open. What is put survives the end
of the process, however it ends, after `write_interval` seconds.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from cache.stores.base import StoreStats
from cache.stores.sqlite_reader import Reader
from cache.stores.sqlite_writer import Writer


class SQLiteStore:
    """Made by `open`. At most `max_bytes` in the file, of entries whose body has at most `max_body` bytes."""

    def __init__(self, path: Path, writer: Writer, *, max_bytes: int, max_body: int, now: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = Reader(path, writer, max_body=max_body, name="sqlite-reader")
        self._lister = Reader(path, writer, max_body=max_body, name="sqlite-lister")
        self._max_bytes = max_bytes
        self._now = now

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
        entry = waiting.entry if waiting is not None else await self._reader.load(key)
        if entry is None or entry.keep_until <= self._now():
            return None
        self._writer.touch(key)
        return entry

    async def put(self, entry: Entry) -> None:
        self._writer.put(entry)

    async def purge(self, match: Match, *, soft: bool = False, dry_run: bool = False) -> int:
        return await asyncio.wrap_future(self._writer.purge(match, soft=soft, dry_run=dry_run))

    async def entries(self, match: Match, *, limit: int) -> list[Entry]:
        await self.flush()
        return await self._lister.newest(match, self._now(), limit)

    async def note(self, question: Question) -> None:
        self._writer.note(question)

    async def questions(self, *, after: bytes, limit: int) -> list[Question]:
        await self.flush()
        return await self._lister.questions(after, self._now(), limit)

    async def known(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        return await self._lister.known(keys, self._now())

    async def stats(self) -> StoreStats:
        """What is written; what waits to be is not counted."""
        entries, size = await self._reader.totals()
        return StoreStats(
            entries,
            size,
            self._max_bytes,
            evicted=self._writer.evicted,
            corrupt=self._reader.corrupt + self._lister.corrupt,
            dropped=self._writer.dropped,
            healthy=self._writer.healthy,
        )

    async def flush(self) -> None:
        await asyncio.wrap_future(self._writer.flush())

    async def aclose(self) -> None:
        """Write what waits and end the threads. A second call does nothing."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._lister.close()
