"""What only the SQLite store does: files, restarts, other processes, and an event loop that never waits for a disk."""

import asyncio
import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cache.match import Match
from cache.stores.base import StoreError, StoreUnavailable
from cache.stores.sqlite import SQLiteStore
from cache.stores.sqlite_file import SCHEMA_VERSION, connect
from tests.contract.stores import MAX_BODY, START, Clock, key_of, make_entry, make_question

Open = Callable[..., Awaitable[SQLiteStore]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "cache.db"


@pytest.fixture
async def open_store(path: Path, clock: Clock) -> AsyncIterator[Open]:
    opened: list[SQLiteStore] = []

    async def open_one(**options: Any) -> SQLiteStore:
        defaults = {"max_bytes": 64 * 1024 * 1024, "max_body": MAX_BODY, "now": clock, "write_interval": 0.02}
        opened.append(await SQLiteStore.open(path, **(defaults | options)))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.aclose()


def set_aside(path: Path) -> list[Path]:
    return [file for file in path.parent.glob("cache.db.corrupt-*") if not file.name.endswith(("-wal", "-shm"))]


def found_there(path: Path, content: bytes) -> None:
    """What stands at `path` before the store comes."""
    path.parent.mkdir()
    path.write_bytes(content)


def bytes_of(path: Path) -> bytes:
    """All that lies on the disk."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob("cache.db*")))


def size_of(path: Path) -> int:
    return path.stat().st_size


async def longest_stall(work: Awaitable[object]) -> float:
    """Seconds that the event loop was kept from turning meanwhile."""
    task = asyncio.ensure_future(work)
    worst, last = 0.0, time.perf_counter()
    while not task.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        worst, last = max(worst, now - last), now
    await task
    return worst


# Files.


async def test_answers_are_private(open_store: Open, path: Path) -> None:
    before = os.umask(0)
    try:
        store = await open_store()
        await store.put(make_entry())
        await store.flush()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert files == {"cache.db": 0o600, "cache.db-wal": 0o600, "cache.db-shm": 0o600}
    finally:
        os.umask(before)


async def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%20é" / "100%?x=1#.db"
    store = await SQLiteStore.open(path, max_bytes=10**6, max_body=1000)
    await store.aclose()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("where", ["file/cache.db", "directory", "file/x/y/cache.db"])
async def test_where_no_file_can_be_there_is_a_clear_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "directory").mkdir()
    with pytest.raises(StoreError, match=r"cannot keep answers in .*Check the directory"):
        await SQLiteStore.open(tmp_path / where, max_bytes=10**6, max_body=1000)


NOBODY = 65534


@pytest.mark.parametrize("protected", ["private", "private/cache.db"])
def test_no_permission_is_a_clear_error(protected: str) -> None:
    def opened() -> str:
        """What opening says, in a child that root's rights do not help."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = "no error"
            try:
                if os.geteuid() == 0:
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
                asyncio.run(SQLiteStore.open(path, max_bytes=10**6, max_body=1000))
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as pipe:
            return pipe.read()

    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o711)
        path = folder / "private/cache.db"

        async def make() -> None:
            await (await SQLiteStore.open(path, max_bytes=10**6, max_body=1000)).aclose()

        asyncio.run(make())
        if os.geteuid() == 0:
            for made in (path.parent, *path.parent.iterdir()):
                os.chown(made, NOBODY, NOBODY)
        target = folder / protected
        mode = target.stat().st_mode
        assert opened() == "no error"
        target.chmod(mode & ~0o222)
        assert "StoreError" in (said := opened())
        assert "not writable" in said
        target.chmod(mode)


# Restarts, versions, damage.


async def test_answers_survive_a_restart(open_store: Open) -> None:
    entries = [make_entry(f"{n}", tags=("t",), created=START - n) for n in range(50)]
    first = await open_store(write_interval=60)
    for entry in entries:
        await first.put(entry)
    await first.aclose()
    second = await open_store()
    assert [await second.get(entry.key) for entry in entries] == entries
    assert await second.entries(Match(tags=frozenset(["t"])), limit=99) == entries


async def test_the_order_of_use_survives_a_restart(open_store: Open, clock: Clock) -> None:
    first = await open_store()
    for name in ("a", "b", "c"):
        await first.put(make_entry(name, body=os.urandom(1000)))
    await first.get(key_of("a"))
    await first.flush()
    full = (await first.stats()).bytes
    await first.aclose()
    clock.time -= 1000  # the clock was set back meanwhile: later uses are later all the same
    second = await open_store(max_bytes=full)
    await second.get(key_of("b"))
    await second.put(make_entry("d", body=os.urandom(1000)))
    await second.flush()
    assert [name for name in "abcd" if await second.get(key_of(name))] == ["a", "b", "d"]


