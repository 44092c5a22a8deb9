"""Batches: every line of an accepted one ends once, whatever is called, how often, in what order."""

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.batch import table
from gateway.batch.faults import TOGETHER, in_pieces
from gateway.batch.records import LIVES, End, Fault, Line, Result, Usage
from gateway.batch.store import BatchStore, BatchStoreError
from gateway.batch.table_files import STEP
from tests.gateway.batch.kept import (
    ANN,
    BOB,
    DAY,
    OTHER,
    OWNER,
    accepted,
    bad,
    batch,
    content,
    good,
    line,
    numbers,
    out_of_time,
    record,
)


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


# What is kept of a batch.


async def test_a_batch_comes_back_as_it_was(path: Path) -> None:
    text = "Zoë ☃ 😀 \x00 '); DROP TABLE batches; -- \\ \""
    made = batch(metadata={text: text}, output_lives=3600.0, usage=Usage(1))
    first = await BatchStore.open(path)
    await first.create(made)
    await first.aclose()
    second = await BatchStore.open(path)
    assert await second.batch(ANN, "batch_1") == made
    assert (await second.unfinished())[0].owner == OWNER
    await second.aclose()


async def test_an_id_is_taken_once(store: BatchStore) -> None:
    await store.create(batch())
    with pytest.raises(BatchStoreError):
        await store.create(batch(endpoint="other"))
    assert await store.batch(ANN, "batch_1") == batch()


async def test_only_who_made_it_finds_it(store: BatchStore) -> None:
    await accepted(store, 1)
    for who in (BOB, OTHER, ("", ""), ("ann", "acme")):
        assert await store.batch(who, "batch_1") is None
        assert await store.cancel(who, "batch_1", at=30.0) is None
        assert await store.batches(who, after=None, limit=9) == []
        assert await store.batches(who, after="batch_1", limit=9) is None
    found = await store.batch(ANN, "batch_1")
    assert found is not None
    assert found.state == "in_progress"


async def test_a_list_goes_on_after_an_id(store: BatchStore) -> None:
    for n in range(5):
        await store.create(batch(f"batch_{n}", created=float(-n)))

    async def listed(after: str | None, limit: int) -> list[str] | None:
        found = await store.batches(ANN, after=after, limit=limit)
        return None if found is None else [batch.id for batch in found]

    assert await listed(None, 9) == ["batch_4", "batch_3", "batch_2", "batch_1", "batch_0"]
    assert await listed(None, 2) == ["batch_4", "batch_3"]
    assert await listed("batch_3", 2) == ["batch_2", "batch_1"]
    assert await listed("batch_0", 2) == []
    assert await listed("batch_9", 2) is None


async def test_what_has_not_ended_is_found_oldest_first(store: BatchStore) -> None:
    for n in range(4):
        await accepted(store, 1, f"batch_{n}")
    await store.create(batch("batch_4"))
    await store.end("batch_1", "expired", at=30.0, left=out_of_time)
    await store.cancel(ANN, "batch_2", at=30.0)
    assert [(b.id, b.state) for b in await store.unfinished()] == [
        ("batch_0", "in_progress"),
        ("batch_2", "cancelling"),
        ("batch_3", "in_progress"),
        ("batch_4", "validating"),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.add_lines("batch_9", [line(1)]),
        lambda store: store.drop_lines("batch_9"),
        lambda store: store.accept("batch_9", total=1, model=None, at=1.0),
        lambda store: store.refuse("batch_9", [], at=1.0),
        lambda store: store.waiting("batch_9", after=0, limit=1),
        lambda store: store.finish("batch_9", [good(1)]),
        lambda store: store.end("batch_9", "expired", at=1.0, left=out_of_time),
    ],
    ids=["add_lines", "drop_lines", "accept", "refuse", "waiting", "finish", "end"],
)
async def test_a_batch_that_is_not_there(store: BatchStore, call: Callable[[BatchStore], Awaitable[object]]) -> None:
    with pytest.raises(BatchStoreError, match="no batch batch_9"):
        await call(store)


# Validation.


