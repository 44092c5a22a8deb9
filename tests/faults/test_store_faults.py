"""Stores whose file, disk, neighbours or process fail them: at worst a miss, never a wrong answer or a dead gateway."""

import asyncio
import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

import cache
from cache.match import Match
from cache.stores.base import StoreUnavailable
from cache.stores.codec import encode
from cache.stores.guard import GuardedStore
from cache.stores.sqlite import SQLiteStore
from cache.stores.sqlite_writer import MAX_QUEUED
from tests.contract.stores import MAX_BODY, Clock, key_of, make_entry

ROOT = Path(cache.__file__).parent.parent
A, B = key_of("a"), key_of("b")
Open = Callable[..., Awaitable[SQLiteStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
async def open_store(path: Path) -> AsyncIterator[Open]:
    opened: list[SQLiteStore] = []

    async def open_one(**options: Any) -> SQLiteStore:
        defaults = {"max_bytes": 64 * 1024 * 1024, "max_body": MAX_BODY, "now": Clock(), "write_interval": 0.02}
        opened.append(await SQLiteStore.open(path, **(defaults | options)))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.aclose()


def found_there(path: Path, content: bytes) -> None:
    """What stands at `path` before the store comes."""
    path.write_bytes(content)


def sql(path: Path, statement: str, *values: object) -> list[Any]:
    """What somebody else does to the file."""
    with closing(sqlite3.connect(path, timeout=10)) as database, database:
        return database.execute(statement, values).fetchall()


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process, with a store open and `entry(n)` at hand."""
    prelude = f"""
import asyncio, json, os, sys, time
from cache.match import Match
from cache.stores.base import StoreUnavailable
from cache.stores.sqlite import SQLiteStore
from tests.contract.stores import Clock, key_of, make_entry
path = {str(arguments[0])!r}
def say(word): print(json.dumps(word), flush=True)
async def open_store(**options):
    return await SQLiteStore.open(path, **(dict(max_bytes=2**26, max_body=2**20, now=Clock()) | options))
"""
    command = [sys.executable, "-c", prelude + script, *map(str, arguments[1:])]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def hear(process: subprocess.Popen[str]) -> Any:
    """The child's next word, or a failure within seconds when there is none."""
    stdout: IO[str] | None = process.stdout
    assert stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(stdout.readline), 60)
    assert line, f"the child ended with {process.wait()}"
    return json.loads(line)


async def ended(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdin, process.stdout:
        return await asyncio.to_thread(process.wait, 60)


# The process dies.


async def test_what_was_put_a_second_ago_survives_kill_9(open_store: Open, path: Path) -> None:
    process = child(
        """
async def main():
    store = await open_store()
    for n in range(200):
        await store.put(make_entry(str(n)))
    say("put")
    await asyncio.sleep(60)
asyncio.run(main())
""",
        path,
    )
    assert await hear(process) == "put"
    await asyncio.sleep(1)
    process.send_signal(signal.SIGKILL)
    assert await ended(process) == -signal.SIGKILL
    store = await open_store()
    assert [await store.get(key_of(f"{n}")) for n in range(200)] == [make_entry(f"{n}") for n in range(200)]


async def test_a_purge_that_returned_survives_kill_9(open_store: Open, path: Path) -> None:
    process = child(
        """
async def main():
    store = await open_store()
    await store.put(make_entry("a"))
    await store.put(make_entry("b"))
    await store.flush()
    await store.put(make_entry("c"))
    say(await store.purge(Match(key=key_of("a"))))
    await asyncio.sleep(60)
asyncio.run(main())
""",
        path,
    )
    assert await hear(process) == 1
    process.send_signal(signal.SIGKILL)
    assert await ended(process) == -signal.SIGKILL
    store = await open_store()
    assert await store.get(A) is None
    assert await store.get(B) == make_entry("b")
    assert await store.get(key_of("c")) == make_entry("c"), "it was put before the purge"


async def test_killed_in_the_middle_of_writing_the_file_stays_sound(open_store: Open, path: Path) -> None:
    process = child(
        """
async def main():
    store = await open_store(write_interval=0)
    say("go")
    n = 0
    while True:
        await store.put(make_entry(str(n % 500), body=os.urandom(5000)))
        n += 1
        await asyncio.sleep(0)
asyncio.run(main())
""",
        path,
    )
    assert await hear(process) == "go"
    await asyncio.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    await ended(process)
    store = await open_store()
    found = [await store.get(key_of(f"{n}")) for n in range(500)]
    assert any(found)
    assert (await store.stats()).corrupt == 0
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert sql(path, "SELECT entries, bytes FROM totals") == sql(path, "SELECT count(*), sum(size) FROM entries")


async def test_a_process_that_forgets_to_close_ends_all_the_same(path: Path) -> None:
    process = child("asyncio.run(open_store())\n", path)
    assert await ended(process) == 0


# Values that lie.


async def test_a_value_put_under_another_key_is_a_miss_and_removed(open_store: Open, path: Path) -> None:
    """Statement 9."""
    store = await open_store()
    await store.put(make_entry("a", body=b"for alice only"))
    await store.put(make_entry("b"))
    await store.flush()
    sql(path, "UPDATE entries SET value = (SELECT value FROM entries WHERE key = ?) WHERE key = ?", A, B)
    assert await store.get(B) is None
    await store.flush()
    assert sql(path, "SELECT key FROM entries") == [(A,)]
    assert (await store.stats()).corrupt == 1
    await store.put(make_entry("b"))
    await store.flush()
    assert await store.get(B) == make_entry("b")


class Hostile:
    """Unpickling it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def sealed(content: bytes) -> bytes:
    return b"RFN\x01" + blake2b(content, digest_size=32).digest() + content


GOOD = encode(make_entry("a"))
NESTED = b"\x91" * 200_000 + b"\xc0"


@pytest.mark.parametrize(
    "value",
    [
        "pickle",
        b"",
        "text",
        "\x00",
        2**62,
        1.5,
        b"RFN\x02" + GOOD[4:],
        GOOD[:-1],
        GOOD[:50] + b"\x00" + GOOD[51:],
        sealed(NESTED),
        b"[" * 200_000,
        sealed(msgspec.msgpack.encode([2**64 - 1] * 20)),
        bytes(MAX_BODY * 3),
    ],
)
async def test_a_hostile_value_is_a_miss_is_removed_and_runs_nothing(
    open_store: Open, path: Path, tmp_path: Path, value: object
) -> None:
    """Statement 40."""
    trap = pickle.dumps(Hostile(tmp_path / "ran"))
    store = await open_store()
    await store.put(make_entry("a"))
    await store.put(make_entry("b"))
    await store.flush()
    sql(path, "UPDATE entries SET value = ? WHERE key = ?", trap if value == "pickle" else value, A)
    assert await store.get(A) is None
    await store.flush()
    assert sql(path, "SELECT key FROM entries") == [(B,)]
    assert (await store.stats()).corrupt == 1
    assert [entry.key for entry in await store.entries(Match(), limit=9)] == [B]
    assert not (tmp_path / "ran").exists()


async def test_a_listing_passes_over_hostile_values(open_store: Open, path: Path) -> None:
    store = await open_store()
    for n in range(6):
        await store.put(make_entry(f"{n}"))
    await store.flush()
    sql(path, "UPDATE entries SET value = CAST(x'ff00ff' AS TEXT) WHERE key = ?", key_of("3"))
    sql(path, "UPDATE entries SET value = x'80' WHERE key = ?", key_of("4"))
    found = await store.entries(Match(), limit=4)
    assert {entry.key for entry in found} == {key_of(f"{n}") for n in (0, 1, 2, 5)}
    assert await store.purge(Match(), dry_run=True) == 4


# The file is damaged while it is in use.


def size_of(path: Path) -> int:
    return path.stat().st_size


def scribble(path: Path, start: int) -> None:
    """Overwrite the file from `start` on, as a failing disk does."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xaa" * (path.stat().st_size - start))


def flip(path: Path, content: bytes) -> None:
    """Change one bit of `content`, wherever the file holds it."""
    with path.open("r+b") as file:
        at = file.read().index(content)
        file.seek(at)
        file.write(bytes([content[0] ^ 1]))


@pytest.mark.parametrize("start", [0, 4096])
async def test_a_file_damaged_in_use_is_replaced(open_store: Open, path: Path, start: int) -> None:
    store = await open_store()
    for n in range(300):
        await store.put(make_entry(f"{n}", body=os.urandom(2000)))
    await store.flush()
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    await store.put(make_entry("in the log"))
    await store.flush()
    await store.get(A)  # by now the reader has the file open
    scribble(path, start)

    works = False
    for n in range(500):
        try:
            await store.get(key_of(f"{n % 300}"))
            await store.put(make_entry("new"))
            await store.flush()
            works = any(path.parent.glob("cache.db.corrupt-*"))
        except StoreUnavailable:
            pass
        if works:
            break
        await asyncio.sleep(0.01)
    assert works
    assert [size_of(log) > 0 for log in path.parent.glob("cache.db.corrupt-*-wal")] == [True]
    await store.put(make_entry("new"))
    await store.flush()
    assert await store.get(key_of("new")) == make_entry("new")
    assert (await store.stats()).healthy
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


async def eventually_put(store: SQLiteStore, name: str) -> None:
    """Put and flush until it succeeds: the first tries may be the ones that find the damage."""
    for _ in range(500):
        await store.put(make_entry(name))
        try:
            await store.flush()
        except StoreUnavailable:
            await asyncio.sleep(0.01)
        else:
            return
    pytest.fail("writing never works again")


async def test_damage_that_only_the_writer_meets_is_repaired_too(open_store: Open, path: Path) -> None:
    first = await open_store()
    for n in range(300):
        await first.put(make_entry(f"{n}", body=os.urandom(2000)))
    await first.aclose()
    scribble(path, 2 * 4096)
    second = await open_store()
    await eventually_put(second, "b")
    assert await second.get(B) == make_entry("b")
    assert any(path.parent.glob("cache.db.corrupt-*"))


async def test_a_value_damaged_on_disk_is_a_miss(open_store: Open, path: Path) -> None:
    body = os.urandom(50_000)
    first = await open_store()
    await first.put(make_entry("a", body=body))
    await first.put(make_entry("b"))
    await first.aclose()
    flip(path, body[20_000:20_032])
    second = await open_store()
    assert await second.get(A) is None
    assert await second.get(B) == make_entry("b")
    stats = await second.stats()
    assert (stats.corrupt, stats.healthy) == (1, True)


@pytest.mark.parametrize("read_before", [True, False])
async def test_a_file_deleted_in_use_is_made_anew(open_store: Open, path: Path, read_before: bool) -> None:
    store = await open_store()
    await store.put(make_entry("a"))
    await store.flush()
    if read_before:
        assert await store.get(A) == make_entry("a")
    for file in list(path.parent.iterdir()):
        file.unlink()
    await store.put(make_entry("b"))
    await store.flush()
    assert await store.get(A) is None
    assert await store.get(B) == make_entry("b")
    assert sql(path, "SELECT key FROM entries") == [(B,)]


async def test_a_value_too_long_is_not_read(open_store: Open, path: Path) -> None:
    store = await open_store()
    await store.put(make_entry("a"))
    await store.flush()
    assert await store.get(A) is not None
    sql(path, "UPDATE entries SET value = zeroblob(50000000)")
    tracemalloc.start()
    try:
        assert await store.get(A) is None
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


# The disk is full.


async def test_a_full_disk_costs_puts_and_nothing_else(path: Path) -> None:
    """The child may write no file beyond 300 kB, then may again."""
    process = child(
        """
import resource
async def main():
    store = await open_store(write_interval=60)  # nothing is written before it is flushed
    await store.put(make_entry("a"))
    await store.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    for n in range(100):
        await store.put(make_entry(str(n), body=os.urandom(20_000)))
    try:
        await store.flush()
    except StoreUnavailable as error:
        say(str(error))
    else:
        say("flushed")
    stats = await store.stats()
    say([stats.dropped > 0, stats.healthy, await store.get(key_of("a")) is not None])
    try:
        await store.purge(Match(key=key_of("a")))
    except StoreUnavailable:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.put(make_entry("b"))
    await store.flush()
    stats = await store.stats()
    say([stats.healthy, await store.get(key_of("b")) is not None])
    await store.aclose()
asyncio.run(main())
""",
        path,
    )
    assert "could not write" in await hear(process)
    assert await hear(process) == [True, False, True]
    assert await hear(process) == [True, True]
    assert await ended(process) == 0
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


# Neighbours.


async def test_two_processes_share_one_file(open_store: Open, path: Path) -> None:
    store = await open_store()
    process = child(
        """
async def main():
    store = await open_store(write_interval=0.01)
    for n in range(300):
        await store.put(make_entry("child %d" % n))
        await asyncio.sleep(0)
    await store.flush()
    say("put")
    sys.stdin.readline()
    say([await store.get(key_of("a")) is not None, await store.get(key_of("child 7")) is None])
    await store.aclose()
asyncio.run(main())
""",
        path,
    )
    for n in range(300):
        await store.put(make_entry(f"parent {n}"))
        await asyncio.sleep(0)
    await store.put(make_entry("a"))
    await store.flush()
    assert await hear(process) == "put"
    assert await store.get(key_of("child 299")) == make_entry("child 299")
    assert await store.purge(Match(key=key_of("child 7"))) == 1
    stats = await store.stats()
    assert (stats.entries, stats.dropped) == (600, 0)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert await hear(process) == [True, True]
    assert await ended(process) == 0


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, b"no database"])
async def test_many_processes_may_make_the_file_at_once(open_store: Open, path: Path, before: bytes | None) -> None:
    """As after an upgrade: all find a file they cannot use, one replaces it."""
    if before is not None:
        found_there(path, before)
    script = """
async def main():
    say("ready")
    sys.stdin.readline()
    store = await open_store()
    await store.put(make_entry(sys.argv[1]))
    await store.aclose()
asyncio.run(main())
"""
    processes = [child(script, path, n) for n in range(4)]
    for process in processes:
        assert await hear(process) == "ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [await ended(process) for process in processes] == [0] * 4
    assert len(list(path.parent.glob("cache.db.corrupt-*"))) == (before is not None)
    store = await open_store()
    assert [await store.get(key_of(f"{n}")) for n in range(4)] == [make_entry(f"{n}") for n in range(4)]


