"""Questions in the SQLite store's file: restarts, kill -9, every way for an entry to go, hostile rows, many pages."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cache
from cache.match import Match
from cache.question import Question
from cache.stores.base import StoreUnavailable
from cache.stores.question_codec import LIMITS, seal_of
from cache.stores.sqlite import SQLiteStore
from cache.stores.sqlite_writer import MAX_QUEUED, OPS_PER_TRANSACTION
from tests.contract.stores import MAX_BODY, START, Clock, key_of, make_entry, make_question

ROOT = Path(cache.__file__).parent.parent
A, B = key_of("a"), key_of("b")
Open = Callable[..., Awaitable[SQLiteStore]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


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


def sql(path: Path, statement: str, *values: object) -> list[Any]:
    """What somebody else does to the file, or sees there."""
    with closing(sqlite3.connect(path, timeout=10)) as database, database:
        return database.execute(statement, values).fetchall()


async def put(store: SQLiteStore, *names: str, **changes: Any) -> None:
    """Entries, and a question for each."""
    for name in names:
        await store.put(make_entry(name, **changes))
        await store.note(make_question(name))


async def names_of(store: SQLiteStore) -> list[str]:
    """By key order, which entries have a question."""
    return [
        question.text.removeprefix("What is ").rstrip("?") for question in await store.questions(after=b"", limit=99)
    ]


def by_key(*names: str) -> list[str]:
    return sorted(names, key=key_of)


def lie(path: Path, key: bytes, column: str, value: object) -> None:
    """Change a question's column and, as somebody hostile can, its seal."""
    sql(path, f"UPDATE questions SET {column} = ? WHERE key = ?", value, key)
    *fields, _ = sql(path, f"SELECT {', '.join(LIMITS)} FROM questions WHERE key = ?", key)[0]
    if column != "seal" and all(isinstance(field, bytes) for field in fields):
        sql(path, "UPDATE questions SET seal = ? WHERE key = ?", seal_of(fields), key)


def run_and_kill(script: str, *, after: str, seconds: float) -> None:
    """Run the script in another process, and kill -9 it so many seconds after it has said this word."""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{after}\n"
            time.sleep(seconds)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


def size_of(path: Path) -> int:
    return path.stat().st_size


def flip(path: Path, content: bytes) -> None:
    """Change one bit of `content`, wherever the file holds it."""
    with path.open("r+b") as file:
        at = file.read().index(content)
        file.seek(at)
        file.write(bytes([content[0] ^ 1]))


def scribble(path: Path, start: int) -> None:
    """Overwrite the file from `start` on, as a failing disk does."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xaa" * (path.stat().st_size - start))


def assert_accounts_are_right(path: Path) -> None:
    counted = sql(path, "SELECT count(*), sum(size) + (SELECT coalesce(sum(size), 0) FROM questions) FROM entries")
    assert sql(path, "SELECT entries, bytes FROM totals") == [(counted[0][0], counted[0][1] or 0)]


# Restarts and kill -9.


async def test_questions_survive_a_restart(open_store: Open) -> None:
    first = await open_store(write_interval=60)
    questions = [
        make_question(f"{n}", context=os.urandom(32), vector=os.urandom(1536), same=(os.urandom(32),) * (n % 5))
        for n in range(300)
    ]
    for n, question in enumerate(questions):
        await first.put(make_entry(f"{n}"))
        await first.note(question)
    await first.aclose()
    second = await open_store()
    assert await second.questions(after=b"", limit=999) == sorted(questions, key=lambda question: question.key)


@pytest.mark.parametrize("wait", ["flush()", "purge(Match(tenant='nobody'))"])
async def test_questions_survive_kill_9(open_store: Open, path: Path, wait: str) -> None:
    script = f"""
