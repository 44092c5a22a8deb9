"""The statements of the state's database. Each function is one transaction, by the thread that owns the connection."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from backends.retrievers.noticed import MOST_GONE

MAX_LINES = 1_000_000
"""Of the audit log; the oldest go."""

MAX_WRONG = 100_000
"""Of answers reported wrong; the oldest go."""

Counter = tuple[str, int, float]
"""Name, count, and the wall-clock second in which its window ends."""


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


def revoke(db: sqlite3.Connection, digest: bytes, at: float, by: str) -> None:
    db.execute("INSERT INTO revoked (digest, at, by) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (digest, at, by))


def revoked(db: sqlite3.Connection) -> frozenset[bytes]:
    return frozenset(digest for (digest,) in db.execute("SELECT digest FROM revoked"))


def report_wrong(db: sqlite3.Connection, pairs: list[tuple[bytes, bytes]], at: float, by: str) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        rows = [(*pair, at, by) for pair in pairs]
        db.executemany("INSERT INTO wrong_pairs VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)
        db.execute(
            "DELETE FROM wrong_pairs WHERE (asked, served) IN"
            " (SELECT asked, served FROM wrong_pairs ORDER BY at DESC LIMIT -1 OFFSET ?)",
            (MAX_WRONG,),
        )


def wrong_pairs(db: sqlite3.Connection) -> list[tuple[bytes, bytes]]:
    return db.execute("SELECT asked, served FROM wrong_pairs").fetchall()


def note_erased(db: sqlite3.Connection, retriever: str, said: list[tuple[str, bool]], at: float) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        for document, gone in said:
            # A second notice makes it the youngest, as it does in the process.
            db.execute("DELETE FROM erased WHERE retriever = ? AND document = ?", (retriever, document))
            if gone:
                db.execute("INSERT INTO erased (retriever, document, at) VALUES (?, ?, ?)", (retriever, document, at))
        if any(gone for _, gone in said):
            db.execute(
                "DELETE FROM erased WHERE number IN"
                " (SELECT number FROM erased WHERE retriever = ? ORDER BY number DESC LIMIT -1 OFFSET ?)",
                (retriever, MOST_GONE),
            )


def erased(db: sqlite3.Connection) -> list[tuple[str, str]]:
    return db.execute("SELECT retriever, document FROM erased ORDER BY number").fetchall()


def begin(db: sqlite3.Connection, line: AuditLine) -> int:
    values = (line.at, line.tenant, line.user, line.role, line.action, _json(line.details), line.request_id)
    with db:
        db.execute("BEGIN IMMEDIATE")
        added = db.execute(
            "INSERT INTO audit (at, tenant, user, role, action, details, request_id) VALUES (?, ?, ?, ?, ?, ?, ?)",
            values,
        )
        number = added.lastrowid or 0
        # Each number is one more than the last, so this looks at no more than the lines that go.
        db.execute("DELETE FROM audit WHERE number <= ?", (number - MAX_LINES,))
    return number


def end(db: sqlite3.Connection, number: int, result: Mapping[str, Any]) -> bool:
    """Whether there was such a line without a result: one that is written is not written over."""
    values = (_json(result), number)
    return db.execute("UPDATE audit SET result = ? WHERE number = ? AND result IS NULL", values).rowcount == 1


def lines(db: sqlite3.Connection, tenant: str | None, limit: int) -> list[dict[str, Any]]:
    if tenant is None:
        found = db.execute("SELECT * FROM audit ORDER BY number DESC LIMIT ?", (limit,))
    else:
        found = db.execute("SELECT * FROM audit WHERE tenant = ? ORDER BY number DESC LIMIT ?", (tenant, limit))
    names = [column[0] for column in found.description]
    shown = [dict(zip(names, row, strict=True)) for row in found]
    for line in shown:
        line["details"] = msgspec.json.decode(line["details"])
        line["result"] = None if line["result"] is None else msgspec.json.decode(line["result"])
    return shown


def save_counters(db: sqlite3.Connection, rows: list[Counter]) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM counters")
        db.executemany("INSERT INTO counters (name, count, ends) VALUES (?, ?, ?)", rows)


def counters(db: sqlite3.Connection, now: float) -> list[Counter]:
    return db.execute("SELECT name, count, ends FROM counters WHERE ends > ?", (now,)).fetchall()


def _json(values: Mapping[str, Any]) -> str:
    return msgspec.json.encode(dict(values)).decode()
