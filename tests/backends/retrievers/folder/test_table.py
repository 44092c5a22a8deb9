"""The database of a folder: what it gives back, what it does not believe, and what becomes of a file of no use."""

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from backends.retrievers.folder import table
from backends.retrievers.folder.chunking import Piece
from backends.retrievers.folder.database import Database, DatabaseError
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.index import Indexed
from backends.retrievers.folder.pieces import checksum, digest
from backends.retrievers.folder.table import Memory, Refused, Row

D = 4
UNIT = np.array([0.6, 0.8, 0, 0], np.float32)
STATE = FileState(*range(1, 1 + len(FileState.__dataclass_fields__)))
PIECES = (Piece("t", "first"), Piece("t", "second"))
DIGESTS = [digest(piece) for piece in PIECES]


def row(name: str, pieces: tuple[Piece, ...] = PIECES, *, needs: str = "", rules: str = "1") -> Row:
    return Row(name, STATE, Indexed("v", checksum(pieces), frozenset(needs.split()), pieces), rules)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder.db"


async def filled(path: Path | None) -> Database:
    database = Database(path)
    await database.put_vectors("e", [(one, UNIT) for one in DIGESTS])
    await database.save([row("a.md"), row("hr/b.md", needs="hr legal")], [])
    await database.remember(Memory(frozenset({("x.md", "v1")}), 3))
    return database


async def with_sql(path: Path, *statements: str) -> Database:
    """The filled database after somebody has changed its file."""
    await (await filled(path)).aclose()
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return Database(path)


@pytest.mark.parametrize("in_memory", [False, True])
async def test_what_was_written_is_there(path: Path, in_memory: bool) -> None:
    database = await filled(None if in_memory else path)
    if not in_memory:
        assert path.stat().st_mode & 0o777 == 0o600  # noqa: ASYNC240
        await database.aclose()
        database = Database(path)
    assert await database.rows() == [row("a.md"), row("hr/b.md", needs="legal hr")]
    assert await database.memory() == Memory(frozenset({("x.md", "v1")}), 3)
    found = await database.vectors("e", D, [*DIGESTS, b"another"])
    assert list(found) == DIGESTS
    assert np.array_equal(found[DIGESTS[0]], UNIT)
    await database.refuse("1", {"c.pdf": Refused(STATE, "is broken")})
    assert await database.refused("1") == {"c.pdf": Refused(STATE, "is broken")}
    assert await database.refused("2") == {}
    await database.aclose()
    await database.aclose()


async def test_vectors_stay_while_a_document_has_them(path: Path) -> None:
    database = await filled(path)
    left = await database.save([row("a.md", PIECES[:1])], [])
    await database.drop(left)
    assert len(await database.vectors("e", D, DIGESTS)) == 2  # b has the second one
    left = await database.save([], ["hr/b.md"])
    assert len(await database.vectors("e", D, DIGESTS)) == 2  # it may only have moved
    await database.drop(left)
    assert list(await database.vectors("e", D, DIGESTS)) == DIGESTS[:1]
    assert await database.rows() == [row("a.md", PIECES[:1])]
    await database.discard(DIGESTS)
    assert await database.vectors("e", D, DIGESTS) == {}
    await database.aclose()


async def test_vectors_of_interrupted_runs_and_other_embedders_go(path: Path) -> None:
    database = await filled(path)
    await database.put_vectors("e", [(b"nobody's", UNIT)])
    await database.put_vectors("other", [(DIGESTS[1], UNIT)])
    assert list(await database.vectors("e", D, [*DIGESTS, b"nobody's"])) == [DIGESTS[0], b"nobody's"]
    await database.drop_unused("e")
    assert list(await database.vectors("e", D, [*DIGESTS, b"nobody's"])) == DIGESTS[:1]
    assert await database.vectors("other", D, DIGESTS) == {}
    await database.aclose()


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([0.6, 0.8], id="another size"),
        pytest.param([0.5, 0.5, 0, 0], id="not of unit length"),
        pytest.param([np.nan, 0, 0, 1], id="not a number"),
        pytest.param([3e38, 3e38, 0, 0], id="too large"),
    ],
)
async def test_a_vector_that_cannot_be_right_is_not_there(path: Path, values: list[float]) -> None:
    blob = np.array(values, "<f4").tobytes().hex()
    database = await with_sql(path, f"UPDATE vectors SET vector = x'{blob}' WHERE digest = x'{DIGESTS[0].hex()}'")
    assert list(await database.vectors("e", D, DIGESTS)) == DIGESTS[1:]
    await database.aclose()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("UPDATE pieces SET text = 'forged' WHERE document = 'a.md' AND position = 0", id="text"),
        pytest.param("DELETE FROM pieces WHERE document = 'a.md' AND position = 1", id="piece gone"),
        pytest.param("UPDATE documents SET required = '{}' WHERE id = 'a.md'", id="no list"),
        pytest.param("UPDATE documents SET required = '[1]' WHERE id = 'a.md'", id="no names"),
        pytest.param("UPDATE documents SET required = 'x' WHERE id = 'a.md'", id="no JSON"),
        pytest.param("UPDATE documents SET state = '[1]' WHERE id = 'a.md'", id="state of another kind"),
        pytest.param("DELETE FROM documents WHERE id = 'a.md'", id="pieces alone"),
    ],
)
async def test_a_document_that_is_not_as_it_was_written_goes(path: Path, change: str) -> None:
    database = await with_sql(path, change)
    assert await database.rows() == [row("hr/b.md", needs="hr legal")]
    await database.aclose()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT DISTINCT document FROM pieces").fetchall() == [("hr/b.md",)]
    db.close()


