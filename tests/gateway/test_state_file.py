"""The state's file: where it is, who may read it, what is refused, and what survives when the process or disk fails."""

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from cache.stores.sqlite import SQLiteStore
from gateway.state import AuditLine, State, StateError, state_path
from gateway.state_file import SCHEMA_VERSION

ROOT = Path(__file__).parent.parent.parent
NOBODY = 65534
A = b"a" * 32
LINE = AuditLine(1.0, "acme", "ops", "admin", "purge", {"tenant": "acme"}, "req_1")
Open = Callable[[], Awaitable[State]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "cache.state.db"


@pytest.fixture
async def open_state(path: Path) -> AsyncIterator[Open]:
    opened: list[State] = []

    async def open_one() -> State:
        opened.append(await State.open(path))
        return opened[-1]

    yield open_one
    for state in opened:
        await state.aclose()


async def made(path: Path) -> Path:
    """A file with something in it, that nobody has open."""
    await (await State.open(path)).aclose()
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT INTO revoked VALUES (?, 1, 'ops')", ((b"%032d" % n,) for n in range(300)))
    return path


def found_there(path: Path, content: bytes) -> None:
    """What stands at `path` before the state comes."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def refusal(path: Path) -> str:
    """What opening says, having left every file as it was."""
    before = files(path.parent)
    with pytest.raises(StateError) as refused:
        await State.open(path)
    after = files(path.parent)
    assert {name: after.get(name) for name in before} == before
    assert not [name for name in after.keys() - before.keys() if not name.endswith(("-wal", "-shm"))]
    assert str(path) in str(refused.value)
    return str(refused.value)


def child(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Another process that runs `program` with a state open."""
    text = f"""
import asyncio, os, resource, signal, sys
from pathlib import Path
from gateway.state import AuditLine, State, StateError
LINE = AuditLine(1.0, "acme", "ops", "admin", "purge", {{"tenant": "acme"}}, "req_1")
async def main():
    state = await State.open(Path({str(path)!r}))
{program}
asyncio.run(main())
"""
    return subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=60)


# Where it is.


@pytest.mark.parametrize(
    ("store", "durable", "expected"),
    [
        ("sqlite:///.refrain/cache.db", None, ".refrain/cache.state.db"),
        ("sqlite:////var/lib/refrain/a.b.sqlite", None, "/var/lib/refrain/a.b.state.sqlite"),
        ("sqlite:///cache", None, "cache.state"),
        ("sqlite:///.refrain/cache.db", "sqlite:///x/y.db", "x/y.db"),
        ("sqlite:///.refrain/cache.db", "sqlite:////x/y.db", "/x/y.db"),
        ("memory://", "sqlite:///x/y.db", "x/y.db"),
        ("redis://user:secret@db:6379/0", "sqlite:///x/y.db", "x/y.db"),
        ("memory://", None, None),
        ("redis://user:secret@db:6379/0", None, None),
        ("sqlite:///.refrain/cache.db", "memory://", None),
    ],
)
def test_the_path(store: str, durable: str | None, expected: str | None) -> None:
    assert state_path(store, durable) == (expected if expected is None else Path(expected))


@pytest.mark.parametrize(
    ("durable", "message"),
    [
        ("redis://user:secret@db:6379/0", "must be sqlite:///path"),
        ("sqlite:///x/cache.db", "holds the answers"),
        ("sqlite:///x/y/../cache.db", "holds the answers"),
    ],
)
def test_a_place_that_it_cannot_have(durable: str, message: str) -> None:
    with pytest.raises(StateError, match=message) as refused:
        state_path("sqlite:///x/cache.db", durable)
    assert "secret" not in str(refused.value)


