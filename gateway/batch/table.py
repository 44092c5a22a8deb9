"""The statements for batches and their lines. Each function is one transaction, by the thread that owns the
connection."""

import sqlite3
from collections.abc import Callable, Sequence

import msgspec

from gateway.batch import states
from gateway.batch.records import ENDED, BatchRecord, End, Line, Result
from gateway.batch.store_file import BatchStoreError
from gateway.batch.table_files import FIRST, LAST, STEP, Who, add_view, bounded, drop_pieces, provisional, upto

STEP_LINES = 500
"""Lines that one transaction ends, and batches that it forgets, so that none keeps the others waiting."""

_decode = msgspec.json.Decoder(BatchRecord).decode


def create(db: sqlite3.Connection, batch: BatchRecord) -> None:
    values = (batch.id, *batch.owner.who, _ended(batch), msgspec.json.encode(batch))
    db.execute("INSERT INTO batches (id, tenant, user, ended, record) VALUES (?, ?, ?, ?, ?)", values)


def find(db: sqlite3.Connection, who: Who, id: str) -> BatchRecord | None:
    row = db.execute("SELECT record FROM batches WHERE id = ? AND tenant = ? AND user = ?", (id, *who)).fetchone()
    return row and _decode(row[0])


def page(db: sqlite3.Connection, who: Who, after: str | None, limit: int) -> list[BatchRecord] | None:
    edge = LAST
    if after is not None:
        found = db.execute("SELECT number FROM batches WHERE id = ? AND tenant = ? AND user = ?", (after, *who))
        row = found.fetchone()
        if row is None:
            return None
        edge = row[0]
    rows = db.execute(
        "SELECT record FROM batches WHERE tenant = ? AND user = ? AND number < ? ORDER BY number DESC LIMIT ?",
        (*who, edge, limit),
    )
    return [_decode(record) for (record,) in rows]


def unfinished(db: sqlite3.Connection) -> list[BatchRecord]:
    return [
        _decode(record) for (record,) in db.execute("SELECT record FROM batches WHERE ended IS NULL ORDER BY number")
    ]


def add_lines(db: sqlite3.Connection, id: str, lines: Sequence[Line]) -> None:
    with provisional(db):
        number, batch = _row(db, id)
        if batch.state == "validating":
            rows = ((number, line.number, line.custom_id, line.body) for line in lines)
            db.executemany("INSERT INTO lines (batch, number, custom_id, body) VALUES (?, ?, ?, ?)", rows)


def drop_lines(db: sqlite3.Connection, id: str) -> bool:
    """A step of them; false when there are none."""
    with db:
        number, batch = _begin(db, id)
        if states.was_accepted(batch):
            raise BatchStoreError(f"The batch {id} has been accepted, so its lines stay.")
        return _drop(db, number) or drop_pieces(db, id)


def accept(db: sqlite3.Connection, id: str, total: int, model: str | None, at: float) -> BatchRecord:
    with db:
        number, batch = _begin(db, id)
        return _save(db, number, states.accepted(batch, total, model, at))


def add_faults(db: sqlite3.Connection, id: str, pieces: Sequence[bytes]) -> None:
    with provisional(db):
        _, batch = _row(db, id)
        if batch.state == "validating":
            db.executemany("INSERT INTO pieces (file, data) VALUES (?, ?)", ((id, piece) for piece in pieces))


def refuse(db: sqlite3.Connection, id: str, at: float) -> BatchRecord:
    with db:
        number, batch = _begin(db, id)
        return _save(db, number, states.refused(batch, at))


def faults(db: sqlite3.Connection, id: str, after: int) -> tuple[list[bytes], int]:
    """The pieces behind the number `after`, as many as make up a step, and the number they go to."""
    rows = db.execute("SELECT number, data FROM pieces WHERE file = ? AND number > ? ORDER BY number", (id, after))
    found = list(bounded(rows, lambda row: len(row[1]), STEP))
    return [data for _, data in found], found[-1][0] if found else after


def first_faults(db: sqlite3.Connection, ids: Sequence[str]) -> dict[str, bytes]:
    """The first piece of each that has one."""
    statement = "SELECT data FROM pieces WHERE file = ? ORDER BY number LIMIT 1"
    found = ((id, db.execute(statement, (id,)).fetchone()) for id in ids)
    return {id: row[0] for id, row in found if row is not None}


def forget(db: sqlite3.Connection, before: float) -> bool:
    """A step of those that ended before and have no file left; false when there are none."""
    return (
        db.execute(
            "DELETE FROM batches WHERE number IN (SELECT number FROM batches WHERE ended <= ? AND NOT EXISTS"
            " (SELECT 1 FROM files WHERE files.batch = batches.number) LIMIT ?)",
            (before, STEP_LINES),
        ).rowcount
        > 0
    )


