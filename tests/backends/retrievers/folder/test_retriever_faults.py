"""What becomes of a folder when the model, the rules, the folder, a file or the database is of no use; and erasures."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends.retrievers import RetrieverError
from backends.retrievers.folder import embedding, indexing
from backends.retrievers.folder.index import Index
from backends.retrievers.folder.retriever import SHORTENED, FolderRetriever
from tests.backends.retrievers.folder.folders import Folder, another_generation, search, seen, until

pytestmark = pytest.mark.slow

RULES = "default: []\nrules:\n  - {path: 'hr/**', permissions: [hr]}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(embedding, "FIRST_PAUSE", 0.02)
    folder = Folder(tmp_path)
    folder.write("leave.md", "# Leave\n\nTwenty days of holiday.\n\n# Sickness\n\nCall before noon.\n")
    folder.write("hr/pay.md", "# Salaries\n\nPaid monthly.\n")
    return folder


async def refused(retriever: FolderRetriever) -> str:
    with pytest.raises(RetrieverError) as caught:
        await search(retriever, "anything")
    return caught.value.reason


# The model.


async def test_it_starts_when_the_model_does(folder: Folder) -> None:
    folder.words.ready = False
    async with folder.running(ready=False) as retriever:
        await until(lambda: "waiting" in retriever.detail)
        assert retriever.detail == "waiting for the embedding model: loading"
        assert (retriever.state, await refused(retriever)) == ("starting", "starting")
        generation = retriever.generation
        folder.words.ready = True
        await until(lambda: retriever.state == "ready")
        assert retriever.generation != generation
    async with folder.running(ready=False) as another:
        assert another.generation != generation  # nothing that was kept under it is found by another process


async def test_a_model_that_fails_keeps_back_the_new_but_not_what_has_to_go(folder: Folder) -> None:
    folder.rules(RULES)
    async with folder.running() as retriever:
        folder.words.fails = "out of order"
        folder.write("new.md", "# New\n\nNot seen before.")
        await until(lambda: "out of order" in retriever.detail)
        assert retriever.state == "ready"
        assert await refused(retriever) == "unavailable"
        async with another_generation_at_once(retriever):
            folder.rules("default: []\nrules: [{path: leave.md, permissions: [boss]}]\n")
        async with another_generation_at_once(retriever):
            (folder.root / "hr" / "pay.md").unlink()
        assert folder.told == [["hr/pay.md", "leave.md"], ["hr/pay.md"]]
        folder.words.fails = None
        await until(lambda: retriever.progress is None)
        assert await seen(retriever) == {"new.md"}
        assert await seen(retriever, "boss") == {"new.md", "leave.md"}


@asynccontextmanager
async def another_generation_at_once(retriever: FolderRetriever) -> AsyncIterator[None]:
    """Waits for another generation, but not for reading and embedding to end."""
    before = retriever.generation
    yield
    await until(lambda: retriever.generation != before)


async def test_a_text_that_the_model_cannot_bear_keeps_out_its_document_alone(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.words.bad = {"poison"}
    folder.write("bad.md", "# Bad\n\nA poison in it.")
    async with folder.running() as retriever:
        assert await seen(retriever) == {"leave.md", "hr/pay.md"}
        assert retriever.detail == "2 documents, 3 pieces; 1 file skipped"
        assert "'bad.md' has a text of which the embedding model makes no vector" in caplog.text


async def test_a_piece_that_is_too_long_for_the_model_is_found_by_its_begin(folder: Folder) -> None:
    folder.words.longest = 30
    text = "begin " + "word " * 100 + "end"
    folder.write("long.md", f"# Long\n\n{text}")
    async with folder.running() as retriever:
        found = await search(retriever, "long begin word", top_k=1)
        assert (found[0].document, found[0].text) == ("long.md", text)
        assert all(len(one.split()) <= 30 for one in folder.words.embedded)


async def test_a_query_that_is_too_long_is_found_by_both_its_ends(folder: Folder) -> None:
    async with folder.running() as retriever:
        folder.words.longest = 70
        query = "holiday " + "x " * 2_000 + "twenty"
        await search(retriever, query)
        asked = folder.words.embedded[-1]
        assert len(asked) <= SHORTENED[-1] + 1
        assert (asked.split()[0], asked.split()[-1]) == ("holiday", "twenty")
        folder.words.longest = 3
        with pytest.raises(RetrieverError, match="too long for the embedding model"):
            await search(retriever, "one two three four five")


async def test_a_model_that_does_not_answer_in_time(folder: Folder) -> None:
    async with folder.running() as retriever:
        folder.words.gate = asyncio.Event()
        with pytest.raises(RetrieverError) as caught:
            await retriever.search("x", top_k=1, permissions=None, deadline=0.05)
        assert caught.value.reason == "deadline"


# The rules and the folder.


@pytest.mark.parametrize("rules", ["", "default: [", "rules: []"], ids=["empty", "no YAML", "no default"])
async def test_without_usable_rules_nothing_is_found(folder: Folder, rules: str) -> None:
    folder.rules(rules)
    async with folder.running(ready=False) as retriever:
        await until(lambda: retriever.state == "down")
        assert retriever.detail.startswith("the access rules cannot be used: ")
        assert await refused(retriever) == "unavailable"
        folder.rules(RULES)
        await until(lambda: retriever.state == "ready")
        assert await seen(retriever) == {"leave.md"}


async def test_rules_that_break_leave_the_former_ones_in_force(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.rules(RULES)
    async with folder.running() as retriever:
        generation = retriever.generation
        assert folder.acl is not None
        folder.acl.unlink()  # which does not mean "everyone"
        await until(lambda: "the former access rules stay in force" in retriever.detail)
        assert "the former ones stay in force" in caplog.text
        folder.rules("default: [")
        await until(lambda: "no valid YAML" in retriever.detail)
        assert (retriever.state, retriever.generation) == ("ready", generation)
        assert await seen(retriever) == {"leave.md"}
        folder.rules("default: []\nrules: []\n")
        await until(lambda: folder.told)
        assert retriever.detail == "2 documents, 3 pieces"
        assert await seen(retriever) == {"leave.md", "hr/pay.md"}
        assert folder.told == [["hr/pay.md"]]


async def test_while_the_rules_are_broken_a_new_document_waits(folder: Folder) -> None:
    """What they say of it nobody knows. Those that are known change, and go."""
    folder.rules(RULES)
    async with folder.running() as retriever:
        folder.rules(RULES.replace("permissions", "permission"))
        await until(lambda: "the former access rules stay in force" in retriever.detail)
        folder.write("exec/plans.md", "# Plans\n\nWe merge.")
        async with another_generation(retriever):
            folder.write("leave.md", "# Leave\n\nThirty days.")
        await retriever.changed("exec/plans.md", version="1", deleted=False)
        assert await seen(retriever) == {"leave.md"}
        assert "Thirty days." in {found.text for found in await search(retriever, "leave")}
        async with another_generation(retriever):
            folder.rules(RULES.replace("rules:", 'rules:\n  - {path: "exec/**", permissions: [board]}'))
        await until(lambda: retriever.progress is None and retriever.detail == "3 documents, 3 pieces")
        assert await seen(retriever) == {"leave.md"}
        assert await seen(retriever, "board") == {"leave.md", "exec/plans.md"}


async def test_a_folder_that_cannot_be_listed_is_not_served(folder: Folder) -> None:
    async with folder.running() as retriever:
        generation = retriever.generation
        folder.root.rename(folder.root.with_name("away"))
        await until(lambda: retriever.state == "down")
        assert await refused(retriever) == "unavailable"
        assert retriever.generation != generation
        folder.root.with_name("away").rename(folder.root)
        await until(lambda: retriever.state == "ready")
        assert retriever.generation == generation
        assert folder.told == []


async def test_files_of_no_use_are_skipped_with_a_reason(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    (folder.root / "binary.md").write_bytes(bytes(range(256)) * 10)
    (folder.root / "image.png").write_bytes(b"x")
    for _ in range(2):  # a restart changes nothing about it
        async with folder.running() as retriever:
            assert await seen(retriever) == {"leave.md", "hr/pay.md"}
            assert retriever.detail == "2 documents, 3 pieces; 2 files skipped"
    assert caplog.text.count("'image.png' is of a kind that is not read (.png)") == 2
    async with folder.running() as retriever:
        async with another_generation(retriever):
            folder.write("binary.md", "# Text\n\nNow it is.")
        assert retriever.detail == "3 documents, 4 pieces; 1 file skipped"
        async with another_generation(retriever):
            (folder.root / "leave.md").write_bytes(bytes(range(256)))
        assert await seen(retriever) == {"binary.md", "hr/pay.md"}
        assert folder.told == [["leave.md"]]


# The database.


async def test_what_did_not_fit_is_found_when_there_is_room(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "MAX_PIECES", 3)
    folder.write("z.md", "Too many.")
    async with folder.running() as retriever:
        assert await seen(retriever) == {"leave.md", "hr/pay.md"}
        async with another_generation(retriever):
            (folder.root / "leave.md").unlink()
        await until(lambda: retriever.progress is None and retriever.detail == "2 documents, 2 pieces")
        assert await seen(retriever) == {"hr/pay.md", "z.md"}


async def test_a_damaged_database_costs_embedding_only(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    async with folder.running() as retriever:
        generation = retriever.generation
    folder.embedded()
    assert folder.database is not None
    folder.database.write_bytes(b"rubbish" * 1_000)
    async with folder.running() as retriever:
        assert retriever.generation == generation
        assert len(folder.embedded()) == 3
        assert "set aside" in caplog.text
    async with folder.running():
        assert folder.embedded() == []


async def test_a_database_that_is_taken_away_is_written_anew(folder: Folder) -> None:
    async with folder.running() as retriever:
        assert folder.database is not None
        for file in folder.database.parent.iterdir():
            file.unlink()
        async with another_generation(retriever):
            folder.write("new.md", "# New\n\nNot seen before.")
    folder.embedded()
    async with folder.running() as retriever:
        assert folder.embedded() == []
        assert retriever.detail == "3 documents, 4 pieces"


async def test_vectors_of_another_model_are_not_used(folder: Folder) -> None:
    async with folder.running() as retriever:
        generation = retriever.generation
    folder.words.identity = "other"
    folder.embedded()
    async with folder.running() as retriever:
        assert len(folder.embedded()) == 3
        assert retriever.generation != generation


# What others say.


async def test_an_erased_document_comes_back_with_another_version_only(folder: Folder) -> None:
    async with folder.running() as retriever:
        generation = retriever.generation
        await retriever.changed("leave.md", version=None, deleted=True)
        assert retriever.generation != generation
        assert await seen(retriever) == {"hr/pay.md"}
        assert folder.told == [["leave.md"]]
        await retriever.changed("leave.md", version=None, deleted=False)  # a purge does not bring it back
        (folder.root / "leave.md").touch()
        async with another_generation(retriever):
            folder.write("other.md", "Something else.")
        assert await seen(retriever) == {"hr/pay.md", "other.md"}
        generation = retriever.generation
    async with folder.running() as retriever:
        assert retriever.generation == generation
        assert await seen(retriever) == {"hr/pay.md", "other.md"}
        async with another_generation(retriever):
            folder.write("leave.md", "# Leave\n\nThirty days.")
        assert await seen(retriever) == {"leave.md", "hr/pay.md", "other.md"}
        assert retriever.detail == "3 documents, 3 pieces"


async def test_an_erasure_is_of_what_the_file_has_now_too(folder: Folder) -> None:
    """It may have been changed a moment ago, which the folder's watcher has not seen yet."""
    async with folder.running() as retriever:
        folder.write("leave.md", "# Leave\n\nThirty days.")
        await retriever.changed("leave.md", version=None, deleted=True)
        async with another_generation(retriever):
            folder.write("other.md", "Something else.")
        assert await seen(retriever) == {"hr/pay.md", "other.md"}
        async with another_generation(retriever):
            folder.write("leave.md", "# Leave\n\nForty days.")
        assert await seen(retriever) == {"leave.md", "hr/pay.md", "other.md"}