async def test_the_answers_can_be_thrown_away(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/cache.db"
    path = state_path(url, None)
    state = await State.open(path)
    await state.revoke(A, at=1.0, by="ops")
    await state.aclose()
    (tmp_path / "cache.db").write_bytes(b"damaged answers, which their store moves aside")
    store = await SQLiteStore.open(tmp_path / "cache.db", max_bytes=10**6, max_body=1000)
    await store.aclose()
    state = await State.open(path)
    assert await state.revoked() == {A}
    await state.aclose()


async def test_it_is_private(open_state: Open, path: Path) -> None:
    before = os.umask(0)
    try:
        state = await open_state()
        await state.revoke(A, at=1.0, by="ops")
        found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert found == {path.name: 0o600, f"{path.name}-wal": 0o600, f"{path.name}-shm": 0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)


async def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%20é" / "100%?x=1#.db"
    for _ in range(2):
        await (await State.open(path)).aclose()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_a_file_that_an_earlier_process_could_not_finish(path: Path) -> None:
    found_there(path.with_name(f"{path.name}.new"), b"half of it")
    await (await State.open(path)).aclose()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_many_make_it_at_once(path: Path) -> None:
    states = await asyncio.gather(*(State.open(path) for _ in range(12)))
    await asyncio.gather(*(s.revoke(b"%d" % n, at=1.0, by="ops") for n, s in enumerate(states)))
    assert await states[0].revoked() == {b"%d" % n for n in range(12)}
    await asyncio.gather(*(s.aclose() for s in states))


# What is refused, and left as it is.


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"SQLite format 3\x00" + b"\x07" * 5000, os.urandom(20_000)], ids=len
)
async def test_what_is_no_database(path: Path, content: bytes) -> None:
    found_there(path, content)
    message = await refusal(path)
    assert "no database" in message or "is empty" in message
    assert "restore a backup" in message


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
async def test_another_programs_database(path: Path, mode: str) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("CREATE TABLE revoked (digest, at, by)")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    assert "another program's database. Set store.durable_url to another path." in await refusal(path)


async def test_a_file_of_answers(path: Path) -> None:
    await (await SQLiteStore.open(path, max_bytes=10**6, max_body=1000)).aclose()
    assert "another program's database" in await refusal(path)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, -7])
async def test_another_version(path: Path, version: int) -> None:
    with closing(sqlite3.connect(await made(path))) as database:
        database.execute(f"PRAGMA user_version = {version}")
    message = await refusal(path)
    assert f"schema version {version}, not {SCHEMA_VERSION}" in message
    assert "Run the version of Refrain that wrote it" in message


