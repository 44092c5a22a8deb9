"""The one thread that uses a durable file, so that the event loop never waits for a disk."""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from gateway.durable_file import DEADLINE, FOREIGN, Kind, hold, open_file, translate

T = TypeVar("T")


class DurableThread:
    """Made by `open`. What is written is on the disk when a call returns. Each raises the kind's error when it fails,
    is not done in time, or comes after `aclose`."""

    def __init__(self, kind: Kind, path: Path | None, *, name: str) -> None:
        self._kind = kind
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._closed = False
        self._db: sqlite3.Connection | None = None  # this and the next two belong to the thread
        self._held: int | None = None
        self._inode = 0

    @classmethod
    async def open(cls, kind: Kind, path: Path | None, *, name: str) -> Self:
        """Open or make the file; None: in memory. A file that cannot be used is left as it is."""
        opened = cls(kind, path, name=name)
        try:
            await opened._soon(opened._thread.submit(opened._open), kind.opening_takes)
        except BaseException:
            opened._shut()
            raise
        return opened

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise self._kind.error(f"{self._kind.name} is closed.")
        return await self._soon(self._thread.submit(lambda: work(self._connection())), DEADLINE)

    async def aclose(self) -> None:
        """Do what was asked for and close the file. A second call does nothing."""
        if not self._closed:
            await self._soon(self._shut(), DEADLINE)

    async def _soon(self, work: Future[T], seconds: float) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(work)  # what has not begun by the deadline never will
        except TimeoutError:
            raise self._kind.error(
                f"{self._path or f'{self._kind.name} in memory'} took more than {seconds:g} s, and it may still be "
                "written. Look for a disk that hangs, or for another process that keeps the file locked."
            ) from None
        except FOREIGN as error:
            raise translate(self._kind, self._path, error) from error

    def _shut(self) -> Future[None]:
        self._closed = True
        done = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        return done

    # The thread.

    def _open(self) -> None:
        if self._kind.alone is not None and self._path is not None:
            self._held = hold(self._kind.alone, self._path)
        self._db = open_file(self._kind, self._path)
        self._inode = self._inode_now()

    def _connection(self) -> sqlite3.Connection:
        if self._db is None or self._inode_now() != self._inode:
            # What is written to a file without a name ends with the process.
            raise self._kind.error(f"{self._path} was moved or removed while it was in use. Put it back, or restart.")
        return self._db

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _inode_now(self) -> int:
        return self._path.stat().st_ino if self._path is not None and self._path.exists() else 0