import asyncio
from cache.match import Match
from cache.stores.question_codec import LIMITS, seal_of
from cache.stores.sqlite import SQLiteStore
from tests.contract.stores import Clock, make_entry, make_question
async def main():
    store = await SQLiteStore.open({str(path)!r}, max_bytes=2**26, max_body=2**20, now=Clock(), write_interval=60)
    for n in range(200):
        await store.put(make_entry(str(n)))
        await store.note(make_question(str(n)))
    await store.{wait}
    print("written", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    await asyncio.to_thread(run_and_kill, script, after="written", seconds=0)
    store = await open_store()
    assert len(await store.questions(after=b"", limit=999)) == 200
    assert_accounts_are_right(path)


async def test_killed_in_the_middle_no_question_is_without_its_entry(open_store: Open, path: Path) -> None:
    script = f"""
import asyncio
from cache.stores.question_codec import LIMITS, seal_of
from cache.stores.sqlite import SQLiteStore
from tests.contract.stores import Clock, make_entry, make_question
async def main():
    store = await SQLiteStore.open({str(path)!r}, max_bytes=200_000, max_body=2**20, now=Clock(), write_interval=0)
    print("go", flush=True)
    n = 0
    while True:
        await store.put(make_entry(str(n % 500)))
        await store.note(make_question(str(n % 500)))
        n += 1
        await asyncio.sleep(0.001)
asyncio.run(main())
"""
    await asyncio.to_thread(run_and_kill, script, after="go", seconds=1)
    store = await open_store()
    found = await store.questions(after=b"", limit=999)
    assert found
    assert set(await store.known([question.key for question in found])) == {question.key for question in found}
    assert sql(path, "SELECT count(*) FROM questions") == [(len(found),)]
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert_accounts_are_right(path)


async def test_a_file_of_the_version_without_questions_is_moved_aside(open_store: Open, path: Path) -> None:
    first = await open_store()
    await put(first, "a")
    await first.aclose()
    sql(path, "DROP TABLE questions")
    sql(path, "PRAGMA user_version = 2")
    second = await open_store()
    assert await second.get(A) is None
    await put(second, "b")
    assert await names_of(second) == ["b"]
    assert len(list(path.parent.glob("cache.db.corrupt-*"))) == 1


# Every way for an entry to go.


async def test_a_purge_takes_questions_from_the_disk(open_store: Open, path: Path) -> None:
    store = await open_store(write_interval=60)
    await put(store, "a", "b")
    assert await store.purge(Match(key=A)) == 1
    assert sql(path, "SELECT key FROM questions") == [(B,)]
    assert_accounts_are_right(path)


async def test_expired_entries_take_their_questions_along(open_store: Open, path: Path, clock: Clock) -> None:
    store = await open_store()
    await put(store, *(f"{n}" for n in range(1200)), keep_until=START + 10)
    await put(store, "long")
    await store.flush()
    clock.time = START + 10
    assert await names_of(store) == ["long"], "before they are swept as well as after"
    for _ in range(500):
        await store.flush()
        if sql(path, "SELECT key FROM questions") == [(key_of("long"),)]:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("questions of expired entries stay")
    assert_accounts_are_right(path)


async def test_vectors_count_against_the_bound(open_store: Open, path: Path) -> None:
    """Small answers with large vectors: the vectors are most of the bytes, and what is evicted makes room for all."""
    bound = 500_000
    store = await open_store(max_bytes=bound)
    for n in range(300):
        await store.put(make_entry(f"{n}"))
        await store.note(make_question(f"{n}", vector=os.urandom(16_384)))
        if n % 20 == 0:
            await store.flush()
            assert (await store.stats()).bytes <= bound
    await store.flush()
    stats = await store.stats()
    assert bound - 25_000 < stats.bytes <= bound
    assert 22 < stats.entries < 29, "no more go than must"
    assert await store.get(key_of("299")) is not None
    assert len(await store.questions(after=b"", limit=999)) == stats.entries
    assert_accounts_are_right(path)


async def test_a_note_alone_may_push_others_out(open_store: Open) -> None:
    store = await open_store(max_bytes=20_000)
    for n in range(20):
        await store.put(make_entry(f"{n}"))
    await store.flush()
    assert (await store.stats()).evicted == 0
    await store.note(make_question("19", vector=bytes(16_000)))
    await store.flush()
    stats = await store.stats()
    assert stats.bytes <= 20_000
    assert 0 < stats.entries < 10
    assert len(await store.questions(after=b"", limit=9)) == 1


async def test_a_replaced_entry_keeps_its_question_and_only_its_own_labels(open_store: Open, path: Path) -> None:
    store = await open_store()
    for size in (100, 50_000, 10):
        await put(store, "a", "b", body=os.urandom(size), tags=("x", f"{size}"), documents=("d",))
        await store.flush()
        await store.put(make_entry("a", body=os.urandom(size), tags=("x", "y"), user="zoe"))
        await store.flush()
        assert await names_of(store) == by_key("a", "b")
        labels = sql(path, "SELECT label FROM labels JOIN entries ON id = entry WHERE key = ? ORDER BY label", A)
        assert labels == [("x",), ("y",)]
        assert_accounts_are_right(path)
    assert await store.purge(Match(tags=frozenset("y"))) == 1
    assert await names_of(store) == ["b"]
    await store.purge(Match())
    assert sql(path, "SELECT (SELECT count(*) FROM labels), (SELECT count(*) FROM questions)") == [(0, 0)]
    assert_accounts_are_right(path)


async def test_what_is_too_large_takes_the_question_away_too(open_store: Open, path: Path) -> None:
    store = await open_store(max_body=1000)
    await put(store, "a")
    await store.put(make_entry("a", body=bytes(1001)))
    await store.put(make_entry("a"))
    assert await names_of(store) == []
    assert_accounts_are_right(path)


async def test_an_entry_that_cannot_be_read_takes_its_question_along(open_store: Open, path: Path) -> None:
    store = await open_store()
    await put(store, "a", "b")
    await store.flush()
    sql(path, "UPDATE entries SET value = x'00' WHERE key = ?", A)
    assert await store.get(A) is None
    assert set(await store.known([A, B])) == {B}
    assert await names_of(store) == ["b"]


@pytest.mark.parametrize("size", [0, 1536, 3072])
async def test_bytes_charged_are_near_the_bytes_of_the_file(open_store: Open, path: Path, size: int) -> None:
    store = await open_store()
    for n in range(1000):
        await store.put(make_entry(f"{n}"))
        text = "a question of some length " * (n % 12)
        await store.note(make_question(f"{n}", text=text, vector=os.urandom(size)))
    await store.flush()
    charged = (await store.stats()).bytes
    await store.aclose()
    assert 0.7 < size_of(path) / charged < 1.35


# The queue.


async def test_a_note_waits_with_its_entry(open_store: Open, path: Path) -> None:
    store = await open_store(write_interval=60)
    await put(store, "a")
    assert sql(path, "SELECT count(*) FROM entries") == [(0,)]
    assert await names_of(store) == ["a"]
    assert sql(path, "SELECT count(*) FROM entries") == [(1,)]


async def test_a_put_and_its_note_are_written_together_or_not_at_all(open_store: Open, path: Path) -> None:
    """A transaction of the first 500 operations would end between the two."""
    store = await open_store(write_interval=60)
    for n in range(OPS_PER_TRANSACTION - 1):
        await store.put(make_entry(f"{n}"))
    await put(store, "a")
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON questions BEGIN SELECT RAISE(ABORT, 'no questions here'); END"
        )
        await store.put(make_entry("later"))
        await store.flush()
        database.execute("DROP TRIGGER refuse")
    assert set(await store.known([A, key_of("0"), key_of("later")])) == {key_of("later")}
    assert (await store.stats()).dropped == OPS_PER_TRANSACTION + 1
    await put(store, "a")
    assert await names_of(store) == ["a"]