async def test_lines_wait_from_when_the_batch_is_accepted(store: BatchStore) -> None:
    await store.create(batch())
    await store.add_lines("batch_1", [line(1), line(3)])
    await store.add_lines("batch_1", [line(2, b"\x00\xff")])
    await store.add_lines("batch_1", [])
    assert await numbers(store) == []
    with pytest.raises(BatchStoreError, match="not been accepted"):
        await store.finish("batch_1", [good(1)])
    after = await store.accept("batch_1", total=3, model="m", at=20.0)
    assert (after.state, after.total, after.model, after.times) == ("in_progress", 3, "m", {"in_progress": 20.0})
    assert await store.batch(ANN, "batch_1") == after
    assert await store.waiting("batch_1", after=0, limit=9) == [line(1), line(2, b"\x00\xff"), line(3)]


async def test_after_it_is_accepted_no_line_comes_or_goes(store: BatchStore) -> None:
    before = await accepted(store, 2)
    await store.add_lines("batch_1", [line(3)])
    for call in (store.drop_lines("batch_1"), store.refuse("batch_1", [Fault("c", "m")], at=30.0)):
        with pytest.raises(BatchStoreError, match="its lines stay"):
            await call
    assert await store.accept("batch_1", total=9, model="other", at=30.0) == before
    assert await numbers(store) == [1, 2]


async def test_lines_are_added_together_or_not(store: BatchStore) -> None:
    await store.create(batch())
    await store.add_lines("batch_1", [line(2)])
    for lines in ([line(1), line(2)], [line(1), Line(3, "\ud800", b"")]):
        with pytest.raises(BatchStoreError):
            await store.add_lines("batch_1", lines)
    await store.accept("batch_1", total=1, model=None, at=20.0)
    assert await numbers(store) == [2]


async def test_the_validation_begins_anew(store: BatchStore, path: Path) -> None:
    await store.create(batch())
    for start in range(0, 3000, 1000):
        await store.add_lines("batch_1", [line(start + n, b"x" * 6000) for n in range(1000)])
    await store.create(batch("batch_2"))
    await store.add_lines("batch_2", [line(1)])
    await store.drop_lines("batch_1")
    assert rows(path, "lines") == 1
    await store.drop_lines("batch_1")
    await store.add_lines("batch_1", [line(1)])
    await store.accept("batch_1", total=1, model=None, at=20.0)
    assert await numbers(store) == [1]


async def test_a_refused_batch_has_its_faults_and_no_lines(store: BatchStore, path: Path) -> None:
    await store.create(batch())
    await store.add_lines("batch_1", [line(1)])
    faults = [Fault("duplicate_custom_id", "Twice.", "custom_id", 2), Fault("empty_file", "None.")]
    after = await store.refuse("batch_1", faults, at=20.0)
    assert (after.state, after.times) == ("failed", {"failed": 20.0})
    assert json.loads(b"[" + await store.faults("batch_1") + b"]") == [
        {"code": "duplicate_custom_id", "message": "Twice.", "param": "custom_id", "line": 2},
        {"code": "empty_file", "message": "None.", "param": None, "line": None},
    ]
    assert await store.batch(ANN, "batch_1") == after
    assert rows(path, "lines") == 0
    assert await store.unfinished() == []
    assert await store.refuse("batch_1", [], at=30.0) == after
    assert await store.accept("batch_1", total=1, model=None, at=30.0) == after
    assert await store.cancel(ANN, "batch_1", at=30.0) == after


async def test_a_batch_that_is_cancelled_while_it_is_validated_was_never_accepted(
    store: BatchStore, path: Path
) -> None:
    await store.create(batch())
    await store.add_lines("batch_1", [line(1)])
    cancelling = await store.cancel(ANN, "batch_1", at=15.0)
    assert cancelling is not None
    await store.add_lines("batch_1", [line(2)])
    assert await store.accept("batch_1", total=2, model="m", at=20.0) == cancelling
    assert await store.refuse("batch_1", [Fault("c", "m")], at=20.0) == cancelling
    ended = await store.end("batch_1", "cancelled", at=30.0, left=out_of_time)
    assert (ended.state, ended.total, ended.failed, ended.output_file, ended.error_file) == (
        "cancelled",
        0,
        0,
        None,
        None,
    )
    assert ended.times == {"cancelling": 15.0, "cancelled": 30.0}
    assert (rows(path, "lines"), rows(path, "results")) == (0, 0)


