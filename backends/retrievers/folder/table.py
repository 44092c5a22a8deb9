"""The statements of a folder's database. Each function is one transaction.

Vectors are kept by the digest of what was embedded, so that a piece that has only moved, or is in two documents, is
embedded once. What is read is checked: a document whose pieces are not those that were written, or a vector of another
embedder or without unit length, is as good as not there.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from backends.retrievers.folder.chunking import Piece
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.index import Indexed, Vectors
from backends.retrievers.folder.pieces import RULES, checksum, digest

APPLICATION = 0x52667246
"""Marks the database as ours ("RfrF")."""
SCHEMA_VERSION = 1
UNIT = 1e-3
"""The length of a vector may differ from 1 by so much."""

SCHEMA = f"""
BEGIN;
CREATE TABLE documents (id TEXT PRIMARY KEY, state TEXT NOT NULL, rules TEXT NOT NULL, version TEXT NOT NULL,
    checksum BLOB NOT NULL, required TEXT NOT NULL) STRICT;
CREATE TABLE pieces (document TEXT NOT NULL, position INTEGER NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL,
    digest BLOB NOT NULL, PRIMARY KEY (document, position)) STRICT;
CREATE INDEX pieces_digest ON pieces (digest);
CREATE TABLE vectors (digest BLOB PRIMARY KEY, embedder TEXT NOT NULL, vector BLOB NOT NULL) STRICT;
CREATE TABLE refused (id TEXT PRIMARY KEY, state TEXT NOT NULL, rules TEXT NOT NULL, reason TEXT NOT NULL) STRICT;
CREATE TABLE erased (document TEXT NOT NULL, version TEXT NOT NULL, PRIMARY KEY (document, version)) STRICT;
CREATE TABLE told (one INTEGER PRIMARY KEY CHECK (one = 1), times INTEGER NOT NULL) STRICT;
INSERT INTO told VALUES (1, 0);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""  # noqa: S608 (numbers of ours)


@dataclass(frozen=True, slots=True)
class Row:
    """A document, the state that its file had when it was read, and the reading rules that it was read by."""

    id: str
    state: FileState
    document: Indexed
    rules: str = RULES


NO_ROOM = "has more pieces than there is room for in the index"
"""The reason of a refusal that holds only as long as the index is as large."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that is not to be found, for a reason that reads on behind its name; "" is that it was erased."""

    state: FileState
    reason: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What must not be forgotten: versions of documents that are to be found no more, as (id, version), and how often
    somebody said that something had changed."""

    erased: frozenset[tuple[str, str]] = frozenset()
    told: int = 0


def ours(db: sqlite3.Connection) -> bool:
    """Is this a folder's database of this version?"""
    marks = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    return marks == [APPLICATION, SCHEMA_VERSION]


def rows(db: sqlite3.Connection) -> list[Row]:
    """All documents that are as they were written; the others are deleted."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        pieces: dict[str, list[Piece]] = {}
        for name, title, text in db.execute("SELECT document, title, text FROM pieces ORDER BY document, position"):
            pieces.setdefault(name, []).append(Piece(title, text))
        found = db.execute("SELECT id, state, rules, version, checksum, required FROM documents ORDER BY id")
        good = [row for fields in found.fetchall() if (row := _row(fields, pieces.get(fields[0], ()))) is not None]
        for name in {*pieces, *(name for (name,) in db.execute("SELECT id FROM documents"))} - {row.id for row in good}:
            _taken_out(db, name)
        return good


def _row(fields: tuple[str, str, str, str, bytes, str], pieces: Sequence[Piece]) -> Row | None:
    name, state, rules, version, check, required = fields
    was = _state(state)
    try:
        needed = json.loads(required)
    except ValueError:
        return None
    if (
        was is None
        or check != checksum(pieces)
        or not isinstance(needed, list)
        or not all(isinstance(one, str) for one in needed)
    ):
        return None
    return Row(name, was, Indexed(version, check, frozenset(needed), tuple(pieces)), rules)


def vectors(db: sqlite3.Connection, embedder: str, dimensions: int, digests: Iterable[bytes]) -> dict[bytes, Vectors]:
    """Those that are there and can be used."""
    found: dict[bytes, Vectors] = {}
    for one in digests:
        row = db.execute("SELECT vector FROM vectors WHERE digest = ? AND embedder = ?", (one, embedder)).fetchone()
        if row is not None and len(row[0]) == 4 * dimensions:
            found[one] = np.frombuffer(row[0], "<f4").astype(np.float32)
    if not found:
        return found
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(np.stack(list(found.values())), axis=1)
        good = np.abs(lengths - 1) < UNIT  # nor is NaN
    return {one: vector for (one, vector), usable in zip(found.items(), good.tolist(), strict=True) if usable}


def put_vectors(db: sqlite3.Connection, embedder: str, made: Iterable[tuple[bytes, Vectors]]) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        values = ((one, embedder, np.asarray(vector, "<f4").tobytes()) for one, vector in made)
        db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", values)


def save(db: sqlite3.Connection, put: Iterable[Row], gone: Iterable[str]) -> set[bytes]:
    """Documents that are new or different, and those that are no more. Gives the digests of vectors that perhaps no
    document has now; they are still there, since the same text may come back under another name."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        left: set[bytes] = set()
        for name in gone:
            left |= _taken_out(db, name)
        for row in put:
            left |= _taken_out(db, row.id)
            document = row.document
            fields = (row.id, _text(row.state), row.rules, document.version, document.checksum)
            db.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", (*fields, _list(document.required)))
            db.executemany(
                "INSERT INTO pieces VALUES (?, ?, ?, ?, ?)",
                ((row.id, n, piece.title, piece.text, digest(piece)) for n, piece in enumerate(document.pieces)),
            )
        return left