async def test_what_is_erased_is_overwritten(path: Path) -> None:
    database = await filled(path)
    secret = Piece("salaries", "the-secret-of-a-lifetime")
    await database.put_vectors("e", [(digest(secret), UNIT)])
    await database.save([row("hr/c.md", (secret,))], [])
    assert any(b"the-secret-of-a-lifetime" in file.read_bytes() for file in path.parent.iterdir())
    await database.erase(["hr/c.md"])
    assert not any(b"the-secret-of-a-lifetime" in file.read_bytes() for file in path.parent.iterdir())
    assert len(await database.rows()) == 2
    await database.aclose()


def rubbish(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def another_program(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()


def another_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.executescript(table.SCHEMA)
        db.execute(f"PRAGMA user_version = {table.SCHEMA_VERSION + 1}")
    db.close()


@pytest.mark.parametrize("spoil", [rubbish, another_program, another_version])
async def test_a_file_of_no_use_is_set_aside(
    path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    spoil(path)
    before = path.read_bytes()  # noqa: ASYNC240
    database = Database(path)
    assert await database.rows() == []
    assert database.begun == 1
    assert path.with_name("folder.db.damaged-1").read_bytes() == before
    assert "set aside" in caplog.text
    await database.save([row("a.md")], [])
    await database.aclose()
    assert await Database(path).rows() == [row("a.md")]


async def test_of_a_damaged_file_what_was_erased_is_still_known(path: Path) -> None:
    database = await filled(path)
    many = [row(f"{n}.md", tuple(Piece("t", f"{n} {k} " + "x" * 900) for k in range(4))) for n in range(100)]
    await database.save(many, [])
    await database.aclose()
    with sqlite3.connect(path) as db:
        page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'pieces_digest'").fetchone()[0]
        size = db.execute("PRAGMA page_size").fetchone()[0]
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    data = bytearray(path.read_bytes())  # noqa: ASYNC240
    data[(page - 1) * size : (page - 1) * size + 200] = b"\xff" * 200
    path.write_bytes(data)  # noqa: ASYNC240
    database = Database(path)
    assert await database.rows() == []
    assert await database.memory() == Memory(frozenset({("x.md", "v1")}), 3)
    await database.aclose()


async def test_a_file_that_was_taken_away_is_begun_anew_with_what_was_remembered(path: Path) -> None:
    database = await filled(path)
    begun = database.begun
    for file in path.parent.iterdir():
        file.unlink()
    assert await database.rows() == []
    assert database.begun == begun + 1
    assert await database.memory() == Memory(frozenset({("x.md", "v1")}), 3)
    await database.aclose()


async def test_two_retrievers_with_the_file_during_a_reload_forget_no_erasure(path: Path) -> None:
    one, two = await filled(path), Database(path)
    await two.remember(Memory(frozenset({("y.md", "v2")}), 5))
    await one.remember(Memory(frozenset({("x.md", "v1"), ("z.md", "v3")}), 4))
    assert await two.memory() == Memory(frozenset({("x.md", "v1"), ("y.md", "v2"), ("z.md", "v3")}), 5)
    await one.aclose()
    await two.aclose()


async def test_a_file_that_cannot_be_had(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "no-folder").write_text("")
    database = Database(tmp_path / "no-folder" / "folder.db")
    with pytest.raises(DatabaseError):
        await database.rows()
    os.unlink(tmp_path / "no-folder")
    assert await database.rows() == []  # the next use tries again
    await database.aclose()
    assert caplog.records == []


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