@pytest.mark.parametrize(
    "changes", [{"text": "x" * 65_537}, {"text": "\ud800"}, {"vector": bytes(3)}, {"same": (B,) * 65}], ids=str
)
async def test_what_could_not_be_read_back_is_dropped_and_harms_nothing_else(
    open_store: Open, changes: dict[str, Any]
) -> None:
    store = await open_store()
    await put(store, "a", "b")
    await store.note(make_question("a", **changes))
    assert await store.questions(after=b"", limit=9) == [make_question(name) for name in by_key("a", "b")]
    stats = await store.stats()
    assert (stats.dropped, stats.corrupt, stats.healthy) == (1, 0, True)


async def test_notes_that_the_queue_has_no_room_for_are_dropped_and_counted(open_store: Open, path: Path) -> None:
    store = await open_store(write_interval=60)
    await store.put(make_entry("a"))
    await store.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        question = make_question("a", text="x" * 60_000)
        for _ in range(MAX_QUEUED // 60_000 + 10):
            await store.note(question)
        assert 10 <= (await store.stats()).dropped < 100
        neighbour.execute("ROLLBACK")
    assert await store.questions(after=b"", limit=9) == [question]


async def test_reading_questions_needs_no_turn_of_the_writer_but_its_flush(open_store: Open, path: Path) -> None:
    store = await open_store()
    await put(store, "a")
    await store.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        await store.put(make_entry("b"))
        assert set(await store.known([A, B])) == {A, B}, "one is written, one waits"
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.questions(after=b"", limit=9)


# Rows that lie.

DEEP = b"\x91" * 2000 + b"\xc0"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seal", bytes(32)),
        ("context", bytes(31)),
        ("context", b""),
        ("context", "x" * 32),
        ("context", 7),
        ("text", "a text, not a blob"),
        ("text", b"\xff\xfe"),
        ("text", bytes(65_537)),
        ("text", 2**62),
        ("embedder", b"\xed\xa0\x80"),
        ("embedder", b"m" * 4097),
        ("embedder", 1.5),
        ("vector", bytes(6)),
        ("vector", bytes(16_388)),
        ("vector", "1,2,3"),
        ("same", b""),
        ("same", b"\x80\x05."),
        ("same", DEEP),
        ("same", b"\xdd\xff\xff\xff\xff"),
        ("same", msgspec.msgpack.encode([bytes(31)])),
        ("same", msgspec.msgpack.encode([bytes(32)] * 65)),
        ("same", msgspec.msgpack.encode(["x" * 32])),
        ("same", msgspec.msgpack.encode({"a": 1})),
    ],
)
async def test_a_hostile_row_is_passed_over_and_removed(
    open_store: Open, path: Path, column: str, value: object
) -> None:
    store = await open_store()
    await put(store, "a", "b")
    await store.flush()
    lie(path, A, column, value)
    assert await store.questions(after=b"", limit=9) == [make_question("b")]
    await store.flush()
    assert sql(path, "SELECT key FROM questions") == [(B,)]
    stats = await store.stats()
    assert (stats.entries, stats.corrupt, stats.healthy) == (2, 1, True)
    assert_accounts_are_right(path)
    assert await store.get(A) == make_entry("a"), "the entry is sound"
    await store.note(make_question("a"))
    assert await names_of(store) == by_key("a", "b")


