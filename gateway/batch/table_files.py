"""The statements for files. Each function is one transaction, by the thread that owns the connection, but those that
are part of one: `bounded`, `upto`, `provisional`, `drop_pieces` and `add_view`."""

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from gateway.batch.records import BatchRecord, FileRecord
from gateway.batch.store_file import BatchStoreError, FileGone

PIECE = 256 * 1024
"""Bytes of a content that are kept, and read, as one."""

STEP = 4 * 1024 * 1024
"""Bytes that one transaction reads or removes, so that none keeps the others waiting."""

GONE_LIVES = 86400.0
"""Seconds for which a list can be gone on with after a file that was deleted."""

OUTPUT_LIVES = 30 * 86400.0
"""Seconds, where the batch does not say how long."""

FIRST, LAST = 0, 2**63 - 1
"""Less than every number, and more."""

Who = tuple[str, str]


def bounded(rows: Iterable[Any], size: Callable[[Any], int], most: int = STEP) -> Iterator[Any]:
    """The first of them, until their sizes make up `most`."""
    for row in rows:
        yield row
        most -= size(row)
        if most <= 0:
            return


def upto(rows: Iterable[tuple[int, int]]) -> int:
    """The number of the last one that a step takes in."""
    return max((number for number, _ in bounded(rows, lambda row: int(row[1]))), default=FIRST)


@contextmanager
def provisional(db: sqlite3.Connection) -> Iterator[None]:
    """Write what counts for nothing before a later call is on the disk, which puts this there too: waiting for the disk
    each time would take as long again."""
    db.execute("PRAGMA synchronous = NORMAL")
    try:
        with db:
            db.execute("BEGIN IMMEDIATE")
            yield
    finally:
        db.execute("PRAGMA synchronous = FULL")


def begin(db: sqlite3.Connection, id: str) -> None:
    db.execute("INSERT INTO loose (id, upload) VALUES (?, 1)", (id,))


def piece(db: sqlite3.Connection, id: str, data: bytes) -> None:
    parts = ((id, data[start : start + PIECE]) for start in range(0, len(data), PIECE))
    with provisional(db):
        if db.execute("SELECT 1 FROM loose WHERE id = ? AND upload", (id,)).fetchone() is None:
            raise BatchStoreError(f"There is no upload {id}.")
        db.executemany("INSERT INTO pieces (file, data) VALUES (?, ?)", parts)


def keep(db: sqlite3.Connection, record: FileRecord) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        if db.execute("DELETE FROM loose WHERE id = ? AND upload", (record.id,)).rowcount == 0:
            raise BatchStoreError(f"There is no upload {record.id}.")
        _insert(db, record, None, None)


def abandon(db: sqlite3.Connection, id: str) -> None:
    db.execute("UPDATE loose SET upload = 0 WHERE id = ?", (id,))


def abandon_all(db: sqlite3.Connection) -> None:
    db.execute("UPDATE loose SET upload = 0 WHERE upload")


def find(db: sqlite3.Connection, who: Who, id: str) -> FileRecord | None:
    row = db.execute("SELECT * FROM files WHERE id = ? AND tenant = ? AND user = ?", (id, *who)).fetchone()
    return row and _record(row)


def page(
    db: sqlite3.Connection, who: Who, after: str | None, limit: int, newest_first: bool, purpose: str | None
) -> list[FileRecord] | None:
    edge = LAST if newest_first else FIRST
    if after is not None:
        row = db.execute(
            "SELECT number FROM files WHERE id = ?1 AND tenant = ?2 AND user = ?3 UNION ALL"
            " SELECT number FROM gone WHERE id = ?1 AND tenant = ?2 AND user = ?3",
            (after, *who),
        ).fetchone()
        if row is None:
            return None
        edge = row[0]
    if newest_first:
        statement = (
            "SELECT * FROM files WHERE tenant = ?1 AND user = ?2 AND number < ?3 AND (?4 IS NULL OR purpose = ?4)"
            " ORDER BY number DESC LIMIT ?5"
        )
    else:
        statement = (
            "SELECT * FROM files WHERE tenant = ?1 AND user = ?2 AND number > ?3 AND (?4 IS NULL OR purpose = ?4)"
            " ORDER BY number LIMIT ?5"
        )
    return [_record(row) for row in db.execute(statement, (*who, edge, purpose, limit))]


