"""The batch lane's file: where it is, what is refused, and that a call which fails or is late has done nothing."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from cache.stores.sqlite import SQLiteStore
from gateway import durable_thread
from gateway.batch.records import Line, Result
from gateway.batch.store import BatchStore, BatchStoreError, batches_path
from gateway.batch.store_file import BATCHES, SCHEMA_VERSION
from gateway.durable_thread import DurableThread
from gateway.state import State, state_path
from tests.gateway.batch.kept import ANN, accepted, batch, content, good, line, numbers, out_of_time, record, upload

Call = Callable[[BatchStore], Awaitable[object]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "cache.batches.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[BatchStore]:
    store = await BatchStore.open(path)
    yield store
    await store.aclose()


async def made(path: Path) -> Path:
    """A file with something in it, that nobody has open."""
    store = await BatchStore.open(path)
    for n in range(200):
        await store.create(batch(f"batch_{n}", metadata={"text": "x" * 400}))
    await upload(store, "file-1", b"abc")
    await store.aclose()
    return path


async def refusal(path: Path) -> str:
    """What opening says, having left the file as it was."""
    before = await asyncio.to_thread(path.read_bytes)
    with pytest.raises(BatchStoreError) as refused:
        await BatchStore.open(path)
    assert await asyncio.to_thread(path.read_bytes) == before
    assert str(path) in str(refused.value)
    return str(refused.value)


# Where it is.


@pytest.mark.parametrize(
    ("store", "durable", "expected"),
    [
        ("sqlite:///.refrain/cache.db", None, ".refrain/cache.batches.db"),
        ("sqlite:////var/lib/refrain/a.b.sqlite", None, "/var/lib/refrain/a.b.batches.sqlite"),
        ("sqlite:///cache", None, "cache.batches"),
        ("sqlite:///.refrain/cache.db", "sqlite:///x/y.db", "x/y.batches.db"),
        ("memory://", "sqlite:////x/y.db", "/x/y.batches.db"),
        ("redis://user:secret@db:6379/0", "sqlite:///x/y.db", "x/y.batches.db"),
        ("memory://", None, None),
        ("redis://user:secret@db:6379/0", None, None),
        ("sqlite:///.refrain/cache.db", "memory://", None),
    ],
)
def test_the_path(store: str, durable: str | None, expected: str | None) -> None:
    found = batches_path(store, durable)
    assert found == (expected if expected is None else Path(expected))
    assert found is None or found != state_path(store, durable)


def test_a_place_that_it_cannot_have() -> None:
    with pytest.raises(BatchStoreError, match="holds the answers"):
        batches_path("sqlite:///x/y/../a.batches.db", "sqlite:///x/a.db")


async def test_it_is_private(store: BatchStore, path: Path) -> None:
    await upload(store, "file-1", b"abc")
    found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert found == {path.name: 0o600, f"{path.name}-wal": 0o600, f"{path.name}-shm": 0o600, f"{path.name}.lock": 0o600}


async def test_only_one_has_it_open_and_the_other_one_changes_nothing(store: BatchStore, path: Path) -> None:
    await store.begin("file-1")
    with pytest.raises(BatchStoreError, match="in use by another gateway"):
        await BatchStore.open(path)
    await store.piece("file-1", b"abc")  # the upload is still under way
    await store.keep(record("file-1", size=3))
    await store.aclose()
    second = await BatchStore.open(path)
    assert await content(second, "file-1") == b"abc"
    await second.aclose()


async def test_opening_may_take_longer_than_a_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches of a month are checked."""
    await made(path)
    monkeypatch.setattr(durable_thread, "DEADLINE", 1e-9)
    opened = await DurableThread.open(BATCHES, path, name="batches")
    monkeypatch.undo()
    await opened.aclose()


# What is refused, and left as it is.


async def test_a_file_of_answers(path: Path) -> None:
    await (await SQLiteStore.open(path, max_bytes=10**6, max_body=1000)).aclose()
    assert "another program's database" in await refusal(path)


async def test_the_files_beside_it_are_not_taken_for_each_other(path: Path) -> None:
    await (await State.open(path)).aclose()
    assert "another program's database. Set store.durable_url" in await refusal(path)


async def test_another_version(path: Path) -> None:
    with closing(sqlite3.connect(await made(path))) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert f"schema version {SCHEMA_VERSION + 1}, not {SCHEMA_VERSION}" in await refusal(path)


@pytest.mark.parametrize("start", [0, 4096], ids=["header", "pages"])
async def test_a_damaged_file(path: Path, start: int) -> None:
    whole = await asyncio.to_thread((await made(path)).read_bytes)
    await asyncio.to_thread(path.write_bytes, whole[:start] + b"\x5a" * (len(whole) - start))
    message = await refusal(path)
    assert "damaged" in message
    assert "restore a backup" in message


async def test_damage_that_shows_in_use(path: Path) -> None:
    store = await BatchStore.open(path)
    await upload(store, "file-1", b"here it begins" + b"x" * 200_000)
    await store.aclose()
    whole = await asyncio.to_thread(path.read_bytes)
    page = whole.index(b"here it begins") // 4096 * 4096
    await asyncio.to_thread(path.write_bytes, whole[:page] + b"\x5a" * 4096 + whole[page + 4096 :])
    store = await BatchStore.open(path)
    with pytest.raises(BatchStoreError, match="damaged"):
        await content(store, "file-1")
    assert await store.file(ANN, "file-1") is not None
    await store.aclose()