async def test_a_name_may_be_written_in_two_ways(folder: Folder) -> None:
    folder.write("anne\u0301e.md", "Decomposed, as some file systems have it.")
    async with folder.running() as retriever:
        await retriever.changed("ann\u00e9e.md", version=None, deleted=True)
        assert await seen(retriever) == {"leave.md", "hr/pay.md"}


async def test_a_document_erased_while_it_is_indexed_for_the_first_time_does_not_appear(folder: Folder) -> None:
    folder.words.gate = asyncio.Event()
    async with folder.running(ready=False) as retriever:
        await until(lambda: retriever.progress is not None and retriever.progress.total == 3)
        erasing = asyncio.create_task(retriever.changed("leave.md", version=None, deleted=True))
        await asyncio.wait_for(erasing, 10)
        folder.words.gate.set()
        await until(lambda: retriever.state == "ready" and retriever.progress is None)
        assert await seen(retriever) == {"hr/pay.md"}


async def test_an_erasure_is_carried_out_also_when_nobody_waits_for_it(folder: Folder) -> None:
    async with folder.running() as retriever:
        waiting = asyncio.create_task(retriever.changed("leave.md", version=None, deleted=True))
        await asyncio.sleep(0)
        waiting.cancel()
        await until(lambda: folder.told == [["leave.md"]])
    async with folder.running() as retriever:
        assert await seen(retriever) == {"hr/pay.md"}


