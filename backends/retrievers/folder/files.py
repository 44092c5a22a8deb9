"""Which files of a folder are documents, and their bytes. Nothing outside the folder is ever opened.

Every step down is made from the open folder above it, and never through a link: whoever swaps a file or a folder for a
link meanwhile gets an error, and not a file of somebody else. Links inside the folder are left out too, even those that
stay inside: a document has one name, and so one set of permissions.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from backends.retrievers.folder import formats
from backends.retrievers.folder.formats_base import Unreadable

MAX_FILE = 20 * 2**20
"""Bytes."""
MAX_FILES = 100_000
MAX_SKIPPED = 10_000
"""Reasons that are kept for people."""
MAX_DEPTH = 60
"""Folders above a document; each is an open file while it is read."""
MAX_ID = 1_000
"""Bytes of an id."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # not blocked by a pipe that nobody writes to


@dataclass(frozen=True, slots=True)
class FileState:
    """When two are equal, the file has not changed (unless somebody has set its times)."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int  # another one, too, after a change of its mode, or of its content by who has put its time back


@dataclass(frozen=True, slots=True)
class Listing:
    """The documents by id (their path below the folder, with `/`, to the letter as it is on disk), and files that are
    no documents with the reason, which reads on behind the name ("is a link")."""

    files: dict[str, FileState] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def skip(self, name: str, reason: str) -> None:
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped[name] = reason


def scan(root: Path, *, exclude: Collection[Path]) -> Listing:
    """All documents below `root`, which may itself be a link, but for files at the paths in `exclude`.

    What begins with a dot is no document, silently. Raises OSError where the folder itself cannot be listed, which
    is not the same as an empty folder.
    """
    real = os.path.realpath(root)
    excluded = {os.path.realpath(path) for path in exclude}
    excluded |= {os.path.join(os.path.realpath(path.parent), path.name) for path in exclude}
    below = os.path.join(real, "")
    left_out = {path.removeprefix(below) for path in excluded if path.startswith(below)}
    listing = Listing()
    with _opened(real, None) as folder:
        _scan(folder, "", 0, left_out, listing)
    return listing


def _scan(folder: int, above: str, depth: int, left_out: Collection[str], listing: Listing) -> None:
    """Raises OSError where this folder (not one below it) cannot be listed."""
    with os.scandir(folder) as entries:
        # In an order of its own, so that a bound leaves out the same files every time.
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name.startswith("."):
            continue
        name = above + entry.name
        try:
            _look(folder, entry, name, depth, left_out, listing)
        except FileNotFoundError:
            pass  # it has gone since
        except OSError as error:
            listing.skip(_readable(name), f"cannot be read: {error.strerror}")


def _look(
    folder: int, entry: "os.DirEntry[str]", name: str, depth: int, left_out: Collection[str], listing: Listing
) -> None:
    status = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
    if reason := _wrong_name(name):
        listing.skip(_readable(name), reason)
    elif stat.S_ISDIR(status.st_mode):
        if depth >= MAX_DEPTH:
            listing.skip(name, f"lies more than {MAX_DEPTH} folders deep")
            return
        with _opened(entry.name, folder) as inner:
            _scan(inner, name + "/", depth + 1, left_out, listing)
    elif name in left_out:
        pass
    elif reason := _no_document(name, status):
        listing.skip(name, reason)
    elif len(listing.files) >= MAX_FILES:
        listing.skip(name, f"comes after the first {MAX_FILES:,} documents")
    else:
        listing.files[name] = FileState(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def read(root: Path, document: str) -> bytes:
    """The bytes of a document. Raises Unreadable, whatever the id is and whatever lies there."""
    check(document)
    *folders, name = document.split("/")
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(_opened(os.path.realpath(root), None))
            for part in folders:
                folder = stack.enter_context(_opened(part, folder))
            with open(os.open(name, _FILE, dir_fd=folder), "rb", buffering=0) as file:
                if reason := _no_document(document, os.fstat(file.fileno())):
                    raise Unreadable(reason)
                return _bytes(file.fileno())
    except FileNotFoundError:
        raise Unreadable("is not there") from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None


def check(document: str) -> None:
    """Raises Unreadable where this cannot be the id of a document: it is no plain path below the folder."""
    parts = document.split("/")
    if _wrong_name(document) or not all(_plain(part) for part in parts) or len(parts) > MAX_DEPTH + 1:
        raise Unreadable("is no name of a document")


def _bytes(file: int) -> bytes:
    """All bytes of an open file, which may be growing. Raises Unreadable."""
    parts: list[bytes] = []
    size = 0
    while part := os.read(file, 2**20):
        parts.append(part)
        size += len(part)
        if size > MAX_FILE:
            raise Unreadable(_TOO_LARGE)
    return b"".join(parts)


@contextlib.contextmanager
def _opened(name: str, above: int | None) -> Iterator[int]:
    """A folder, not reached through a link."""
    folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    try:
        yield folder
    finally:
        os.close(folder)


_TOO_LARGE = f"has more than {MAX_FILE // 2**20} MiB"


def _no_document(name: str, status: os.stat_result) -> str:
    """Why a file with this name and status is no document; "" where it is one."""
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISREG(status.st_mode):
        return "is no file"
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in formats.SUFFIXES:
        return f"is of a kind that is not read ({suffix})"
    return _TOO_LARGE if status.st_size > MAX_FILE else ""


def _wrong_name(name: str) -> str:
    """Why an id cannot be one; "" where it can."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    return f"has a path of more than {MAX_ID:,} bytes" if size > MAX_ID else ""


def _plain(part: str) -> bool:
    return bool(part) and not part.startswith(".") and "\0" not in part


def _readable(name: str) -> str:
    """A name for people, which may have bytes that are no text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