@pytest.mark.parametrize("key", [b"", b"k", bytes(31), bytes(33), b"\xff" * 100])
async def test_a_key_of_another_length_is_passed_over_and_removed(open_store: Open, path: Path, key: bytes) -> None:
    store = await open_store()
    await put(store, "a", "b")
    await store.flush()
    for table in ("entries", "questions"):
        sql(path, f"UPDATE {table} SET key = ? WHERE key = ?", key, A)
    lie(path, key, "key", key)
    assert await names_of(store) == ["b"]
    await store.flush()
    # What no page begins before is never read, and harms nobody.
    assert sql(path, "SELECT key FROM questions WHERE key > x''") == [(B,)]


@pytest.mark.parametrize("key", ["text", 7, 1.5])
async def test_a_key_of_another_type_is_never_read(open_store: Open, path: Path, key: object) -> None:
    store = await open_store()
    await put(store, "a", "b")
    await store.flush()
    for table in ("entries", "questions"):
        sql(path, f"UPDATE {table} SET key = ? WHERE key = ?", key, A)
    assert await names_of(store) == ["b"]
    assert await store.purge(Match()) == 2
    assert sql(path, "SELECT count(*) FROM questions") == [(0,)]


async def test_a_question_put_under_another_key_is_passed_over_and_removed(open_store: Open, path: Path) -> None:
    store = await open_store()
    await put(store, "a", "b", "c")
    await store.flush()
    sql(path, "DELETE FROM questions WHERE key = ?", B)
    sql(path, "UPDATE questions SET key = ? WHERE key = ?", B, A)
    assert await store.questions(after=b"", limit=9) == [make_question("c")]
    await store.flush()
    assert sql(path, "SELECT key FROM questions") == [(key_of("c"),)]


