"""The file of the batch lane, beside the answers: uploads, batches, their lines and what came of them."""

from pathlib import Path

from gateway.durable_file import DurableError, Kind, beside, file_of

SCHEMA_VERSION = 1

# A line is in `lines` until it has a result, then in `results`, and moves in one transaction. So whatever happens to
# the process it is in exactly one of them, and what waits is found without looking at what is done.
#
# A file's content is its pieces, or, where it has a `batch`, that batch's good or bad results. What is wrong with the
# input of a batch are pieces, too, under the batch's id. `loose` names content of no file: an upload under way, or what
# is left to remove of one that was abandoned or deleted. `gone` remembers for a while where deleted files stood in
# lists, since who pages through one and deletes what it shows goes on after a file that is no longer there.
_SCHEMA = """
CREATE TABLE files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    size INTEGER NOT NULL,
    created REAL NOT NULL,
    expires REAL,
    batch INTEGER,
    good INTEGER
);
CREATE INDEX files_owner ON files (tenant, user, number);
CREATE INDEX files_batch ON files (batch) WHERE batch IS NOT NULL;
CREATE INDEX files_expires ON files (expires) WHERE expires IS NOT NULL;
CREATE TRIGGER files_gone AFTER DELETE ON files BEGIN
    INSERT INTO loose VALUES (OLD.id, OLD.batch, OLD.good, 0);
END;
CREATE TABLE gone (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, user TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX gone_at ON gone (at);
CREATE TABLE pieces (number INTEGER PRIMARY KEY, file TEXT NOT NULL, data BLOB NOT NULL);
CREATE INDEX pieces_file ON pieces (file, number);
CREATE TABLE loose (id TEXT PRIMARY KEY, batch INTEGER, good INTEGER, upload INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    user TEXT NOT NULL,
    ended REAL,
    record BLOB NOT NULL
);
CREATE INDEX batches_owner ON batches (tenant, user, number);
CREATE INDEX batches_running ON batches (number) WHERE ended IS NULL;
CREATE INDEX batches_ended ON batches (ended) WHERE ended IS NOT NULL;
CREATE TRIGGER batches_gone AFTER DELETE ON batches WHEN EXISTS (SELECT 1 FROM pieces WHERE file = OLD.id) BEGIN
    INSERT INTO loose VALUES (OLD.id, NULL, NULL, 0);
END;
CREATE TABLE lines (
    batch INTEGER NOT NULL, number INTEGER NOT NULL, custom_id TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE TABLE results (
    batch INTEGER NOT NULL, good INTEGER NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (batch, good, number)
) WITHOUT ROWID;
"""


class BatchStoreError(DurableError):
    """What the batch lane keeps could not be read or written. The text says what to do."""


class InUse(BatchStoreError):
    """Another process has it."""


class FileGone(BatchStoreError):
    """There is no such file, or it was deleted while it was read."""


BATCHES = Kind(
    name="The batch lane",
    application=0x52667262,  # "Rfrb"
    version=SCHEMA_VERSION,
    schema=_SCHEMA,
    opening="PRAGMA secure_delete = ON;",  # what was removed is not to be read in the file
    checked=("files", "loose", "batches"),  # not what they contain, which takes long to read
    kept="It holds files and batches that were accepted, so nothing is put in its place by itself: restore a backup, "
    "or move it away, which loses them.",
    error=BatchStoreError,
    alone=InUse,
    opening_takes=600.0,  # a month's batches may be many
)


def batches_path(store_url: str, durable_url: str | None) -> Path | None:
    """Where it is kept: beside what `durable_url` names, else beside the answers. None: nowhere, so there can be no
    batches. BatchStoreError for a place that it cannot have."""
    answers = file_of(store_url)
    kept = answers if durable_url is None else file_of(durable_url)
    path = kept and beside(kept, "batches")
    if path is not None and answers is not None and path.resolve() == answers.resolve():
        raise BatchStoreError(f"{path} holds the answers (store.url). Give the file of store.durable_url another name.")
    return path