async def test_an_erasure_that_cannot_be_written_down_says_so(folder: Folder) -> None:
    folder.database = folder.root / "leave.md" / "folder.db"
    async with folder.running() as retriever:
        with pytest.raises(RetrieverError, match="could not be written down"):
            await retriever.changed("hr/pay.md", version=None, deleted=True)
        assert await seen(retriever) == {"leave.md"}


async def test_a_document_that_is_said_to_have_changed_is_made_anew(folder: Folder) -> None:
    async with folder.running() as retriever:
        folder.embedded()
        generations = {retriever.generation}
        await retriever.changed("leave.md", version="whatever", deleted=False)
        assert [text.split()[0] for text in folder.embedded()] == ["Leave", "Sickness"]
        assert await seen(retriever) == {"leave.md", "hr/pay.md"}
        generations.add(retriever.generation)
        await retriever.changed("no-such.md", version=None, deleted=False)
        generations.add(retriever.generation)
        await retriever.changed("no-such.md", version=None, deleted=True)
        generations.add(retriever.generation)
        assert len(generations) == 4
        # It is not found while it cannot be made.
        folder.words.ready = False
        await retriever.changed("leave.md", version="whatever", deleted=False)
        folder.words.ready = True
        await until(lambda: retriever.progress is None and retriever.detail == "2 documents, 3 pieces")
        last = retriever.generation
    async with folder.running() as retriever:
        assert retriever.generation == last