async def test_a_question_damaged_on_disk_is_passed_over(open_store: Open, path: Path) -> None:
    """One digit of its text: the answer would serve another question."""
    first = await open_store()
    await first.put(make_entry("a"))
    await first.note(make_question("a", text="How many days of leave are there in 2026?"))
    await put(first, "b")
    await first.aclose()
    flip(path, b"6?")
    second = await open_store()
    assert await second.questions(after=b"", limit=9) == [make_question("b")]
    assert (await second.stats()).corrupt == 1


async def test_pages_are_full_however_many_rows_lie(open_store: Open, path: Path) -> None:
    """A short page says that it is the last."""
    store = await open_store()
    await put(store, *(f"{n}" for n in range(100)))
    await store.flush()
    first = sorted(key_of(f"{n}") for n in range(100))[:60]
    for key in first:
        sql(path, "UPDATE questions SET context = x'00' WHERE key = ?", key)
    assert len(await store.questions(after=b"", limit=40)) == 40
    await store.flush()
    assert sql(path, "SELECT count(*) FROM questions") == [(40,)]


async def test_what_is_too_long_is_not_read(open_store: Open, path: Path) -> None:
    store = await open_store()
    await put(store, "a", "b")
    assert len(await store.questions(after=b"", limit=9)) == 2
    for column in ("context", "text", "embedder", "vector", "same", "seal"):
        sql(path, f"UPDATE questions SET {column} = zeroblob(3000000) WHERE key = ?", A)
    tracemalloc.start()
    try:
        assert await store.questions(after=b"", limit=9) == [make_question("b")]
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


async def test_a_damaged_file_costs_the_questions_only(open_store: Open, path: Path) -> None:
    first = await open_store()
    await put(first, *(f"{n}" for n in range(300)))
    await first.aclose()
    scribble(path, 2 * 4096)
    second = await open_store()
    for _ in range(500):
        try:
            found = await second.questions(after=b"", limit=999)
        except StoreUnavailable:
            await asyncio.sleep(0.01)
        else:
            break
    else:
        pytest.fail("the file is never replaced")
    assert found == []
    await put(second, "a")
    assert await names_of(second) == ["a"]


# Many.


@pytest.mark.slow
async def test_five_thousand_come_back_in_pages_and_hold_nobody_up(open_store: Open) -> None:
    store = await open_store()
    questions = []
    for n in range(5000):
        questions.append(make_question(f"{n}", vector=os.urandom(64), same=(key_of(f"{n + 1}"),)))
        await store.put(make_entry(f"{n}"))
        await store.note(questions[-1])
    found: list[Question] = []
    while page := await store.questions(after=found[-1].key if found else b"", limit=700):
        found += page
        assert await store.get(key_of("7")) is not None
    assert found == sorted(questions, key=lambda question: question.key)
    assert set(await store.known([question.key for question in found] + [bytes(32)])) == {q.key for q in found}


async def test_two_processes_share_questions(open_store: Open) -> None:
    """Two stores on one file: what one notes the other reads; what one purges the other does not read any more."""
    one, other = await open_store(), await open_store()
    await put(one, "a", "b")
    await one.flush()
    assert await names_of(other) == by_key("a", "b")
    await other.note(make_question("a", text="What is changed?"))
    await other.flush()
    assert await names_of(one) == [{"a": "changed", "b": "b"}[name] for name in by_key("a", "b")]
    await other.purge(Match(key=B))
    assert await names_of(one) == ["changed"]
    assert set(await one.known([A, B])) == {A}
