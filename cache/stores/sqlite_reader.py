"""A thread that reads the SQLite store's file, with a connection of its own."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from cache.stores import codec, question_codec
from cache.stores import sqlite_questions as questions
from cache.stores import sqlite_table as table
from cache.stores.base import StoreUnavailable
from cache.stores.sqlite_file import connect, is_damage
from cache.stores.sqlite_writer import Writer

KEYS_PER_QUERY = 500
"""SQLite takes a bounded number of parameters: 999 in its older versions."""

T = TypeVar("T")


class Reader:
    """Reads the file that `writer` writes, one call after the other. StoreUnavailable when it cannot."""

    def __init__(self, path: Path, writer: Writer, *, max_body: int, name: str) -> None:
        self.corrupt = 0
        self._path = path
        self._writer = writer
        self._max_body = max_body
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._connection: sqlite3.Connection | None = None  # the thread's
        self._generation = 0

    async def load(self, key: bytes) -> Entry | None:
        """The entry of the key, whether or not it may still be kept."""
        return await self._run(self._load, key)

    async def newest(self, match: Match, now: float, limit: int) -> list[Entry]:
        """What matches and is alive, the newest first."""
        return await self._run(self._newest, match, now, limit)

    async def questions(self, after: bytes, now: float, limit: int) -> list[Question]:
        """Up to `limit` questions of live entries, by key, from the first key greater than `after` on."""
        return await self._run(self._questions, after, now, limit)

    async def known(self, keys: Sequence[bytes], now: float) -> dict[bytes, float]:
        """Those of these keys that have a live entry, written or waiting to be, and when it was made."""
        return await self._run(self._known, keys, now)

    async def totals(self) -> tuple[int, int]:
        """Number of entries, bytes they are charged."""
        return await self._run(table.totals)

    def close(self) -> None:
        """Wait for what is being read and end the thread. A second call does nothing."""
        self._thread.shutdown()
        self._disconnect()

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        """Run `work(connection, *args)` in the thread."""
        try:
            result = self._thread.submit(self._read, work, *args)
        except RuntimeError as error:  # what an executor says once it is shut down
            raise StoreUnavailable("the store is closed") from error
        return await asyncio.wrap_future(result)

    # In the thread.

    def _read(self, work: Callable[..., T], *args: object) -> T:
        generation = self._writer.generation
        try:
            return work(self._connected(generation), *args)
        except sqlite3.Error as error:
            if is_damage(error):
                self._writer.report_damage(generation, str(error))
            raise StoreUnavailable(f"could not read: {error}") from error

    def _connected(self, generation: int) -> sqlite3.Connection:
        if self._generation != generation:
            self._disconnect()
        if self._connection is None:
            self._connection = connect(self._path)
            self._connection.text_factory = bytes  # whatever stands in the file, reading it must not fail
            self._generation = generation
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _newest(self, connection: sqlite3.Connection, match: Match, now: float, limit: int) -> list[Entry]:
        readable = (self._load(connection, key) for key in table.newest(connection, match, now))
        return list(islice((entry for entry in readable if entry is not None), max(0, limit)))

    def _questions(self, connection: sqlite3.Connection, after: bytes, now: float, limit: int) -> list[Question]:
        """Rows that are no questions are passed over, and removed."""
        readable = (self._question(key, row) for key, row in questions.after(connection, after, now))
        return list(islice((question for question in readable if question is not None), max(0, limit)))

    def _question(self, key: bytes, row: tuple[object, ...]) -> Question | None:
        try:
            return question_codec.decode(*row)
        except ValueError:
            self.corrupt += 1
            self._writer.forget_question(key)
            return None

    def _known(self, connection: sqlite3.Connection, keys: Sequence[bytes], now: float) -> dict[bytes, float]:
        found: dict[bytes, float] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            written = []
            for key in keys[start : start + KEYS_PER_QUERY]:
                # Before the file is asked: what is written meanwhile is in the file by then.
                waiting = self._writer.pending(key)
                if waiting is None:
                    written.append(key)
                elif waiting.entry is not None and waiting.entry.keep_until > now:
                    found[key] = waiting.entry.created
            found |= table.live(connection, written, now)
        return found

    def _load(self, connection: sqlite3.Connection, key: bytes) -> Entry | None:
        """The entry of the key; a value that is none is removed."""
        found = table.value_of(connection, key, self._max_body + codec.MAX_FIELDS)
        if found is None:
            return None
        value, expires = found
        try:
            if not isinstance(value, bytes) or not isinstance(expires, float):
                raise codec.CorruptEntry("not of its column's type")
            entry = codec.decode(value, key=key, max_body=self._max_body)
            # Never later than what the value itself says, whatever stands in the column.
            return entry.stale_from(expires) if expires < entry.expires else entry
        except codec.CorruptEntry:
            self.corrupt += 1
            self._writer.forget(key)
            return None
