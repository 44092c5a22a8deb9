"""What must outlive the process beside the answers: revoked keys, the audit log, what was used of the limits.

One SQLite file and one thread that uses it, so the event loop never waits for a disk. What is written is on the disk
when a call returns. Several processes may have the file open: they share revocations and the audit log as far as they
read them again, and the counters of the last one to save are those that stay.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import msgspec

from gateway.state_file import FOREIGN, StateError, open_state, state_path, translate

__all__ = ["AuditLine", "State", "StateError", "state_path"]

DEADLINE = 5.0
"""Seconds that a call may take, its wait for those before it included."""
MAX_LINES = 1_000_000

P = ParamSpec("P")
T = TypeVar("T")
Counter = tuple[str, int, float]

_WRITTEN = "at, tenant, user, role, action, details, request_id"
_SHOWN = f"number, {_WRITTEN}, result"


@dataclass(frozen=True, slots=True)
class AuditLine:
    """Who (of which tenant, in which role) does what, and when (wall-clock seconds). `details` holds what JSON can,
    and never a credential."""

    at: float
    tenant: str
    user: str
    role: str
    action: str
    details: Mapping[str, Any]
    request_id: str


class State:
    """Made by `open`. Every call raises StateError when it fails, is not done in time, or comes after `aclose`.
    `durable` is false in memory."""

    def __init__(self, path: Path | None) -> None:
        self.durable = path is not None
        self._path = path
        self._inode = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._connection: sqlite3.Connection | None = None  # the thread's own
        self._closed = False

    @classmethod
    async def open(cls, path: Path | None) -> Self:
        """Open or make the file; None: in memory. One that cannot be used is left as it is."""
        state = cls(path)
        try:
            await state._soon(state._thread.submit(state._connect))
        except BaseException:
            state._shut()
            raise
        return state

    async def revoke(self, digest: bytes, *, at: float, by: str) -> None:
        """A second time changes nothing."""
        await self._do(_revoke, digest, at, by)

    async def revoked(self) -> frozenset[bytes]:
        return await self._do(_revoked)

    async def begin(self, line: AuditLine) -> int:
        """Write down what is going to be done. Its number is for `end`."""
        return await self._do(_begin, line)

    async def end(self, number: int, *, result: Mapping[str, Any]) -> None:
        """Write down what came of it, once."""
        await self._do(_end, number, result)

    async def lines(self, *, tenant: str | None, limit: int) -> list[dict[str, Any]]:
        """What the people of one tenant have done, or all (None); newest first. Where `result` is null it is under
        way, or the process has died over it."""
        return await self._do(_lines, tenant, limit)

    async def save_counters(self, rows: Iterable[Counter]) -> None:
        """These (name, count, wall-clock end of its window) and no others."""
        await self._do(_save_counters, list(rows))

    async def counters(self, now: float) -> list[Counter]:
        """Those whose window has not ended."""
        return await self._do(_counters, now)

    async def aclose(self) -> None:
        """Finish what was asked for and close the file. A second call does nothing."""
        if not self._closed:
            await self._soon(self._shut())

    async def _do(self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StateError("The state is closed.")
        return await self._soon(self._thread.submit(self._run, work, *args, **kwargs))

    async def _soon(self, work: Future[T]) -> T:
        try:
            async with asyncio.timeout(DEADLINE):
                return await asyncio.wrap_future(work)
        except TimeoutError:
            text = f"took more than {DEADLINE:g} s. Whether it was done is not known. Look for a slow or hanging disk."
            raise StateError(f"{self._path or 'The state in memory'} {text}") from None
        except FOREIGN as error:
            raise translate(self._path, error) from error

    def _shut(self) -> Future[None]:
        self._closed = True
        done = self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)
        return done

    # The thread.

    def _connect(self) -> None:
        self._connection = open_state(self._path)
        self._inode = self._inode_now()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _run(
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        assert self._connection is not None
        if self._inode_now() != self._inode:
            # What is written to a file without a name is lost with the process.
            raise StateError(f"{self._path} was moved or removed while it was in use. Put it back, or restart.")
        return work(self._connection, *args, **kwargs)

    def _inode_now(self) -> int:
        return self._path.stat().st_ino if self._path is not None and self._path.exists() else 0


def _revoke(db: sqlite3.Connection, digest: bytes, at: float, by: str) -> None:
    db.execute("INSERT INTO revoked (digest, at, by) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (digest, at, by))


def _revoked(db: sqlite3.Connection) -> frozenset[bytes]:
    return frozenset(digest for (digest,) in db.execute("SELECT digest FROM revoked"))


def _begin(db: sqlite3.Connection, line: AuditLine) -> int:
    details = msgspec.json.encode(dict(line.details)).decode()
    values = (line.at, line.tenant, line.user, line.role, line.action, details, line.request_id)
    with db:
        db.execute("BEGIN IMMEDIATE")
        number = db.execute(f"INSERT INTO audit ({_WRITTEN}) VALUES (?, ?, ?, ?, ?, ?, ?)", values).lastrowid
        assert number is not None
        db.execute("DELETE FROM audit WHERE number <= ?", (number - MAX_LINES,))  # numbers have no gaps
    return number


def _end(db: sqlite3.Connection, number: int, result: Mapping[str, Any]) -> None:
    text = msgspec.json.encode(dict(result)).decode()
    done = db.execute("UPDATE audit SET result = ? WHERE number = ? AND result IS NULL", (text, number))
    if done.rowcount != 1:
        raise StateError(f"The audit log has no line {number} that waits for its result.")


def _lines(db: sqlite3.Connection, tenant: str | None, limit: int) -> list[dict[str, Any]]:
    if tenant is None:
        rows = db.execute(f"SELECT {_SHOWN} FROM audit ORDER BY number DESC LIMIT ?", (max(0, limit),))
    else:
        query = f"SELECT {_SHOWN} FROM audit WHERE tenant = ? ORDER BY number DESC LIMIT ?"
        rows = db.execute(query, (tenant, max(0, limit)))
    lines = [dict(zip(_SHOWN.split(", "), row, strict=True)) for row in rows]
    for line in lines:
        line["details"] = msgspec.json.decode(line["details"])
        line["result"] = line["result"] and msgspec.json.decode(line["result"])
    return lines


def _save_counters(db: sqlite3.Connection, rows: list[Counter]) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM counters")
        db.executemany("INSERT INTO counters (name, count, ends) VALUES (?, ?, ?)", rows)


def _counters(db: sqlite3.Connection, now: float) -> list[Counter]:
    return db.execute("SELECT name, count, ends FROM counters WHERE ends > ?", (now,)).fetchall()