def delete(db: sqlite3.Connection, who: Who, id: str, at: float) -> bool:
    with db:
        db.execute("BEGIN IMMEDIATE")
        statement = "DELETE FROM files WHERE id = ? AND tenant = ? AND user = ? RETURNING id, tenant, user, number"
        return _remember(db, db.execute(statement, (id, *who)).fetchall(), at) > 0


def expire(db: sqlite3.Connection, now: float) -> int:
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM gone WHERE at <= ?", (now - GONE_LIVES,))
        statement = "DELETE FROM files WHERE expires <= ? RETURNING id, tenant, user, number"
        return _remember(db, db.execute(statement, (now,)).fetchall(), now)


def _remember(db: sqlite3.Connection, rows: list[Any], at: float) -> int:
    """Where files stood that are deleted; how many."""
    db.executemany("INSERT INTO gone (id, tenant, user, number, at) VALUES (?, ?, ?, ?, ?)", ((*r, at) for r in rows))
    return len(rows)


def drop_pieces(db: sqlite3.Connection, id: str) -> bool:
    """A step of them; false when there are none."""
    parts = db.execute("SELECT number, length(data) FROM pieces WHERE file = ? ORDER BY number", (id,))
    return db.execute("DELETE FROM pieces WHERE file = ? AND number <= ?", (id, upto(parts))).rowcount > 0


def sweep(db: sqlite3.Connection) -> bool:
    """Remove a step's worth of what belongs to no file; false when there is nothing."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        row = db.execute("SELECT id, batch, good FROM loose WHERE NOT upload LIMIT 1").fetchone()
        if row is None:
            return False
        id, batch, good = row
        if batch is None:
            more = drop_pieces(db, id)
        else:
            sizes = "SELECT number, length(data) FROM results WHERE batch = ? AND good = ? ORDER BY number"
            last = upto(db.execute(sizes, (batch, good)))
            gone = db.execute("DELETE FROM results WHERE batch = ? AND good = ? AND number <= ?", (batch, good, last))
            more = gone.rowcount > 0
        if not more:
            db.execute("DELETE FROM loose WHERE id = ?", (id,))
        return True


def read(db: sqlite3.Connection, id: str, after: int) -> tuple[bytes, int]:
    """The content from behind the number `after`, and the number it goes to; nothing at its end."""
    with db:
        db.execute("BEGIN")
        row = db.execute("SELECT batch, good FROM files WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise FileGone(f"There is no file {id}, or it was deleted while it was read.")
        batch, good = row
        if batch is None:
            statement = "SELECT number, data FROM pieces WHERE file = ? AND number > ? ORDER BY number"
            rows, end = db.execute(statement, (id, after)), b""
        else:
            statement = "SELECT number, data FROM results WHERE batch = ? AND good = ? AND number > ? ORDER BY number"
            rows, end = db.execute(statement, (batch, good, after)), b"\n"
        data = bytearray()
        for number, part in bounded(rows, lambda row: len(row[1]), PIECE):
            data += part + end
            after = number
        return bytes(data), after


def add_view(db: sqlite3.Connection, number: int, batch: BatchRecord, good: bool, size: int, at: float) -> str:
    """A file that shows the good or the bad results of the batch with this number."""
    tenant, user = batch.owner.who
    lives = OUTPUT_LIVES if batch.output_lives is None else batch.output_lives
    record = FileRecord(
        id=f"file-{secrets.token_hex(12)}",
        tenant=tenant,
        user=user,
        purpose="batch_output",
        filename=f"{batch.id}_{'output' if good else 'error'}.jsonl",
        size=size,
        created=at,
        expires=at + lives,
    )
    _insert(db, record, number, good)
    return record.id


def _insert(db: sqlite3.Connection, record: FileRecord, batch: int | None, good: bool | None) -> None:
    values = (record.id, record.tenant, record.user, record.purpose, record.filename, record.size)
    db.execute(
        "INSERT INTO files (id, tenant, user, purpose, filename, size, created, expires, batch, good)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, record.created, record.expires, batch, good),
    )


def _record(row: tuple[Any, ...]) -> FileRecord:
    return FileRecord(*row[1:9])  # the columns from `id` to `expires`
