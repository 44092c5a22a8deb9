"""A process that is killed, or whose disk is full, in the middle of writing: the next one finds all that was awaited,
nothing half done, and brings every line to its end once."""

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from gateway.batch.store import BatchStore
from tests.gateway.batch.kept import ANN, batch, content, good, numbers, out_of_time

ROOT = Path(__file__).parent.parent.parent.parent
PROGRAM = """
import asyncio, os, resource, secrets, signal, sys
from pathlib import Path
from gateway.batch.records import Result
from gateway.batch.store import BatchStore, BatchStoreError
from tests.gateway.batch.kept import ANN, accepted, bad, batch, good, line, out_of_time, record

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def then_kill(rows):
    yield from rows
    kill()

def kill_at(last):
    return lambda line: kill() if line.number == last else out_of_time(line)

def kill_at_file(count):
    # The ids of the files before it are made.
    ids = iter(range(1, count))
    secrets.token_hex = lambda size: f"{next(ids, 0) or kill():024}"

async def main():
    store = await BatchStore.open(Path(sys.argv[1]))
"""


def program(text: str) -> list[str]:
    return [sys.executable, "-c", f"{PROGRAM}{text}\nasyncio.run(main())"]


def child(text: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Another process that runs `text` with the store open."""
    return subprocess.run([*program(text), str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.batches.db"


@pytest.fixture
async def reopen(path: Path) -> AsyncIterator[Callable[[], Awaitable[BatchStore]]]:
    opened: list[BatchStore] = []

    async def one() -> BatchStore:
        opened.append(await BatchStore.open(path))
        return opened[-1]

    yield one
    for store in opened:
        await store.aclose()


Reopen = Callable[[], Awaitable[BatchStore]]


async def killed(reopen: Reopen, path: Path, text: str) -> BatchStore:
    """After a child was killed where `text` says so."""
    ended = child(text, path)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return await reopen()


@pytest.mark.slow
async def test_what_was_awaited_is_there(reopen: Reopen, path: Path) -> None:
    store = await killed(
        reopen,
        path,
        """
    await store.begin("file-1")
    await store.piece("file-1", b"abc")
    await store.keep(record("file-1"))
    await store.begin("file-2")
    await store.piece("file-2", b"abc")
    await accepted(store, 3)
    await store.finish("batch_1", [good(1)])
    await store.cancel(ANN, "batch_1", at=25.0)
    kill()
""",
    )
    assert await content(store, "file-1") == b"abc"
    assert await store.file(ANN, "file-2") is None
    found = await store.batch(ANN, "batch_1")
    assert found is not None
    assert (found.state, found.completed, found.total) == ("cancelling", 1, 3)
    assert await numbers(store) == [2, 3]


@pytest.mark.slow
async def test_killed_while_lines_are_added(reopen: Reopen, path: Path) -> None:
    store = await killed(
        reopen,
        path,
        """
    await store.create(batch())
    await store.add_lines("batch_1", [line(n) for n in range(1, 1001)])
    await store.add_lines("batch_1", then_kill(line(n, b"x" * 4000) for n in range(1001, 2001)))
""",
    )
    assert await store.unfinished() == [batch()]
    await store.accept("batch_1", total=1000, model=None, at=20.0)
    assert await numbers(store) == list(range(1, 1001))


@pytest.mark.slow
async def test_killed_while_results_come(reopen: Reopen, path: Path) -> None:
    store = await killed(
        reopen,
        path,
        """
    await accepted(store, 1000)
    await store.finish("batch_1", [good(n) for n in range(1, 101)])
    await store.finish("batch_1", then_kill(Result(n, True, b"x" * 9000) for n in range(101, 901)))
""",
    )
    assert await numbers(store) == list(range(101, 1001))
    after = await store.finish("batch_1", [good(n) for n in range(1, 1001)])
    assert after.completed == 1000
    ended = await store.end("batch_1", "completed", at=30.0, left=None)
    assert await content(store, ended.output_file) == b"".join(b'{"good":%d}\n' % n for n in range(1, 1001))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "file", "waiting"),
    [
        ("kill_at(200)", 9, 1900),
        ("kill_at(1700)", 9, 400),
        ("kill_at(2000)", 9, 400),
        ("out_of_time", 1, 0),
        ("out_of_time", 2, 0),
    ],
)
async def test_killed_while_it_ends(reopen: Reopen, path: Path, left: str, file: int, waiting: int) -> None:
    store = await killed(
        reopen,
        path,
        f"""
    await accepted(store, 2000)
    await store.finish("batch_1", [good(n) for n in range(1, 101)])
    kill_at_file({file})
    await store.end("batch_1", "expired", at=30.0, left={left})
""",
    )
    [found] = await store.unfinished()
    assert (found.state, found.completed, found.failed) == ("in_progress", 100, 1900 - waiting)
    assert await numbers(store) == list(range(2001 - waiting, 2001))
    assert await store.files(ANN, after=None, limit=9, newest_first=True, purpose=None) == []
    ended = await store.end("batch_1", "expired", at=40.0, left=out_of_time)
    assert (ended.completed, ended.failed) == (100, 1900)
    assert await content(store, ended.output_file) == b"".join(b'{"good":%d}\n' % n for n in range(1, 101))
    expected = b"".join(b'{"expired":"request-%d"}\n' % n for n in range(101, 2001))
    assert await content(store, ended.error_file) == expected


@pytest.mark.slow
async def test_killed_while_a_file_is_removed(reopen: Reopen, path: Path) -> None:
    store = await killed(
        reopen,
        path,
        """
    from gateway.batch import table_files
    sweep = table_files.sweep
    def once(db):
        assert sweep(db)
        kill()
    await store.begin("file-1")
    for _ in range(8):
        await store.piece("file-1", b"x" * 2**20)
    await store.keep(record("file-1"))
    table_files.sweep = once
    await store.delete_file(ANN, "file-1", at=60.0)
""",
    )
    assert await store.file(ANN, "file-1") is None
    left = await store._do(
        lambda db: [db.execute(f"SELECT count(*) FROM {x}").fetchone()[0] for x in ("pieces", "loose")]
    )
    assert left == [0, 0]


RUN = """
    found = await store.unfinished()
    if not found:
        await store.create(batch())
        found = [batch()]
    if found[0].state == "validating":
        await store.drop_lines("batch_1")
        for start in range(1, 3001, 300):
            await store.add_lines("batch_1", [line(n, b"x" * 2000) for n in range(start, start + 300)])
        await store.accept("batch_1", total=3000, model=None, at=20.0)
    while lines := await store.waiting("batch_1", after=0, limit=50):
        text = b'["%s",' + b"%d]" % os.getpid()
        results = [Result(x.number, x.number % 3 > 0, text % x.custom_id.encode()) for x in lines]
        await store.finish("batch_1", results)
        print(lines[-1].number, flush=True)
    await store.end("batch_1", "completed", at=30.0, left=None)
    kill()
"""


def run(path: Path, steps: int) -> int:
    """Let a child run, and kill it in the middle of what comes after so many steps; the line it has got to. At the last
    one it ends by itself."""
    with subprocess.Popen([*program(RUN), str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline() or 3000) for _ in range(steps)][-1]
        if said < 3000:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    return said


@pytest.mark.slow
async def test_killed_again_and_again(reopen: Reopen, path: Path) -> None:
    chance = random.Random(9)
    runs = 1
    while run(path, chance.randrange(2, 14)) < 3000:
        runs += 1
    assert runs > 3
    store = await reopen()
    for open_batch in await store.unfinished():
        await store.end(open_batch.id, "completed", at=30.0, left=None)
    ended = await store.batch(ANN, "batch_1")
    assert ended is not None
    assert (ended.state, ended.completed, ended.failed) == ("completed", 2000, 1000)
    both = await content(store, ended.output_file) + await content(store, ended.error_file)
    results = [msgspec.json.decode(text) for text in both.splitlines()]
    assert Counter(id for id, _ in results) == Counter(f"request-{n}" for n in range(1, 3001))
    assert len({process for _, process in results}) > 3


@pytest.mark.slow
async def test_a_full_disk_is_an_error_until_there_is_room(reopen: Reopen, path: Path) -> None:
    store = await killed(
        reopen,
        path,
        """
    await accepted(store, 2)
    await store.create(batch("batch_2"))
    await store.begin("file-1")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    for call in (
        store.piece("file-1", os.urandom(2**20)),
        store.add_lines("batch_2", [line(n, b"x" * 4000) for n in range(300)]),
        store.finish("batch_1", [good(1), Result(2, True, b"x" * 2**20)]),
    ):
        try:
            await call
        except BatchStoreError as error:
            assert sys.argv[1] in str(error), error
            continue
        raise SystemExit("there was room")
    await store.piece("file-1", b"abc")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.keep(record("file-1"))
    await store.finish("batch_1", [bad(2)])
    kill()
""",
    )
    assert await content(store, "file-1") == b"abc"
    assert await numbers(store) == [1]
    await store.accept("batch_2", total=0, model=None, at=20.0)
    assert await numbers(store, "batch_2") == []
    ended = await store.end("batch_1", "expired", at=30.0, left=out_of_time)
    assert await content(store, ended.error_file) == b'{"expired":"request-1"}\n{"bad":2}\n'
