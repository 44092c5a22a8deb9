"""What the SQLite store does to its tables: plain functions on an open connection, used inside a transaction.

Criteria become parameters compared with `=`, or looked for with `instr`; never patterns.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from cache.entry import Entry
from cache.match import Match

ROW_OVERHEAD = 448
"""Bytes charged per row beyond its value, strings and labels: its places in six trees (measured: 280 to 450)."""

LABEL_OVERHEAD = 32
"""Bytes charged per tag or document beyond its text, which two trees hold."""

EXPIRED_PER_TURN = 500
"""Rows removed by one `expire`, so that no transaction is long."""

FREE_PAGES = 256
"""Free pages left in the file for the next entries; the others go back to the file system."""

PAGES_PER_TURN = 2000
"""Pages given back by one `trim`: 8 MiB."""


def put(connection: sqlite3.Connection, entry: Entry, value: bytes, used: int) -> None:
    """Keep the entry in place of what its key held. The row stays the same one, and with it the key's question."""
    labels = [("tags", tag) for tag in set(entry.tags)] + [("documents", document) for document in set(entry.documents)]
    size = (
        len(value)
        + 2 * sum(map(len, (entry.tenant, entry.user, entry.endpoint, entry.model)))
        + sum(2 * len(label) + LABEL_OVERHEAD for _, label in labels)
        + ROW_OVERHEAD
    )
    connection.execute(
        "INSERT INTO entries (key, tenant, user, endpoint, model, created, expires, keep_until, used, size, value)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (key) DO UPDATE SET tenant = excluded.tenant, user = excluded.user,"
        " endpoint = excluded.endpoint, model = excluded.model, created = excluded.created,"
        " expires = excluded.expires, keep_until = excluded.keep_until, used = excluded.used,"
        " size = excluded.size, value = excluded.value",
        (
            entry.key,
            entry.tenant,
            entry.user,
            entry.endpoint,
            entry.model,
            entry.created,
            entry.expires,
            entry.keep_until,
            used,
            size,
            value,
        ),
    )
    connection.executemany(
        "INSERT INTO labels SELECT ?, ?, id FROM entries WHERE key = ?", [(*label, entry.key) for label in labels]
    )


def remove(connection: sqlite3.Connection, key: bytes) -> None:
    connection.execute("DELETE FROM entries WHERE key = ?", (key,))


def touch(connection: sqlite3.Connection, key: bytes, used: int) -> None:
    connection.execute("UPDATE entries SET used = ? WHERE key = ?", (used, key))


def last_use(connection: sqlite3.Connection) -> int:
    """The latest `used`."""
    last: int = connection.execute("SELECT coalesce(max(used), 0) FROM entries").fetchone()[0]
    return last


