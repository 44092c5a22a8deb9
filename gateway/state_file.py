"""The file of what must outlive the process: made private and whole, checked before it is used, never replaced.

Unlike the answers, what is in here cannot be made again, and without it a revoked key would be good. So a file that
is damaged, another program's or another version's is refused and left as it is.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from cache.stores import MEMORY, SQLITE

APPLICATION = 0x52667253
"""Marks the database as ours ("RfrS"), so that an answers' file or any other one is not taken for it."""
SCHEMA_VERSION = 1
BUSY_TIMEOUT = 2.0
"""Seconds to wait for a lock that another process holds."""

# What came after the first release: older ones leave it alone, so it needs no version of its own.
_ADDED = """
CREATE TABLE IF NOT EXISTS wrong_pairs (
    asked BLOB NOT NULL, served BLOB NOT NULL, at REAL NOT NULL, by TEXT NOT NULL, PRIMARY KEY (asked, served)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS erased (
    number INTEGER PRIMARY KEY,
    retriever TEXT NOT NULL,
    document TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (retriever, document)
);
CREATE INDEX IF NOT EXISTS erased_retriever ON erased (retriever);
"""
_SCHEMA = f"""
BEGIN;
CREATE TABLE revoked (digest BLOB PRIMARY KEY, at REAL NOT NULL, by TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    role TEXT NOT NULL,
    action TEXT NOT NULL,
    details TEXT NOT NULL,
    request_id TEXT NOT NULL,
    result TEXT
);
CREATE INDEX audit_tenant ON audit (tenant);
CREATE TABLE counters (name TEXT PRIMARY KEY, count INTEGER NOT NULL, ends REAL NOT NULL) WITHOUT ROWID;
{_ADDED}
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

FOREIGN = (sqlite3.Error, OSError, UnicodeError, OverflowError, msgspec.DecodeError)
"""What `translate` takes: what SQLite, the system, and the conversion of values raise."""

_KEPT = (
    "It says which keys are revoked and which documents erased, so nothing is put in its place by itself: restore a "
    "backup, or move it away, revoke those keys and erase those documents again."
)
_ACCESS = "Let this user read and write it and its folder, or set store.durable_url to another path."


class StateError(Exception):
    """What must outlive the process could not be read or written. The text says what to do."""


def state_path(store_url: str, durable_url: str | None) -> Path | None:
    """Where it is kept: where `durable_url` says, else beside the answers, in a file of its own, so that theirs can be
    thrown away. None: nowhere. StateError for a place that it cannot have."""
    answers = Path(store_url.removeprefix(SQLITE)) if store_url.startswith(SQLITE) else None
    if durable_url is None:
        return answers and answers.with_name(f"{answers.stem}.state{answers.suffix}")
    if durable_url == MEMORY:
        return None
    if not durable_url.startswith(SQLITE):
        raise StateError("store.durable_url must be sqlite:///path; no other kind is supported yet.")
    path = Path(durable_url.removeprefix(SQLITE))
    if answers is not None and path.resolve() == answers.resolve():
        raise StateError(f"{path} holds the answers (store.url). Set store.durable_url to a path of its own.")
    return path


def translate(path: Path | None, error: Exception) -> StateError:
    """The one place where foreign errors become ours. They quote no value that was to be written."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    number = error.errno if isinstance(error, OSError) else None
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        what = f"is damaged, or no database ({error}). {_KEPT}"
    elif code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = f"cannot grow ({error}). Make room on its disk."
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        what = f"is held by another process ({error}). End what keeps it locked."
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or number is not None:
        what = f"cannot be used ({error}). {_ACCESS}"
    elif isinstance(error, UnicodeError | OverflowError):
        what = "cannot hold a value: a text that is no Unicode, or a number beyond 64 bits."
    else:
        what = f"cannot be read or written ({error})."
    return StateError(f"{path or 'The state in memory'} {what}")


def open_state(path: Path | None) -> sqlite3.Connection:
    """A connection for the calling thread; the file is made where it is missing, and with None there is none. Raises
    StateError for a file that is not to be used, and what `translate` takes."""
    if path is None:
        memory = _connect(":memory:")
        memory.executescript(_SCHEMA)
        return memory
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(path.parent):
        for needed in (path.parent, path):
            if os.path.lexists(needed) and not os.access(needed, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, "not writable", str(needed))
        if not os.path.lexists(path):
            _make(path)
        if not path.is_file():
            raise StateError(f"{path} is not a file. Set store.durable_url to the path of one.")
        with closing(_connect(_uri(path, "ro"))) as connection:
            _check(path, connection)
        connection = _connect(_uri(path, "rw"))
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
            connection.execute(f"PRAGMA journal_size_limit = {4 * 1024 * 1024}")
            connection.executescript(_ADDED)
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, so that only one makes the file and sets its journal mode."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """The file appears with its schema or not at all: an empty one is always one that has lost something."""
    with closing(_connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        content = connection.serialize()
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)  # of a process that was killed here
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check(path: Path, connection: sqlite3.Connection) -> None:
    """By a connection that only reads, since any other would tidy up on closing what it must leave as it is."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise StateError(
            f"{path} is not Refrain's: it is empty, or another program's database. Set store.durable_url to another "
            f"path. If it used to be Refrain's: {_KEPT}"
        )
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise StateError(
            f"{path} has schema version {version}, not {SCHEMA_VERSION}. Run the version of Refrain that wrote it. "
            f"{_KEPT}"
        )
    for table in ("revoked", "counters"):  # not the audit log, which takes seconds to read when it is full
        found = connection.execute(f"PRAGMA integrity_check({table})").fetchone()[0]
        if found != "ok":
            raise StateError(f"{path} is damaged ({table}: {found.splitlines()[-1]}). {_KEPT}")


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def _connect(database: str) -> sqlite3.Connection:
    # Used and closed by the thread that makes it, which sqlite3 checks.
    return sqlite3.connect(database, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)
