"""The file of what must outlive the process, beside the answers, which cannot be made again: without it a revoked key
would be good."""

from pathlib import Path

from cache.stores import MEMORY, SQLITE
from gateway.durable_file import DurableError, Kind, beside, file_of

SCHEMA_VERSION = 1

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
_SCHEMA = """
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
"""


class StateError(DurableError):
    """What must outlive the process could not be read or written. The text says what to do."""


STATE = Kind(
    name="The state",
    application=0x52667253,  # "RfrS"
    version=SCHEMA_VERSION,
    schema=_SCHEMA,
    opening=_ADDED,
    checked=("revoked", "counters"),  # not the audit log, which takes seconds to read when it is full
    kept="It says which keys are revoked and which documents erased, so nothing is put in its place by itself: restore "
    "a backup, or move it away, revoke those keys and erase those documents again.",
    error=StateError,
)


def state_path(store_url: str, durable_url: str | None) -> Path | None:
    """Where it is kept: where `durable_url` says, else beside the answers, in a file of its own, so that theirs can be
    thrown away. None: nowhere. StateError for a place that it cannot have."""
    answers = file_of(store_url)
    if durable_url is None:
        return answers and beside(answers, "state")
    if durable_url == MEMORY:
        return None
    path = file_of(durable_url)
    if path is None:
        raise StateError(f"store.durable_url must be {SQLITE}path; no other kind is supported yet.")
    if answers is not None and path.resolve() == answers.resolve():
        raise StateError(f"{path} holds the answers (store.url). Set store.durable_url to a path of its own.")
    return path