async def test_a_smaller_bound_after_a_restart(open_store: Open) -> None:
    first = await open_store()
    for n in range(100):
        await first.put(make_entry(f"{n}"))
    await first.aclose()
    second = await open_store(max_bytes=10_000)
    await second.flush()
    stats = await second.stats()
    assert 0 < stats.bytes <= 10_000


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1, -7])
async def test_another_schema_version_is_moved_aside(
    open_store: Open, path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    first = await open_store()
    await first.put(make_entry())
    await first.aclose()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    second = await open_store()
    assert await second.get(key_of("a")) is None
    await second.put(make_entry())
    await second.flush()
    (aside,) = set_aside(path)
    assert str(aside) in caplog.text
    with closing(sqlite3.connect(aside)) as database:
        assert database.execute("SELECT count(*) FROM entries").fetchone() == (1,)


async def test_somebody_elses_database_is_moved_aside(open_store: Open, path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE accounts (name)")
    store = await open_store()
    await store.put(make_entry())
    await store.flush()
    assert len(set_aside(path)) == 1


@pytest.mark.parametrize(
    "content", [b"hello", b"\x00" * 10_000, b"SQLite format 3\x00" + b"\xff" * 5000, os.urandom(100_000)]
)
async def test_a_file_that_is_no_database_is_moved_aside(open_store: Open, path: Path, content: bytes) -> None:
    found_there(path, content)
    store = await open_store()
    await store.put(make_entry())
    await store.flush()
    assert await store.get(key_of("a")) == make_entry()
    (aside,) = set_aside(path)
    assert aside.read_bytes() == content


def test_connecting_makes_no_file(tmp_path: Path) -> None:
    """A reader that comes while the writer replaces the file."""
    with pytest.raises(sqlite3.OperationalError):
        connect(tmp_path / "cache.db")
    assert list(tmp_path.iterdir()) == []


async def test_an_empty_file_is_a_new_cache(open_store: Open, path: Path) -> None:
    found_there(path, b"")
    store = await open_store()
    await store.put(make_entry())
    await store.flush()
    assert set_aside(path) == []


# Reading and writing.


async def test_what_waits_to_be_written_is_found(open_store: Open) -> None:
    store = await open_store(write_interval=60)
    await store.put(make_entry())
    assert await store.get(key_of("a")) == make_entry()
    assert (await store.stats()).entries == 0
    await store.flush()
    assert (await store.stats()).entries == 1


async def test_what_is_put_is_written_without_being_waited_for(open_store: Open, path: Path) -> None:
    store = await open_store()
    await store.put(make_entry())
    with closing(sqlite3.connect(path)) as database:
        for _ in range(500):
            if database.execute("SELECT count(*) FROM entries").fetchone() == (1,):
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("not written")


async def test_a_purge_is_on_disk_when_it_returns(open_store: Open, path: Path) -> None:
    store = await open_store(write_interval=60)
    await store.put(make_entry("a", tags=("x",)))
    await store.put(make_entry("b", tags=("x",)))
    assert await store.purge(Match(key=key_of("a"))) == 1
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT key FROM entries").fetchall() == [(key_of("b"),)]
        assert database.execute("SELECT count(*) FROM labels").fetchone() == (1,)


async def test_a_purge_cancelled_by_its_caller_is_carried_out(open_store: Open) -> None:
    store = await open_store()
    await store.put(make_entry())
    await store.flush()
    purge = asyncio.ensure_future(store.purge(Match()))
    await asyncio.sleep(0)
    purge.cancel()
    await asyncio.gather(purge, return_exceptions=True)
    await store.flush()
    assert await store.get(key_of("a")) is None


async def test_closed_is_unavailable(open_store: Open) -> None:
    store = await open_store()
    await store.put(make_entry())
    await store.aclose()
    for call in (
        store.get(key_of("a")),
        store.put(make_entry()),
        store.purge(Match()),
        store.entries(Match(), limit=1),
        store.note(make_question()),
        store.questions(after=b"", limit=1),
        store.known([key_of("a")]),
        store.stats(),
        store.flush(),
    ):
        with pytest.raises(StoreUnavailable):
            await call


async def test_expired_rows_are_removed_in_the_end(open_store: Open, clock: Clock) -> None:
    store = await open_store()
    for n in range(1200):
        await store.put(make_entry(f"{n}", keep_until=START + 10))
    await store.put(make_entry("long"))
    await store.flush()
    clock.time = START + 10
    await store.put(make_entry("new"))
    for _ in range(500):
        await store.flush()
        if (await store.stats()).entries == 2:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("expired rows stay")


@pytest.mark.slow
async def test_the_file_does_not_outgrow_the_bound(open_store: Open, path: Path) -> None:
    """Ten times the bound is written; then everything is purged and the file shrinks."""
    bound = 2 * 1024 * 1024
    store = await open_store(max_bytes=bound)
    for n in range(10 * bound // 20_000):
        await store.put(make_entry(f"{n}", body=os.urandom(20_000)))
        if n % 100 == 0:
            await store.flush()
    await store.flush()
    assert 0.8 * bound < (await store.stats()).bytes <= bound
    full = size_of(path)
    # A batch is written before the oldest make room for it.
    assert 0.8 * bound < full < 3 * bound
    await store.purge(Match())
    for _ in range(500):
        if size_of(path) < 1.2 * 1024 * 1024:
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail(f"the file still has {size_of(path)} bytes")


@pytest.mark.parametrize("size", [100, 1500, 4000, 40_000])
async def test_bytes_charged_are_near_the_bytes_of_the_file(open_store: Open, path: Path, size: int) -> None:
    store = await open_store()
    for n in range(1000 if size < 40_000 else 100):
        entry = make_entry(f"{n}", body=os.urandom(size), tags=("one", f"tag {n}"), documents=(f"document {n}",))
        await store.put(entry)
    await store.flush()
    charged = (await store.stats()).bytes
    await store.aclose()
    assert 0.7 < size_of(path) / charged < 1.35


async def test_the_event_loop_does_not_wait_for_the_disk(open_store: Open) -> None:
    """A ticker measures the longest stall while 5,000 puts go through. The best of a few: others stall it too."""
    store = await open_store(write_interval=0.05)
    body = os.urandom(700).hex().encode()

    async def put(turn: int) -> None:
        for n in range(5000):
            await store.put(make_entry(f"{turn} {n}", body=body))
            await asyncio.sleep(0)
        await store.flush()

    stalls: list[float] = []
    while len(stalls) < 8 and min(stalls, default=1) >= 0.05:
        stalls.append(await longest_stall(put(len(stalls))))
    assert min(stalls) < 0.05, stalls
    assert (await store.stats()).dropped == 0


async def test_the_event_loop_does_not_wait_for_a_lock(open_store: Open, path: Path) -> None:
    """Two seconds in SQLite, for the writer; the reader reads, the loop turns."""
    store = await open_store()
    await store.put(make_entry())
    await store.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")

        async def put_and_purge() -> None:
            await store.put(make_entry("b"))
            started = time.perf_counter()
            with pytest.raises(StoreUnavailable, match="locked"):
                await store.purge(Match(key=key_of("b")))
            assert time.perf_counter() - started > 1.5

        async def read() -> None:
            for _ in range(50):
                assert await store.get(key_of("a")) == make_entry("a")

        assert await longest_stall(asyncio.gather(put_and_purge(), read())) < 1


async def test_a_get_does_not_wait_for_listings(open_store: Open) -> None:
    """When the first of three listings is there, the others are being made or queued; gets must overtake them."""
    store = await open_store()
    body = os.urandom(1000).hex().encode() * 20
    for n in range(1000):
        await store.put(make_entry(f"{n}", body=body))
    await store.flush()
    listings = [asyncio.ensure_future(store.entries(Match(), limit=1000)) for _ in range(3)]
    assert len(await listings[0]) == 1000
    for n in range(10):
        assert await store.get(key_of(f"{n}")) is not None
    assert not listings[-1].done()
    assert [len(found) for found in await asyncio.gather(*listings)] == [1000] * 3


async def test_what_was_purged_is_not_to_be_read_in_the_file(open_store: Open, path: Path) -> None:
    """Neither in its freed pages nor in its log. Also what does not fit into one page."""
    store = await open_store()
    secrets = [b"short secret", b"long secret " * 5_000]
    for name, body in zip("ab", secrets, strict=True):
        await store.put(make_entry(name, body=body, tags=("secret",)))
    await store.put(make_entry("c", body=b"no secret"))
    await store.flush()
    assert all(body[:12] in bytes_of(path) for body in secrets)
    assert await store.purge(Match(tags=frozenset({"secret"}))) == 2
    assert not any(body[:12] in bytes_of(path) for body in secrets)
    assert b"no secret" in bytes_of(path)
