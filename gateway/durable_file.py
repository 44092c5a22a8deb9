"""A SQLite file whose content cannot be made again: made private and whole, checked before it is used, never replaced.

So a file that is damaged, another program's or another version's is refused and left as it is.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cache.stores import SQLITE

BUSY_TIMEOUT = 2.0
"""Seconds to wait for a lock that another process holds."""

DEADLINE = 5.0
"""Seconds that a call may take, its wait for those before it included."""

FOREIGN = (sqlite3.Error, OSError, UnicodeError, OverflowError, msgspec.DecodeError)
"""What `translate` takes: what SQLite, the system, and the conversion of values raise."""

_ACCESS = "Let this user read and write it and its folder, or set store.durable_url to another path."


class DurableError(Exception):
    """What must outlive the process could not be read or written. The text says what to do; `full` that room is
    what it lacks."""

    def __init__(self, text: str, *, full: bool = False) -> None:
        super().__init__(text)
        self.full = full


@dataclass(frozen=True, slots=True)
class Kind:
    """What such a file holds. `application` marks the database as ours, so that no other one is taken for it. `schema`
    makes a new one; `opening` is run by every connection; `checked` are the tables that are checked first, none of
    which takes long to read. `kept` says what is lost with it, and `error` is what its failures are. `alone`: only one
    process may have it open, and this is what another one is told. `opening_takes`: seconds, at most."""

    name: str
    application: int
    version: int
    schema: str
    opening: str
    checked: tuple[str, ...]
    kept: str
    error: type[DurableError]
    alone: type[DurableError] | None = None
    opening_takes: float = DEADLINE


def file_of(url: str) -> Path | None:
    """The file that a store's URL names, if it names one."""
    return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None


def beside(path: Path, name: str) -> Path:
    """`cache.db` -> `cache.<name>.db`: a file of its own, so that the other can be thrown away."""
    return path.with_name(f"{path.stem}.{name}{path.suffix}")


def translate(kind: Kind, path: Path | None, error: Exception) -> DurableError:
    """The one place where foreign errors become ours. They quote no value that was to be written."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    number = error.errno if isinstance(error, OSError) else None
    full = code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        what = f"is damaged, or no database ({error}). {kind.kept}"
    elif full:
        what = f"cannot grow ({error}). Make room on its disk."
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        what = f"is held by another process ({error}). End what keeps it locked."
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or number is not None:
        what = f"cannot be used ({error}). {_ACCESS}"
    elif isinstance(error, UnicodeError | OverflowError):
        what = "cannot hold a value: a text that is no Unicode, or a number beyond 64 bits."
    else:
        what = f"cannot be read or written ({error})."
    return kind.error(f"{path or f'{kind.name} in memory'} {what}", full=full)


def open_file(kind: Kind, path: Path | None) -> sqlite3.Connection:
    """A connection for the calling thread; the file is made where it is missing, and with None there is none. Raises
    the kind's error for a file that is not to be used, and what `translate` takes."""
    if path is None:
        memory = _connect(":memory:")
        memory.executescript(_whole(kind))
        return memory
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(path.parent):
        for needed in (path.parent, path):
            if os.path.lexists(needed) and not os.access(needed, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, "not writable", str(needed))
        if not os.path.lexists(path):
            _make(kind, path)
        if not path.is_file():
            raise kind.error(f"{path} is not a file. Set store.durable_url to the path of one.")
        with closing(_connect(_uri(path, "ro"))) as connection:
            _check(kind, path, connection)
        connection = _connect(_uri(path, "rw"))
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
            connection.execute(f"PRAGMA journal_size_limit = {4 * 1024 * 1024}")
            connection.executescript(kind.opening)
        except BaseException:
            connection.close()
            raise
        return connection


def hold(in_use: type[DurableError], path: Path) -> int:
    """Keep other processes off the file while the descriptor that this gives is open. Raises as `open_file` does."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file of its own: to close a descriptor of the database would give up SQLite's locks on it.
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        text = f"{path} is in use by another gateway. Stop that one, or give this one another store.durable_url."
        raise in_use(text) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, so that only one makes the file and sets its journal mode."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(kind: Kind, path: Path) -> None:
    """The file appears with its schema or not at all: an empty one is always one that has lost something."""
    with closing(_connect(":memory:")) as connection:
        connection.executescript(_whole(kind))
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


def _check(kind: Kind, path: Path, connection: sqlite3.Connection) -> None:
    """By a connection that only reads, since any other would tidy up on closing what it must leave as it is."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != kind.application:
        raise kind.error(
            f"{path} is not Refrain's: it is empty, or another program's database. Set store.durable_url to another "
            f"path. If it used to be Refrain's: {kind.kept}"
        )
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != kind.version:
        raise kind.error(
            f"{path} has schema version {version}, not {kind.version}. Run the version of Refrain that wrote it. "
            f"{kind.kept}"
        )
    for table in kind.checked:
        found = connection.execute(f"PRAGMA integrity_check({table})").fetchone()[0]
        if found != "ok":
            raise kind.error(f"{path} is damaged ({table}: {found.splitlines()[-1]}). {kind.kept}")


def _whole(kind: Kind) -> str:
    marks = f"PRAGMA application_id = {kind.application}; PRAGMA user_version = {kind.version};"
    return f"BEGIN; {kind.schema} {marks} COMMIT; {kind.opening}"


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def _connect(database: str) -> sqlite3.Connection:
    # Used and closed by the thread that makes it, which sqlite3 checks.
    return sqlite3.connect(database, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)