async def test_another_version_with_changes_that_only_its_log_has(path: Path, tmp_path: Path) -> None:
    await made(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        copy = tmp_path / "killed" / path.name
        for name, content in files(path.parent).items():  # as a kill -9 leaves them
            if not name.endswith("-shm"):
                found_there(copy.with_name(name), content)
    assert f"schema version {SCHEMA_VERSION + 1}" in await refusal(copy)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def overwrite_header(content: bytes) -> bytes:
    return b"\x00" * 100 + content[100:]


def overwrite_pages(content: bytes) -> bytes:
    return content[:4096] + b"\x5a" * (len(content) - 4096)


def overwrite_one_page(content: bytes) -> bytes:
    """One with revoked keys."""
    start = content.index(b"%032d" % 150) // 4096 * 4096
    return content[:start] + b"\x5a" * 4096 + content[start + 4096 :]


@pytest.mark.parametrize("damage", [cut, overwrite_header, overwrite_pages, overwrite_one_page])
async def test_a_damaged_file(path: Path, damage: Callable[[bytes], bytes]) -> None:
    content = (await made(path)).read_bytes()
    found_there(path, damage(content))
    message = await refusal(path)
    assert "damaged" in message
    assert "restore a backup, or move it away, revoke those keys and erase those documents again" in message
    found_there(path, content)  # the backup
    state = await State.open(path)
    assert len(await state.revoked()) == 300
    await state.aclose()


@pytest.mark.parametrize("where", ["file/state.db", "folder", "file/x/y/state.db", "pipe", "nowhere"])
async def test_where_no_file_can_be(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(StateError, match=r"store\.durable_url"):
        await State.open(tmp_path / where)
    assert (tmp_path / "file").read_text() == "not a folder"
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("protected", ["private", "private/state.db"])
@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_no_permission(protected: str, mode: int) -> None:
    def opened() -> str:
        """What opening says, in a child that root's rights do not help."""
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            said = "no error"
            try:
                if os.geteuid() == 0:
                    os.setgid(NOBODY)
                    os.setuid(NOBODY)
                asyncio.run(State.open(place))
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        os.waitpid(process, 0)
        with os.fdopen(read) as pipe:
            return pipe.read()

    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o711)
        place = folder / "private/state.db"
        asyncio.run(made(place))
        if os.geteuid() == 0:
            for file in (place.parent, place):
                os.chown(file, NOBODY, NOBODY)
        assert opened() == "no error"
        target = folder / protected
        before = target.stat().st_mode
        target.chmod(mode)
        said = opened()
        target.chmod(before)
        assert said.startswith(f"StateError: {place} cannot be used"), said
        assert "Let this user read and write it and its folder, or set store.durable_url" in said


# While it is in use.


@pytest.mark.parametrize("successor", [None, b"something else"])
async def test_a_file_taken_away_while_in_use(open_state: Open, path: Path, successor: bytes | None) -> None:
    state = await open_state()
    aside = path.with_name("aside.db")
    os.rename(path, aside)
    if successor is not None:
        found_there(path, successor)
    with pytest.raises(StateError, match="moved or removed"):
        await state.revoke(A, at=1.0, by="ops")
    os.replace(aside, path)
    await state.revoke(A, at=1.0, by="ops")
    assert await state.revoked() == {A}


async def test_damage_that_shows_while_in_use(open_state: Open, path: Path) -> None:
    await (await open_state()).aclose()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO audit VALUES (1, 0, 't', 'u', 'r', 'a', '{not JSON', 'q', NULL)")
    state = await open_state()
    with pytest.raises(StateError, match="cannot be read or written"):
        await state.lines(tenant=None, limit=1)
    await state.revoke(A, at=1.0, by="ops")


@pytest.mark.parametrize(
    "call", ["state.revoke(b'a' * 32, at=1.0, by='ops')", "state.begin(LINE)", "state.end(1, result={'purged': 3})"]
)
async def test_what_was_awaited_survives_kill_9(open_state: Open, path: Path, call: str) -> None:
    first = await open_state()
    await first.begin(LINE)
    await first.aclose()
    ended = child(f"    await {call}; os.kill(os.getpid(), signal.SIGKILL)", path)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert path.with_name(f"{path.name}-wal").stat().st_size > 0
    state = await open_state()
    results = [x["result"] for x in await state.lines(tenant=None, limit=9)]
    expected = {"revoke": [None], "begin": [None, None], "end": [{"purged": 3}]}
    assert results == expected[call.partition("(")[0].removeprefix("state.")]
    assert await state.revoked() == ({A} if "revoke" in call else frozenset())


async def test_a_full_disk_is_an_error_until_there_is_room(open_state: Open, path: Path) -> None:
    await made(path)
    ended = child(
        """
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    written = 0
    try:
        while written < 10_000:
            await state.begin(LINE)
            written += 1
    except StateError as error:
        print(error, file=sys.stderr)
    for call in (state.begin(LINE), state.revoke(b"x" * 32, at=1.0, by="ops"), state.save_counters([("a", 1, 9.0)])):
        try:
            await call
        except StateError:
            continue
        raise SystemExit("there was room")
    assert len(await state.revoked()) == 300
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await state.revoke(b"y" * 32, at=1.0, by="ops")
    print(written)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
""",
        path,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert str(path) in ended.stderr
    state = await open_state()
    assert 0 < int(ended.stdout) == len(await state.lines(tenant=None, limit=10_000))
    revoked = await state.revoked()
    assert b"y" * 32 in revoked
    assert b"x" * 32 not in revoked


async def test_a_full_disk_from_the_start(path: Path) -> None:
    path.parent.mkdir()
    ended = child(
        f"""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        await State.open(Path({str(path)!r}))
    except StateError as error:
        print(error)
""",
        path.with_name("another.db"),
    )
    assert "Make room on its disk" in ended.stdout, ended.stderr
    assert not [name for name in files(path.parent) if name.startswith(path.name)]
