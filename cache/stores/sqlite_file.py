"""The database file of the SQLite store: made private, given its schema, moved aside when it cannot be used.

A cache holds nothing that cannot be made again, so no state of the file may stop the gateway: one that is damaged,
is no database, or has another schema version is renamed to `<name>.corrupt-<time>` and a fresh one takes its place.
What a new file would not cure (no permission, no space, a lock that does not end) is a StoreError.

A database is never opened here but by SQLite: closing any descriptor of it would drop SQLite's POSIX locks.
"""

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cache.stores.base import StoreError

SCHEMA_VERSION = 3

BUSY_TIMEOUT = 2.0
"""Seconds to wait for a lock that another process holds."""

_SCHEMA = """
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    created REAL NOT NULL,
    -- These two bind, not those in the value: a soft purge cuts them short.
    expires REAL NOT NULL,
    keep_until REAL NOT NULL,
    used INTEGER NOT NULL,
    size INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX entries_used ON entries (used);
CREATE INDEX entries_keep_until ON entries (keep_until);
CREATE INDEX entries_created ON entries (created);
-- All that a purge may ask for, so that it reads this index and not gigabytes of values.
CREATE INDEX entries_match ON entries (tenant, user, endpoint, model, created, expires, keep_until);

CREATE TABLE labels (
    kind TEXT NOT NULL,
    label TEXT NOT NULL,
    entry INTEGER NOT NULL,
    PRIMARY KEY (kind, label, entry)
) WITHOUT ROWID;
CREATE INDEX labels_entry ON labels (entry);

-- What the semantic tier keeps beside an entry (sqlite_questions).
CREATE TABLE questions (
    key BLOB NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    context BLOB NOT NULL,
    text BLOB NOT NULL,
    embedder BLOB NOT NULL,
    vector BLOB NOT NULL,
    same BLOB NOT NULL,
    seal BLOB NOT NULL
);

CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER entries_added AFTER INSERT ON entries BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + NEW.size;
END;
-- A newer answer under the same key: the labels of the former go, its question stays.
CREATE TRIGGER entries_replaced AFTER UPDATE OF size ON entries BEGIN
    UPDATE totals SET bytes = bytes - OLD.size + NEW.size;
    DELETE FROM labels WHERE entry = OLD.id;
END;
CREATE TRIGGER entries_removed AFTER DELETE ON entries BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - OLD.size;
    DELETE FROM labels WHERE entry = OLD.id;
    DELETE FROM questions WHERE key = OLD.key;
END;
CREATE TRIGGER questions_added AFTER INSERT ON questions BEGIN
    UPDATE totals SET bytes = bytes + NEW.size;
END;
CREATE TRIGGER questions_removed AFTER DELETE ON questions BEGIN
    UPDATE totals SET bytes = bytes - OLD.size;
END;
"""

_log = logging.getLogger(__name__)


class OtherSchema(sqlite3.DatabaseError):
    """A database, but not one of this schema version."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What was found wrong with the file of this inode."""

    inode: int
    reason: str


def open_database(path: Path, damage: Damage | None = None) -> sqlite3.Connection:
    """A connection to the cache at `path`; the file is made where it is missing, and made anew where it is unusable
    or has the `damage` given. StoreError when that cannot be."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path.parent):
            if damage is not None:
                _move_aside(path, damage)
            _make(path)
            try:
                return connect(path)
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                _move_aside(path, Damage(inode_of(path), str(error)))
            _make(path)
            return connect(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot keep answers in {path}: {error}. Check the directory and its permissions.") from error


def is_damage(error: Exception) -> bool:
    """Whether only a new file helps, as against a full disk or a lock."""
    # Python's own complaints (a closed connection, say) are sqlite3.Errors without a code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return isinstance(error, OtherSchema) or code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def inode_of(path: Path) -> int:
    """Tells one file of this name from the next; 0 where there is none."""
    return path.stat().st_ino if path.exists() else 0


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process at a time: of several that find the file unusable, one replaces it and the others find a new one."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _move_aside(path: Path, damage: Damage) -> None:
    """Rename the file and its companions; nothing where another process has done so already."""
    if inode_of(path) != damage.inode:
        return
    aside = f"{path}.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    # The write-ahead log first: it must never meet a newer file.
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    _log.warning("%s cannot be used (%s): moved to %s, starting with an empty cache", path, damage.reason, aside)


def _make(path: Path) -> None:
    """The file with its schema, where there is none. Answers are for their owner's eyes: mode 0600."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for needed in (path.parent, path):
        if not os.access(needed, os.W_OK):
            raise PermissionError(errno.EACCES, "not writable", str(needed))
    if path.stat().st_size == 0:
        with closing(_open(path)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded only while the file is empty
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT")


def connect(path: Path) -> sqlite3.Connection:
    """A connection to a file that is there, to be used by one thread at a time. sqlite3.Error when it is unusable."""
    connection = _open(path)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            raise OtherSchema(f"schema version {version}, not {SCHEMA_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")  # what was removed is not to be read in the file
        connection.execute(f"PRAGMA journal_size_limit = {16 * 1024 * 1024}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("CREATE TEMP TABLE wanted (kind TEXT, label TEXT, PRIMARY KEY (kind, label)) WITHOUT ROWID")
    except BaseException:
        connection.close()
        raise
    return connection


def _open(path: Path) -> sqlite3.Connection:
    # mode=rw: a reader that comes while the file is being replaced must not make one.
    uri = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