def drop(db: sqlite3.Connection, digests: Iterable[bytes]) -> None:
    """Those of these vectors that no document has."""
    unused = "DELETE FROM vectors WHERE digest = ?1 AND NOT EXISTS (SELECT 1 FROM pieces WHERE digest = ?1)"
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(unused, ((one,) for one in digests))


def _list(required: frozenset[str]) -> str:
    return json.dumps(sorted(required))


def _taken_out(db: sqlite3.Connection, name: str) -> set[bytes]:
    """The digests of its pieces."""
    digests = {one for (one,) in db.execute("SELECT digest FROM pieces WHERE document = ?", (name,))}
    db.execute("DELETE FROM pieces WHERE document = ?", (name,))
    db.execute("DELETE FROM documents WHERE id = ?", (name,))
    return digests


def refused(db: sqlite3.Connection, rules: str) -> dict[str, Refused]:
    """Files that were not to be found, for a reason that these reading rules gave."""
    found = db.execute("SELECT id, state, reason FROM refused WHERE rules = ?", (rules,)).fetchall()
    return {name: Refused(was, reason) for name, state, reason in found if (was := _state(state)) is not None}


def refuse(db: sqlite3.Connection, rules: str, files: Mapping[str, Refused]) -> None:
    """In place of all that were refused before."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM refused")
        values = ((name, _text(one.state), rules, one.reason) for name, one in files.items())
        db.executemany("INSERT INTO refused VALUES (?, ?, ?, ?)", values)


def _text(state: FileState) -> str:
    return json.dumps(astuple(state))


def _state(text: str) -> FileState | None:
    """None for what another version of the program has written."""
    try:
        return FileState(*json.loads(text))
    except (ValueError, TypeError):
        return None


def drop_unused(db: sqlite3.Connection, embedder: str) -> None:
    """Vectors of other embedders, and those that no document has."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "DELETE FROM vectors WHERE embedder != ?"
            " OR NOT EXISTS (SELECT 1 FROM pieces WHERE pieces.digest = vectors.digest)",
            (embedder,),
        )


def discard(db: sqlite3.Connection, digests: Iterable[bytes]) -> None:
    """These vectors, also where documents have them."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("DELETE FROM vectors WHERE digest = ?", ((one,) for one in digests))


def memory(db: sqlite3.Connection) -> Memory:
    with db:
        db.execute("BEGIN")
        erased = frozenset(db.execute("SELECT document, version FROM erased"))
        return Memory(erased, db.execute("SELECT times FROM told").fetchone()[0])


def remember(db: sqlite3.Connection, what: Memory) -> None:
    """Besides what was remembered before: while a reload goes on, two retrievers may have the file."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT OR IGNORE INTO erased VALUES (?, ?)", what.erased)
        db.execute("UPDATE told SET times = MAX(times, ?)", (what.told,))