async def test_what_is_said_of_many_documents_is_done_at_once(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of many documents takes a moment to be made anew."""
    names = [f"{number}.md" for number in range(200)]
    for name in names:
        folder.write(name, f"# {name}\n\nText {name}.")
    made = []
    changed = Index.changed
    monkeypatch.setattr(Index, "changed", lambda self, **how: (made.append(1), changed(self, **how))[1])
    async with folder.running() as retriever:
        made.clear()
        await asyncio.gather(*(retriever.changed(name, version="2", deleted=False) for name in names))
        assert await seen(retriever) == {*names, "leave.md", "hr/pay.md"}
        assert len(made) <= 6
        made.clear()
        await asyncio.gather(*(retriever.changed(name, version=None, deleted=True) for name in names))
        assert await seen(retriever) == {"leave.md", "hr/pay.md"}
        assert len(made) < 50
    async with folder.running() as retriever:
        assert await seen(retriever) == {"leave.md", "hr/pay.md"}


async def test_after_the_end(folder: Folder) -> None:
    async with folder.running() as retriever:
        pass
    await retriever.aclose()
    assert (retriever.state, retriever.detail, repr(retriever)) == ("down", "stopped", "FolderRetriever('docs', down)")
    assert await refused(retriever) == "unavailable"
    with pytest.raises(RetrieverError):
        await retriever.changed("leave.md", version=None, deleted=True)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