@pytest.mark.parametrize("successor", [None, b"something else"])
async def test_a_file_taken_away_while_in_use(store: BatchStore, path: Path, successor: bytes | None) -> None:
    aside = path.with_name("aside.db")
    os.rename(path, aside)
    if successor is not None:
        await asyncio.to_thread(path.write_bytes, successor)
    with pytest.raises(BatchStoreError, match="moved or removed"):
        await store.create(batch())
    os.replace(aside, path)
    await store.create(batch())
    assert await store.batch(ANN, "batch_1") == batch()


# What fails has done nothing.


CALLS: dict[str, Call] = {
    "begin": lambda store: store.begin("file-3"),
    "piece": lambda store: store.piece("file-2", b"x" * 100_000),
    "keep": lambda store: store.keep(record("file-2")),
    "abandon": lambda store: store.abandon("file-2"),
    "delete_file": lambda store: store.delete_file(ANN, "file-1", at=60.0),
    "expire": lambda store: store.expire(1e12),
    "create": lambda store: store.create(batch("batch_3")),
    "add_lines": lambda store: store.add_lines("batch_2", [line(1), line(2)]),
    "drop_lines": lambda store: store.drop_lines("batch_2"),
    "accept": lambda store: store.accept("batch_2", total=1, model=None, at=1.0),
    "refuse": lambda store: store.refuse("batch_2", [], at=1.0),
    "finish": lambda store: store.finish("batch_1", [good(1)]),
    "cancel": lambda store: store.cancel(ANN, "batch_1", at=1.0),
    "end": lambda store: store.end("batch_1", "expired", at=1.0, left=out_of_time),
}
READS: dict[str, Call] = {
    "file": lambda store: store.file(ANN, "file-1"),
    "files": lambda store: store.files(ANN, after=None, limit=9, newest_first=True, purpose=None),
    "content": lambda store: content(store, "file-1"),
    "batch": lambda store: store.batch(ANN, "batch_1"),
    "batches": lambda store: store.batches(ANN, after=None, limit=9),
    "unfinished": lambda store: store.unfinished(),
    "waiting": lambda store: store.waiting("batch_1", after=0, limit=9),
}


async def ready(store: BatchStore) -> None:
    """What the calls above are about."""
    await upload(store, "file-1", b"abc", expires=9.0)
    await store.begin("file-2")
    await accepted(store, 2)
    await store.create(batch("batch_2"))


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


@pytest.mark.parametrize("name", CALLS)
async def test_while_another_process_writes_nothing_is_written(store: BatchStore, path: Path, name: str) -> None:
    await ready(store)
    before = dump(path)
    await store._do(lambda db: db.execute("PRAGMA busy_timeout = 50").fetchall())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BatchStoreError, match="held by another process") as refused:
            await CALLS[name](store)
        assert not refused.value.full
        for read in READS.values():
            await read(store)
        other.execute("ROLLBACK")
    assert dump(path) == before
    await CALLS[name](store)
    assert dump(path) != before or name == "drop_lines"


@pytest.mark.parametrize("name", [*CALLS, *READS])
async def test_what_is_late_is_an_error(
    store: BatchStore, path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(store)
    before = dump(path)
    monkeypatch.setattr(durable_thread, "DEADLINE", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        blocking = asyncio.ensure_future(store.begin("file-9"))
        await asyncio.sleep(0)
        with pytest.raises(BatchStoreError, match=r"took more than 0\.05 s"):
            await (CALLS | READS)[name](store)
        with pytest.raises(BatchStoreError, match=r"took more than 0\.05 s"):
            await blocking
        other.execute("ROLLBACK")
    monkeypatch.undo()
    await store.abandon("file-9")  # the one that was under way may have been done
    assert dump(path) == before


@pytest.mark.parametrize("name", [*CALLS, *READS])
async def test_after_the_end_every_call_is_refused(path: Path, name: str) -> None:
    store = await BatchStore.open(path)
    await store.aclose()
    with pytest.raises(BatchStoreError, match="closed"):
        await (CALLS | READS)[name](store)
    await store.aclose()


# A full disk.


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.piece("file-2", os.urandom(100_000)),
        lambda store: store.create(batch("batch_3", metadata={"x": "x" * 100_000})),
        lambda store: store.add_lines("batch_2", [line(n, b"x" * 5000) for n in range(20)]),
        lambda store: store.finish("batch_1", [good(1), Result(2, True, b"x" * 100_000)]),
        lambda store: store.end("batch_1", "expired", at=1.0, left=long),
    ],
    ids=["piece", "create", "add_lines", "finish", "end"],
)
async def test_a_full_disk_is_an_error_until_there_is_room(store: BatchStore, path: Path, call: Call) -> None:
    await ready(store)
    before = dump(path)
    pages = await store._do(lambda db: int(db.execute("PRAGMA page_count").fetchone()[0]))
    await store._do(lambda db: db.execute(f"PRAGMA max_page_count = {pages + 3}").fetchall())
    with pytest.raises(BatchStoreError, match="Make room on its disk") as refused:
        await call(store)
    assert refused.value.full
    assert dump(path) == before
    assert await numbers(store) == [1, 2]
    await store.keep(record("file-2"))  # there is room for what is small
    assert await content(store, "file-1") == b"abc"
    await store.delete_file(ANN, "file-2", at=60.0)
    await store.begin("file-2")
    await store._do(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchall())
    await call(store)
    assert dump(path) != before


def long(line: Line) -> Result:
    return Result(line.number, False, b"x" * 100_000)