async def test_a_neighbour_that_keeps_the_lock(open_store: Open, path: Path) -> None:
    store = await open_store()
    await store.put(make_entry("a"))
    await store.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        await store.put(make_entry("b"))
        assert await store.get(A) == make_entry("a"), "reading goes on"
        assert await store.get(B) == make_entry("b"), "it still waits to be written"
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.purge(Match())
        stats = await store.stats()
        assert (stats.dropped, stats.healthy) == (1, False)
        # More than the queue takes: one body, many times.
        body = bytes(MAX_BODY)
        puts = MAX_QUEUED // MAX_BODY + 10
        for n in range(puts):
            await store.put(make_entry(f"{n}", body=body))
        assert 10 <= (await store.stats()).dropped - 1 < puts
        neighbour.execute("ROLLBACK")
    await store.put(make_entry("b"))
    await store.flush()
    assert await store.get(B) == make_entry("b")
    assert (await store.stats()).healthy


# The guard around a real store.


async def test_a_dead_store_is_left_alone(open_store: Open) -> None:
    store = await open_store()
    guarded = GuardedStore(store, failures=3, retry_after=60)
    await guarded.put(make_entry("a"))
    assert await guarded.get(A) == make_entry("a")
    await store.aclose()
    for _ in range(3):
        assert guarded.healthy
        with pytest.raises(StoreUnavailable, match="closed"):
            await guarded.get(A)
    assert not guarded.healthy
    with pytest.raises(StoreUnavailable, match="left alone"):
        await guarded.put(make_entry("a"))