def stir(connection: sqlite3.Connection) -> None:
    """Change nothing, but give the commit something to sync, and with it all that earlier ones left unsynced."""
    connection.execute("UPDATE totals SET bytes = bytes")


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Number of entries, bytes they are charged."""
    entries, size = connection.execute("SELECT entries, bytes FROM totals").fetchone()
    return entries, size


def purge(connection: sqlite3.Connection, match: Match, now: float, *, soft: bool, dry_run: bool) -> int:
    """Remove all that matches; the number of those that were still alive. With `soft`, end the life of those that are
    fresh, and give their number."""
    conditions, values = _conditions(connection, match)
    if soft:
        conditions.append("expires > ?")
        values.append(now)
    alive: int = connection.execute(
        " AND ".join(["SELECT count(*) FROM entries WHERE keep_until > ?", *conditions]), [now, *values]
    ).fetchone()[0]
    if soft and not dry_run:
        chosen = " AND ".join(["SELECT id FROM entries WHERE true", *conditions])
        connection.execute(
            # SQLite reads all columns before it sets one.
            "".join(
                ["UPDATE entries SET keep_until = ? + (keep_until - expires), expires = ? WHERE id IN (", chosen, ")"]
            ),
            [now, now, *values],
        )
    elif not dry_run:
        chosen = " AND ".join(["SELECT id FROM entries WHERE true", *conditions])
        connection.execute("".join(["DELETE FROM entries WHERE id IN (", chosen, ")"]), values)
    return alive


def evict(connection: sqlite3.Connection, max_bytes: int) -> int:
    """Remove the least recently used until the rest fits; how many went."""
    excess = totals(connection)[1] - max_bytes
    if excess <= 0:
        return 0
    doomed = []
    for row, size in connection.execute(
        "SELECT id, entries.size + coalesce(questions.size, 0)"
        " FROM entries LEFT JOIN questions USING (key) ORDER BY used"
    ):
        doomed.append((row,))
        excess -= size
        if excess <= 0:
            break
    connection.executemany("DELETE FROM entries WHERE id = ?", doomed)
    return len(doomed)


def expire(connection: sqlite3.Connection, now: float) -> bool:
    """Remove some of what may no longer be kept; whether there may be more of it."""
    removed = connection.execute(
        "DELETE FROM entries WHERE id IN (SELECT id FROM entries WHERE keep_until <= ? LIMIT ?)",
        (now, EXPIRED_PER_TURN),
    ).rowcount
    return removed == EXPIRED_PER_TURN


def trim(connection: sqlite3.Connection) -> bool:
    """Give some free pages back to the file system, outside a transaction; whether there are more to give."""
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    spare = free - FREE_PAGES
    if spare > 0:
        # The pragma frees one page per step, and only executescript() goes on stepping when there are no columns.
        connection.executescript(f"PRAGMA incremental_vacuum({min(spare, PAGES_PER_TURN)})")
        connection.execute("PRAGMA wal_checkpoint")  # the file shrinks when the log is copied into it
    return spare > PAGES_PER_TURN


def overwrite_log(connection: sqlite3.Connection) -> None:
    """Empty the log, which still holds what was purged. Left for later where somebody is reading it for long."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def value_of(connection: sqlite3.Connection, key: bytes, max_length: int) -> tuple[object, object] | None:
    """The stored value and when its life ends; None when there is none. A value that is longer than `max_length` is
    given as an empty one, without reading it."""
    row: tuple[object, object] | None = connection.execute(
        "SELECT CASE WHEN length(value) <= ? THEN value ELSE x'' END, expires FROM entries WHERE key = ?",
        (max_length, key),
    ).fetchone()
    return row


def live(connection: sqlite3.Connection, keys: Sequence[bytes], now: float) -> dict[bytes, float]:
    """Those of these keys whose entry may still be kept, and when that was made."""
    marks = ", ".join("?" * len(keys))
    query = " ".join(["SELECT key, created FROM entries WHERE keep_until > ? AND key IN (", marks, ")"])
    # Whatever stands in the file: a time that is none would be no answer's.
    return {key: made for key, made in connection.execute(query, (now, *keys)) if isinstance(made, float)}


def newest(connection: sqlite3.Connection, match: Match, now: float) -> Iterator[bytes]:
    """Keys of what matches and is alive, the newest first. Keys alone: sorting must not gather gigabytes of values."""
    conditions, values = _conditions(connection, match)
    chosen = " AND ".join(["SELECT key FROM entries WHERE keep_until > ?", *conditions])
    for (key,) in connection.execute(" ".join([chosen, "ORDER BY created DESC"]), [now, *values]):
        yield key


def _conditions(connection: sqlite3.Connection, match: Match) -> tuple[list[str], list[Any]]:
    """SQL conditions for `match` and their parameters. Labels go through a temporary table: there may be many."""
    conditions: list[str] = []
    values: list[Any] = []
    for column in ("key", "tenant", "user", "endpoint", "model"):
        wanted = getattr(match, column)
        if wanted is not None:
            conditions.append(f"{column} = ?")
            values.append(wanted)
    if match.older_than is not None:
        conditions.append("created < ?")
        values.append(match.older_than)
    if match.text is not None:
        columns = ("lower(model)", "lower(user)", "lower(tenant)")
        parts = [f"instr({column}, ?)" for column in columns] + ["instr(lower(hex(key)), ?) = 1"]
        parts.append("id IN (SELECT entry FROM labels WHERE instr(lower(label), ?))")
        conditions.append(f"({' OR '.join(parts)})")
        values += [match.text.encode().lower().decode()] * len(parts)
    connection.execute("DELETE FROM wanted")
    for kind, labels in (("tags", match.tags), ("documents", match.documents)):
        if labels is not None:
            connection.executemany("INSERT INTO wanted VALUES (?, ?)", [(kind, label) for label in labels])
            conditions.append("id IN (SELECT entry FROM labels JOIN wanted USING (kind, label) WHERE kind = ?)")
            values.append(kind)
    return conditions, values
