"""What is seen of a folder, and when."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from backends.retrievers.folder import watch
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.watch import Look, Watch, settle

pytestmark = pytest.mark.slow

FIELDS = len(FileState.__dataclass_fields__)
ONE, TWO = (FileState(*[number] * FIELDS) for number in (1, 2))
RULES, OTHER_RULES = (1, 1, 1, 1, 1), (2, 2, 2, 2, 2)


@pytest.mark.parametrize(
    ("seen", "first", "second", "settled"),
    [
        pytest.param({}, {"a": ONE}, {"a": ONE}, {"a": ONE}, id="new"),
        pytest.param({}, {"a": ONE}, {"a": TWO}, {}, id="new and still being written"),
        pytest.param({}, {}, {"a": ONE}, {}, id="just come"),
        pytest.param({}, {"a": ONE}, {}, {}, id="come and gone"),
        pytest.param({"a": ONE}, {"a": TWO}, {"a": TWO}, {"a": TWO}, id="changed"),
        pytest.param({"a": ONE}, {"a": ONE}, {"a": TWO}, {"a": ONE}, id="changing"),
        pytest.param({"a": ONE}, {}, {}, {}, id="gone"),
        pytest.param({"a": ONE}, {}, {"a": TWO}, {"a": ONE}, id="being replaced"),
        pytest.param({"a": ONE}, {"a": ONE}, {}, {"a": ONE}, id="just gone"),
    ],
)
def test_what_counts_is_what_two_looks_agree_on(
    seen: dict[str, FileState], first: dict[str, FileState], second: dict[str, FileState], settled: dict[str, FileState]
) -> None:
    looks = [Look({**files, "still": ONE}) for files in (seen, first, second)]
    now, whole = settle(*looks)
    assert now == Look({**settled, "still": ONE})
    assert whole == (first == second)


def test_the_rules_settle_as_files_do() -> None:
    seen = Look(acl=RULES)
    assert settle(seen, Look(acl=OTHER_RULES), Look(acl=OTHER_RULES)) == (Look(acl=OTHER_RULES), True)
    assert settle(seen, Look(acl=None), Look(acl=OTHER_RULES)) == (seen, False)
    assert settle(seen, Look(acl=None), Look(acl=None)) == (Look(), True)
    # What is new or another one waits for them; what has gone has gone.
    files = {"same": ONE, "changed": ONE, "gone": ONE}
    looks = [Look({"same": ONE, "changed": TWO, "new": ONE}, acl=acl) for acl in (RULES, OTHER_RULES)]
    assert settle(Look(files, acl=RULES), *looks) == (Look({"same": ONE, "changed": ONE}, acl=RULES), False)
    # Without a former look there are no rules to go on with.
    assert settle(None, Look(acl=None), Look(acl=RULES)) == (None, False)
    assert settle(None, Look({"a": ONE}, acl=RULES), Look({"a": TWO}, acl=RULES)) == (Look(acl=RULES), False)


class Seen:
    """What a watch has told."""

    def __init__(self, watched: Watch) -> None:
        self.watch = watched
        self.looks: list[Look] = []
        self.lost: list[str] = []
        self._told = asyncio.Event()

    async def look(self, look: Look) -> None:
        self.looks.append(look)
        self._told.set()

    def lose(self, reason: str) -> None:
        self.lost.append(reason)
        self._told.set()

    async def until(self, right: Callable[["Seen"], bool]) -> None:
        async with asyncio.timeout(20):
            while not right(self):
                self._told.clear()
                await self._told.wait()

    async def files(self, *names: str) -> None:
        await self.until(lambda seen: bool(seen.looks) and sorted(seen.looks[-1].files) == sorted(names))


@asynccontextmanager
async def watching(root: Path, acl: Path | None = None) -> AsyncIterator[Seen]:
    seen = Seen(Watch(root, acl, [acl] if acl else []))
    task = asyncio.create_task(seen.watch.run(seen.look, seen.lose))
    try:
        yield seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "hr").mkdir(parents=True)
    (tmp_path / "docs" / "a.md").write_text("a")
    (tmp_path / "docs" / "image.png").write_text("a")
    return tmp_path / "docs"


async def test_files_that_come_change_and_go(root: Path) -> None:
    async with watching(root) as seen:
        await seen.files("a.md")
        assert list(seen.looks[-1].skipped) == ["image.png"]
        (root / "hr" / "b.md").write_text("b")
        await seen.files("a.md", "hr/b.md")
        before = seen.looks[-1].files
        (root / "a.md").write_text("another")
        await seen.until(lambda seen: seen.looks[-1].files != before)
        (root / "a.md").unlink()
        await seen.files("hr/b.md")
        shutil.rmtree(root / "hr")
        (root / "new").mkdir()
        (root / "new" / "c.md").write_text("c")
        await seen.files("new/c.md")
        assert seen.lost == []


async def test_nothing_is_told_where_nothing_has_changed(root: Path) -> None:
    (root / ".git").mkdir()
    async with watching(root) as seen:
        await seen.files("a.md")
        (root / ".git" / "index").write_text("x")
        seen.watch.wake()
        await asyncio.sleep(0.1)
        assert len(seen.looks) == 1


async def test_changes_are_found_without_events(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_ANYWAY", 0.3)
    moved = root.with_name("moved")
    async with watching(root) as seen:
        await seen.files("a.md")
        # The folder is another one now, with other events.
        root.rename(moved)  # noqa: ASYNC240
        shutil.copytree(moved, root)
        (root / "b.md").write_text("b")
        await seen.files("a.md", "b.md")


async def test_a_file_is_seen_when_it_has_stopped_changing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "QUIET", 0.6)
    async with watching(root) as seen:
        await seen.files("a.md")
        for size in range(1, 8):
            (root / "b.md").write_text("b" * size)
            await asyncio.sleep(0.05)
        await seen.files("a.md", "b.md")
        sizes = {look.files["b.md"].size for look in seen.looks if "b.md" in look.files}
        assert sizes == {7}


async def test_a_folder_that_is_gone_is_not_empty(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_ANYWAY", 0.2)
    async with watching(root) as seen:
        await seen.files("a.md")
        root.rename(root.with_name("away"))  # noqa: ASYNC240
        await seen.until(lambda seen: bool(seen.lost))
        assert len(seen.looks) == 1
        assert seen.lost[0] == "the folder cannot be read: No such file or directory"
        root.with_name("away").rename(root)
        await seen.until(lambda seen: len(seen.looks) > 1)  # told again, though it is the same
        assert seen.looks[0].files == seen.looks[1].files


async def test_the_root_may_be_a_link(root: Path) -> None:
    link = root.with_name("link")
    link.symlink_to(root)
    async with watching(link) as seen:
        await seen.files("a.md")
        (root / "b.md").write_text("b")
        await seen.files("a.md", "b.md")


async def test_rules_that_are_swapped_as_kubernetes_does(tmp_path: Path, root: Path) -> None:
    config = tmp_path / "config"
    for name in ("..1", "..2"):
        (config / name).mkdir(parents=True)
        (config / name / "acl.yaml").write_text(name)
    (config / "..data").symlink_to("..1")
    (config / "acl.yaml").symlink_to("..data/acl.yaml")
    async with watching(root, config / "acl.yaml") as seen:
        await seen.files("a.md")
        (config / "..new").symlink_to("..2")
        os.replace(config / "..new", config / "..data")
        await seen.until(lambda seen: len(seen.looks) > 1)
        assert seen.looks[0].acl != seen.looks[1].acl
        (config / "acl.yaml").unlink()
        await seen.until(lambda seen: seen.looks[-1].acl is None)


async def test_the_rules_are_no_document(root: Path) -> None:
    (root / "acl.txt").write_text("default: []")
    async with watching(root, root / "acl.txt") as seen:
        await seen.files("a.md")
        (root / "acl.txt").write_text("default: [hr]")
        await seen.until(lambda seen: len(seen.looks) > 1)
        assert "acl.txt" not in {**seen.looks[-1].files, **seen.looks[-1].skipped}