def waiting(db: sqlite3.Connection, id: str, after: int, limit: int) -> list[Line]:
    with db:
        db.execute("BEGIN")
        number, batch = _row(db, id)
        return _waiting(db, number, after, limit) if states.was_accepted(batch) else []


def finish(db: sqlite3.Connection, id: str, results: Sequence[Result]) -> BatchRecord:
    with db:
        number, batch = _begin(db, id)
        if not states.was_accepted(batch):
            raise BatchStoreError(f"The batch {id} has not been accepted, so none of its lines has a result.")
        return _settle(db, number, batch, results)


def cancel(db: sqlite3.Connection, who: Who, id: str, at: float) -> BatchRecord | None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        if find(db, who, id) is None:
            return None
        number, batch = _row(db, id)
        return _save(db, number, states.being_cancelled(batch, at))


def leave(db: sqlite3.Connection, id: str, left: Callable[[Line], Result] | None) -> bool:
    """Give a step of the lines that still wait what `left` makes of them, or drop them where the batch owes none a
    result; false when there are none."""
    with db:
        number, batch = _begin(db, id)
        lines = _waiting(db, number, FIRST, STEP_LINES)
        if not lines:
            return False
        if left is None:
            raise BatchStoreError(f"The batch {id} cannot end: its line {lines[0].number} still waits.")
        if not states.was_accepted(batch):
            return _drop(db, number)
        _settle(db, number, batch, [left(line) for line in lines])
        return True


def finalize(db: sqlite3.Connection, id: str, end: End, at: float) -> None:
    with db:
        number, batch = _begin(db, id)
        _save(db, number, states.finalizing(batch, end, at))


def end(db: sqlite3.Connection, id: str, end: End, at: float) -> BatchRecord:
    """The state and the files at once. A batch that has ended keeps both."""
    with db:
        number, batch = _begin(db, id)
        if batch.state in ENDED:
            return batch
        sizes = dict(
            db.execute("SELECT good, sum(length(data) + 1) FROM results WHERE batch = ? GROUP BY good", (number,))
        )
        output, error = (
            add_view(db, number, batch, good, sizes[good], at) if good in sizes else None for good in (True, False)
        )
        return _save(db, number, states.ended(batch, end, at, output, error))


def _begin(db: sqlite3.Connection, id: str) -> tuple[int, BatchRecord]:
    """Begin to write; the batch's number and what it is now."""
    db.execute("BEGIN IMMEDIATE")
    return _row(db, id)


def _row(db: sqlite3.Connection, id: str) -> tuple[int, BatchRecord]:
    row = db.execute("SELECT number, record FROM batches WHERE id = ?", (id,)).fetchone()
    if row is None:
        raise BatchStoreError(f"There is no batch {id}.")
    return row[0], _decode(row[1])


def _save(db: sqlite3.Connection, number: int, batch: BatchRecord) -> BatchRecord:
    values = (_ended(batch), msgspec.json.encode(batch), number)
    db.execute("UPDATE batches SET ended = ?, record = ? WHERE number = ?", values)
    return batch


def _ended(batch: BatchRecord) -> float | None:
    return batch.times[batch.state] if batch.state in ENDED else None


def _waiting(db: sqlite3.Connection, number: int, after: int, limit: int) -> list[Line]:
    rows = db.execute(
        "SELECT number, custom_id, body FROM lines WHERE batch = ? AND number > ? ORDER BY number LIMIT ?",
        (number, after, limit),
    )
    return [Line(*row) for row in bounded(rows, lambda row: len(row[2]))]


def _settle(db: sqlite3.Connection, number: int, batch: BatchRecord, results: Sequence[Result]) -> BatchRecord:
    """Move those lines that wait to the results."""
    new = []
    for result in results:
        if db.execute("DELETE FROM lines WHERE batch = ? AND number = ?", (number, result.number)).rowcount:
            values = (number, result.good, result.number, result.data)
            db.execute("INSERT INTO results (batch, good, number, data) VALUES (?, ?, ?, ?)", values)
            new.append(result)
    return _save(db, number, states.counted(batch, new))


def _drop(db: sqlite3.Connection, number: int) -> bool:
    sizes = db.execute("SELECT number, length(body) FROM lines WHERE batch = ? ORDER BY number", (number,))
    return db.execute("DELETE FROM lines WHERE batch = ? AND number <= ?", (number, upto(sizes))).rowcount > 0
