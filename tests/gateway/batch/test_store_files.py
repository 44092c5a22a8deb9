"""The batch lane's files: uploads that are whole or not there, whose they are, their content, and their end."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.batch import table_files
from gateway.batch.records import FileRecord
from gateway.batch.store import BatchStore, BatchStoreError, FileGone
from gateway.batch.table_files import GONE_LIVES, PIECE, STEP
from tests.gateway.batch.kept import ANN, BOB, OTHER, accepted, bad, content, good, record, upload


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.batches.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[BatchStore]:
    store = await BatchStore.open(path)
    yield store
    await store.aclose()


def rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def listed(
    store: BatchStore,
    who: tuple[str, str] = ANN,
    *,
    after: str | None = None,
    limit: int = 10,
    newest_first: bool = True,
    purpose: str | None = None,
) -> list[str] | None:
    found = await store.files(who, after=after, limit=limit, newest_first=newest_first, purpose=purpose)
    return None if found is None else [file.id for file in found]


# Uploads.


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [1], [3, 0, 4], [PIECE], [PIECE + 1], [3 * PIECE - 1], [1000] * 600, [PIECE - 1] * 3, [STEP + PIECE]],
    ids=lambda sizes: f"{len(sizes)} of {max(sizes, default=0)}",
)
async def test_a_content_comes_back_to_the_byte_in_pieces(store: BatchStore, sizes: list[int]) -> None:
    pieces = [os.urandom(size) for size in sizes]
    kept = await upload(store, "file-1", *pieces, expires=99.5, filename="Zoë ☃ \x00.jsonl")
    assert await store.file(ANN, "file-1") == kept
    read = [piece async for piece in store.content("file-1")]
    assert b"".join(read) == b"".join(pieces)
    assert all(0 < len(piece) < 2 * PIECE for piece in read)
    assert len(read) <= 1 + sum(sizes) // PIECE


async def test_an_upload_is_not_there_before_it_is_whole(store: BatchStore) -> None:
    await store.begin("file-1")
    await store.piece("file-1", b"abc")
    assert await store.file(ANN, "file-1") is None
    assert await listed(store) == []
    assert not await store.delete_file(ANN, "file-1", at=60.0)
    with pytest.raises(FileGone):
        await content(store, "file-1")
    await store.keep(record("file-1", size=3))
    assert await listed(store) == ["file-1"]
    assert await content(store, "file-1") == b"abc"


async def test_an_abandoned_upload_leaves_nothing(store: BatchStore, path: Path) -> None:
    await store.begin("file-1")
    for _ in range(3):
        await store.piece("file-1", os.urandom(STEP))
    await store.abandon("file-1")
    assert (rows(path, "pieces"), rows(path, "loose")) == (0, 0)
    for call in (store.piece("file-1", b"x"), store.keep(record("file-1"))):
        with pytest.raises(BatchStoreError, match="no upload file-1"):
            await call
    await store.abandon("file-1")
    assert await listed(store) == []


async def test_nothing_is_added_to_a_file_that_is_whole(store: BatchStore) -> None:
    kept = await upload(store, "file-1", b"abc")
    for call in (store.piece("file-1", b"x"), store.keep(record("file-1", user="bob"))):
        with pytest.raises(BatchStoreError, match="no upload file-1"):
            await call
    await store.begin("file-1")
    with pytest.raises(BatchStoreError):  # the id is taken
        await store.keep(record("file-1", user="bob"))
    assert await store.file(ANN, "file-1") == kept
    assert await content(store, "file-1") == b"abc"


async def test_uploads_at_once_do_not_mix(store: BatchStore) -> None:
    async def one(id: str) -> None:
        await store.begin(id)
        for n in range(20):
            await store.piece(id, b"%s %d;" % (id.encode(), n))
        await store.keep(record(id))

    ids = [f"file-{n}" for n in range(5)]
    await asyncio.gather(*map(one, ids))
    for id in ids:
        assert await content(store, id) == b"".join(b"%s %d;" % (id.encode(), n) for n in range(20))


async def test_whole_files_survive_a_restart_and_others_go(path: Path) -> None:
    first = await BatchStore.open(path)
    kept = await upload(first, "file-1", b"abc", b"def")
    await first.begin("file-2")
    await first.piece("file-2", os.urandom(2 * STEP))
    await first.aclose()
    second = await BatchStore.open(path)
    assert await second.file(ANN, "file-1") == kept
    assert await content(second, "file-1") == b"abcdef"
    assert (rows(path, "pieces"), rows(path, "loose")) == (2, 0)
    with pytest.raises(BatchStoreError, match="no upload file-2"):
        await second.keep(record("file-2"))
    await second.aclose()


async def test_what_was_written_without_waiting_for_the_disk_is_followed_by_what_waits(store: BatchStore) -> None:
    await store.begin("file-1")
    await store.piece("file-1", b"abc")
    with pytest.raises(BatchStoreError):
        await store.piece("file-2", b"abc")
    safety = await store._do(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])
    assert safety == 2  # FULL


# Whose they are.


async def test_only_who_made_it_finds_it(store: BatchStore) -> None:
    await upload(store, "file-1", b"abc")
    for who in (BOB, OTHER, ("", ""), ("ann", "acme"), ("acme", "ann' OR 1=1 --")):
        assert await store.file(who, "file-1") is None
        assert not await store.delete_file(who, "file-1", at=60.0)
        assert await listed(store, who) == []
        assert await listed(store, who, after="file-1") is None
    assert await listed(store) == ["file-1"]


async def test_a_list_goes_on_after_an_id(store: BatchStore) -> None:
    for n in range(6):
        await upload(store, f"file-{n}", purpose=("batch", "batch_output")[n % 2], created=float(-n))
    await upload(store, "file-bob", user="bob")
    assert await listed(store) == [f"file-{n}" for n in (5, 4, 3, 2, 1, 0)]
    assert await listed(store, limit=2) == ["file-5", "file-4"]
    assert await listed(store, after="file-4", limit=2) == ["file-3", "file-2"]
    assert await listed(store, after="file-0") == []
    assert await listed(store, newest_first=False, limit=2) == ["file-0", "file-1"]
    assert await listed(store, newest_first=False, after="file-4") == ["file-5"]
    assert await listed(store, purpose="batch_output") == ["file-5", "file-3", "file-1"]
    assert await listed(store, purpose="batch", after="file-3", limit=1) == ["file-2"]
    assert await listed(store, purpose="vision") == []
    for unknown in ("file-bob", "file-9", ""):
        assert await listed(store, after=unknown) is None
    await store.delete_file(ANN, "file-5", at=60.0)
    await upload(store, "file-6")
    assert await listed(store, limit=2) == ["file-6", "file-4"]


# Their end.


async def test_a_deleted_file_leaves_nothing_to_be_read(store: BatchStore, path: Path) -> None:
    await upload(store, "file-1", b"a secret" * PIECE)
    await upload(store, "file-2", b"other")
    assert await store.delete_file(ANN, "file-1", at=60.0)
    assert not await store.delete_file(ANN, "file-1", at=60.0)
    with pytest.raises(FileGone, match="no file file-1"):
        await content(store, "file-1")
    assert (rows(path, "pieces"), rows(path, "loose")) == (1, 0)
    assert await content(store, "file-2") == b"other"
    await store.aclose()
    assert b"a secret" not in await asyncio.to_thread(path.read_bytes)


async def test_a_file_that_is_deleted_while_it_is_read_is_no_short_file(store: BatchStore) -> None:
    await upload(store, "file-1", os.urandom(3 * PIECE))
    reading = store.content("file-1")
    assert len(await anext(reading)) == PIECE
    await store.delete_file(ANN, "file-1", at=60.0)
    with pytest.raises(FileGone, match="deleted while it was read"):
        await anext(reading)


async def test_what_could_not_be_removed_at_once_is_later(
    store: BatchStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(store, "file-1", os.urandom(PIECE))

    def fails(db: sqlite3.Connection) -> bool:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(table_files, "sweep", fails)
    assert await store.delete_file(ANN, "file-1", at=60.0)
    assert await store.file(ANN, "file-1") is None
    for call in (store.piece("file-1", b"x"), store.keep(record("file-1"))):
        with pytest.raises(BatchStoreError, match="no upload file-1"):
            await call
    with pytest.raises(BatchStoreError, match="disk I/O error"):
        await store.expire(0.0)
    assert rows(path, "pieces") == 1
    monkeypatch.undo()
    await store.begin("file-2")
    await store.piece("file-2", b"under way")
    assert await store.expire(0.0) == 0
    assert rows(path, "pieces") == 1
    await store.keep(record("file-2"))
    assert await content(store, "file-2") == b"under way"


async def test_files_expire(store: BatchStore, path: Path) -> None:
    for n, expires in enumerate([None, 50.0, 60.0, 60.5]):
        await upload(store, f"file-{n}", b"x" * (n + 1), expires=expires)
    assert await store.expire(49.9) == 0
    assert await store.expire(60.0) == 2
    assert await listed(store) == ["file-3", "file-0"]
    assert rows(path, "pieces") == 2
    assert await store.expire(60.0) == 0
    assert await store.expire(1e12) == 1
    assert await listed(store) == ["file-0"]


@pytest.mark.parametrize("how", ["deleted", "expired"])
async def test_an_output_file_goes_with_its_lines_and_the_error_file_stays(
    store: BatchStore, path: Path, how: str
) -> None:
    await accepted(store, 4)
    await store.finish("batch_1", [good(1), bad(2), good(3), bad(4)])
    ended = await store.end("batch_1", "completed", at=30.0, left=None)
    assert ended.output_file is not None
    if how == "deleted":
        assert await store.delete_file(ANN, ended.output_file, at=60.0)
    else:
        assert await store.expire(30.0 + 30 * 86400.0) == 2
    assert rows(path, "results") == (2 if how == "deleted" else 0)
    assert await store.file(ANN, ended.output_file) is None
    if how == "deleted":
        assert await content(store, ended.error_file) == b'{"bad":2}\n{"bad":4}\n'
    assert await store.batch(ANN, "batch_1") == (ended if how == "deleted" else None)  # which goes with its last file


@pytest.mark.parametrize(
    "wrong", [record("file-1", filename="\ud800"), record("file-1", size=2**63)], ids=["no Unicode", "too large"]
)
async def test_what_cannot_be_kept_is_refused(store: BatchStore, wrong: FileRecord) -> None:
    await store.begin("file-1")
    with pytest.raises(BatchStoreError, match="cannot hold a value"):
        await store.keep(wrong)
    assert await listed(store) == []
    await store.keep(record("file-1"))


async def test_a_list_goes_on_for_a_day_after_a_file_that_was_deleted(store: BatchStore) -> None:
    for n in range(5):
        await upload(store, f"file-{n}", expires=50.0 if n == 3 else None)
    await store.delete_file(ANN, "file-2", at=10.0)
    await store.expire(50.0)
    assert await listed(store, after="file-2") == ["file-1", "file-0"]
    assert await listed(store, after="file-2", newest_first=False) == ["file-4"]
    assert await listed(store, after="file-3") == ["file-1", "file-0"]
    assert await listed(store, BOB, after="file-2") is None
    await store.expire(10.0 + GONE_LIVES)
    assert await listed(store, after="file-2") is None
    assert await listed(store, after="file-3") == ["file-1", "file-0"]