# Lines and results.


async def test_lines_are_taken_from_behind_a_number(store: BatchStore) -> None:
    await accepted(store, 10)
    await accepted(store, 3, "batch_2")
    assert [line.number for line in await store.waiting("batch_1", after=0, limit=3)] == [1, 2, 3]
    await store.finish("batch_1", [good(2), bad(5), good(10)])
    assert [line.number for line in await store.waiting("batch_1", after=3, limit=3)] == [4, 6, 7]
    assert [line.number for line in await store.waiting("batch_1", after=7, limit=9)] == [8, 9]
    assert await store.waiting("batch_1", after=9, limit=9) == []
    assert await numbers(store, "batch_2") == [1, 2, 3]


async def test_of_large_lines_fewer_are_taken(store: BatchStore) -> None:
    await store.create(batch())
    for n in range(1, 9):
        await store.add_lines("batch_1", [line(n, b"x" * (STEP // 2))])
    await store.add_lines("batch_1", [line(9, b"x" * (2 * STEP)), line(10)])
    await store.accept("batch_1", total=10, model=None, at=20.0)
    taken: list[list[int]] = []
    while lines := await store.waiting("batch_1", after=taken[-1][-1] if taken else 0, limit=100):
        taken.append([line.number for line in lines])
    assert taken == [[1, 2], [3, 4], [5, 6], [7, 8], [9], [10]]


async def test_the_first_result_of_a_line_stays(store: BatchStore) -> None:
    await accepted(store, 3)
    once = await store.finish("batch_1", [good(1), bad(2)])
    assert (once.completed, once.failed, once.usage) == (1, 1, Usage(4, 3, 2, 1))
    assert await store.finish("batch_1", [bad(1), good(2), good(7), good(0)]) == once
    twice = await store.finish("batch_1", [good(3), bad(3), good(2)])
    assert (twice.completed, twice.failed, twice.usage) == (2, 1, Usage(8, 6, 4, 2))
    assert await store.batch(ANN, "batch_1") == twice
    ended = await store.end("batch_1", "completed", at=30.0, left=None)
    assert await content(store, ended.output_file) == b'{"good":1}\n{"good":3}\n'
    assert await content(store, ended.error_file) == b'{"bad":2}\n'
    assert await store.finish("batch_1", [good(2)]) == ended


async def test_results_at_once_are_counted_once(store: BatchStore) -> None:
    await accepted(store, 60)
    calls = [[good(n) if n % 3 else bad(n) for n in range(start, start + 20)] for start in range(1, 60, 5)]
    random.Random(1).shuffle(calls)
    await asyncio.gather(*(store.finish("batch_1", results) for results in calls))
    assert await numbers(store) == []
    found = await store.batch(ANN, "batch_1")
    assert found is not None
    assert (found.completed, found.failed, found.usage) == (40, 20, Usage(160, 120, 80, 40))


# The end.


async def test_a_batch_completes_through_finalizing(store: BatchStore) -> None:
    await accepted(store, 2, output_lives=3600.0)
    await store.finish("batch_1", [good(1), good(2)])
    ended = await store.end("batch_1", "completed", at=30.0, left=None)
    assert (ended.state, ended.error_file) == ("completed", None)
    assert ended.times == {"in_progress": 20.0, "finalizing": 30.0, "completed": 30.0}
    assert ended.output_file is not None
    assert ended.output_file.startswith("file-")
    assert len(ended.output_file) == len("file-") + 24
    body = await content(store, ended.output_file)
    assert body == b'{"good":1}\n{"good":2}\n'
    assert await store.file(ANN, ended.output_file) == record(
        ended.output_file,
        purpose="batch_output",
        filename="batch_1_output.jsonl",
        size=len(body),
        created=30.0,
        expires=3630.0,
    )
    assert await store.batch(ANN, "batch_1") == ended
    assert await store.unfinished() == []


async def test_while_a_line_waits_it_cannot_complete(store: BatchStore) -> None:
    await accepted(store, 2)
    before = await store.finish("batch_1", [good(1)])
    with pytest.raises(BatchStoreError, match="its line 2 still waits"):
        await store.end("batch_1", "completed", at=30.0, left=None)
    assert await store.batch(ANN, "batch_1") == before
    await store.create(batch("batch_2"))
    await store.add_lines("batch_2", [line(1)])
    with pytest.raises(BatchStoreError, match="its line 1 still waits"):
        await store.end("batch_2", "completed", at=30.0, left=None)


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1203])
async def test_what_still_waits_when_it_expires_goes_to_the_error_file(
    store: BatchStore, path: Path, count: int
) -> None:
    await accepted(store, count + 2)
    await store.finish("batch_1", [good(1), bad(count + 2)])
    ended = await store.end("batch_1", "expired", at=30.0, left=out_of_time)
    assert (ended.state, ended.completed, ended.failed) == ("expired", 1, count + 1)
    assert ended.times == {"in_progress": 20.0, "expired": 30.0}
    assert await content(store, ended.output_file) == b'{"good":1}\n'
    expired = b"".join(b'{"expired":"request-%d"}\n' % n for n in range(2, count + 2))
    assert await content(store, ended.error_file) == expired + b'{"bad":%d}\n' % (count + 2)
    assert ended.error_file is not None
    file = await store.file(ANN, ended.error_file)
    assert file is not None
    assert (file.filename, file.expires) == ("batch_1_error.jsonl", 30.0 + 30 * DAY)
    assert file.size == len(expired) + len(b'{"bad":%d}\n' % (count + 2))
    assert rows(path, "lines") == 0  # and the bodies with them


async def test_a_cancelled_batch_keeps_what_is_done(store: BatchStore) -> None:
    await accepted(store, 3)
    await store.finish("batch_1", [good(1)])
    cancelling = await store.cancel(ANN, "batch_1", at=25.0)
    assert cancelling is not None
    assert (cancelling.state, cancelling.completed) == ("cancelling", 1)
    assert await store.cancel(ANN, "batch_1", at=26.0) == cancelling
    assert (await store.finish("batch_1", [good(2)])).state == "cancelling"  # it was in flight
    ended = await store.end("batch_1", "cancelled", at=30.0, left=out_of_time)
    assert ended.times == {"in_progress": 20.0, "cancelling": 25.0, "cancelled": 30.0}
    assert await content(store, ended.output_file) == b'{"good":1}\n{"good":2}\n'
    assert await content(store, ended.error_file) == b'{"expired":"request-3"}\n'


@pytest.mark.parametrize("end", ["completed", "expired"])
async def test_who_cancels_in_the_last_moment_has_cancelled(store: BatchStore, end: End) -> None:
    await accepted(store, 1)
    await store.finish("batch_1", [good(1)])
    await store.cancel(ANN, "batch_1", at=25.0)
    ended = await store.end("batch_1", end, at=30.0, left=None)
    assert (ended.state, ended.times["cancelled"]) == ("cancelled", 30.0)
    assert await content(store, ended.output_file) == b'{"good":1}\n'


@pytest.mark.parametrize("end", ["completed", "expired", "cancelled"])
async def test_what_has_ended_stays_as_it_is(store: BatchStore, end: End) -> None:
    await accepted(store, 2)
    await store.finish("batch_1", [good(1)])
    ended = await store.end("batch_1", end, at=30.0, left=out_of_time)
    assert ended.state == end
    other: End
    for other in ("completed", "expired", "cancelled"):
        assert await store.end("batch_1", other, at=40.0, left=out_of_time) == ended
    assert await store.cancel(ANN, "batch_1", at=40.0) == ended
    files = await store.files(ANN, after=None, limit=9, newest_first=True, purpose=None)
    assert files is not None
    assert {file.id for file in files} == {ended.output_file, ended.error_file}


async def test_what_left_raises_changes_nothing(store: BatchStore) -> None:
    before = await accepted(store, 2)

    def left(line: Line) -> Result:
        raise KeyError(line.number)

    with pytest.raises(KeyError):
        await store.end("batch_1", "expired", at=30.0, left=left)
    assert await store.batch(ANN, "batch_1") == before
    assert await numbers(store) == [1, 2]


# In any order.


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_called_every_line_ends_once(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = await BatchStore.open(path)
    count = chance.randrange(1, 40)
    first: dict[int, bytes] = {}
    await accepted(store, count)
    for _ in range(chance.randrange(30)):
        match chance.choice(["finish", "finish", "finish", "restart", "cancel", "add"]):
            case "finish":
                some = [chance.choice([good, bad])(chance.randrange(1, count + 3)) for _ in range(4)]
                await store.finish("batch_1", some)
                for result in some:
                    if result.number <= count:
                        first.setdefault(result.number, result.data)
            case "restart":
                await store.aclose()
                store = await BatchStore.open(path)
            case "cancel":
                await store.cancel(ANN, "batch_1", at=25.0)
            case "add":
                await store.add_lines("batch_1", [line(count + 1)])
        assert await numbers(store) == [n for n in range(1, count + 1) if n not in first]
    ended = await store.end("batch_1", "expired", at=30.0, left=out_of_time)
    for n in range(1, count + 1):
        first.setdefault(n, b'{"expired":"request-%d"}' % n)
    files = {name: await content(store, name) for name in (ended.output_file, ended.error_file) if name}
    assert sorted(b"".join(files.values()).splitlines()) == sorted(first.values())
    assert ended.completed + ended.failed == ended.total == count
    await store.aclose()


# Very many faults.


async def test_a_list_reads_few_of_very_many_faults(store: BatchStore, path: Path) -> None:
    await store.create(batch())
    await store.create(batch("batch_2"))
    faults = [
        Fault("missing_required_parameter", "Missing required parameter: 'body'.", "body", n) for n in range(60_000)
    ]
    await store.refuse("batch_1", faults, at=20.0)
    whole = json.loads(b"[" + await store.faults("batch_1") + b"]")
    assert [fault["line"] for fault in whole] == list(range(60_000))
    first = await store.first_faults(["batch_1", "batch_2"])
    assert json.loads(b"[" + first.pop("batch_1") + b"]") == whole[:TOGETHER]
    assert first == {}
    with closing(sqlite3.connect(path)) as database:
        (size,) = database.execute("SELECT max(length(record)) FROM batches").fetchone()
    assert size < 2_000


async def test_faults_of_a_validation_that_broke_off_do_not_stay(store: BatchStore) -> None:
    await store.create(batch())
    await store._do(table.add_faults, "batch_1", in_pieces([Fault("a", "Before the kill.")]))
    await store.refuse("batch_1", [Fault("b", "After it.")], at=20.0)
    assert [fault["code"] for fault in json.loads(b"[" + await store.faults("batch_1") + b"]")] == ["b"]


# Batches that ended long ago.


async def test_batches_go_when_they_ended_long_ago_and_have_no_file(store: BatchStore, path: Path) -> None:
    for n in range(3):
        await accepted(store, 1, f"batch_{n}")
    await store.finish("batch_0", [good(1)])
    ended = await store.end("batch_0", "completed", at=100.0, left=None)
    await store.cancel(ANN, "batch_1", at=50.0)  # it never ends
    await store.create(batch("batch_failed"))
    await store.refuse("batch_failed", [Fault("a", "b")] * 1000, at=100.0)

    async def left(now: float) -> set[str]:
        await store.expire(now)
        return {found.id for found in await store.batches(ANN, after=None, limit=9) or ()}

    whole = {"batch_0", "batch_1", "batch_2", "batch_failed"}
    assert await left(99.0 + LIVES) == whole
    assert ended.output_file is not None
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE files SET expires = NULL")
    assert await left(101.0 + LIVES) == whole - {"batch_failed"}, "its file can still be read"
    assert rows(path, "pieces") == 0, "its faults went with it"
    await store.delete_file(ANN, ended.output_file, at=1.0)
    assert await left(101.0 + LIVES) == {"batch_1", "batch_2"}
