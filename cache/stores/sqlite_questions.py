"""What the SQLite store does to its questions: plain functions on an open connection, like those of sqlite_table.

A question lies in a table of its own, so that neither gets nor purges read past vectors. Triggers take it away with
its entry and keep account of its bytes. All its columns are blobs: of these SQLite tells type and length without
reading them.
"""

import sqlite3
from collections.abc import Iterator

from cache.stores.question_codec import LIMITS, Row

ROW_OVERHEAD = 96
"""Bytes charged per row beyond its fields: its places in two trees (measured: 60). An eighth of the fields comes on top
for the rest of a page in which no further row fits: 120 to 390 bytes for a vector of 384 numbers and up to 64 words."""

_ADD = (
    "INSERT INTO questions (key, context, text, embedder, vector, same, seal, size)"
    " SELECT ?, ?, ?, ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM entries WHERE key = ?)"
)
_FIELDS = [
    f"CASE WHEN typeof({name}) = 'blob' AND length({name}) <= {most} THEN {name} END" for name, most in LIMITS.items()
]
_READ = " ".join(
    [
        "SELECT key,",
        ", ".join(_FIELDS),
        "FROM questions WHERE key > ? AND EXISTS",
        "(SELECT 1 FROM entries WHERE entries.key = questions.key AND keep_until > ?) ORDER BY key",
    ]
)


def note(connection: sqlite3.Connection, row: Row) -> None:
    """Keep the question in place of an earlier one of its key; nothing where the key has no entry."""
    remove(connection, row.key)
    length = sum(map(len, row))
    connection.execute(_ADD, (*row, length + length // 8 + ROW_OVERHEAD, row.key))


def remove(connection: sqlite3.Connection, key: bytes) -> None:
    connection.execute("DELETE FROM questions WHERE key = ?", (key,))


def after(connection: sqlite3.Connection, key: bytes, now: float) -> Iterator[tuple[bytes, tuple[object, ...]]]:
    """By key, the questions of live entries, from the first key greater than `key` on: the key as it is, and all
    fields, None in place of those that are too long or no bytes."""
    for found, *fields in connection.execute(_READ, (key, now)):
        yield found, tuple(fields)
