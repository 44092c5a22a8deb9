"""A folder of real files as a retriever: what is found, what follows from a change, and what a restart keeps."""

import asyncio
import shutil
from math import inf
from pathlib import Path

import pytest

from backends.retrievers import RetrieverError
from backends.retrievers.folder.retriever import FolderRetriever
from tests.backends.retrievers.folder.folders import Folder, another_generation, best, search, seen, until

LEAVE = "# Leave\n\nTwenty days of holiday.\n\n# Sickness\n\nCall your manager before noon.\n"
PAY = "# Salaries\n\nPaid on the last day of the month.\n"
RULES = "default: []\nrules:\n  - {path: 'hr/**', permissions: [hr]}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.write("leave.md", LEAVE)
    folder.write("hr/pay.md", PAY)
    return folder


async def test_the_best_pieces_first(folder: Folder) -> None:
    folder.write("notes.txt", "Nothing of interest.")
    async with folder.running() as retriever:
        found = await search(retriever, "holiday twenty days")
        assert (found[0].document, found[0].position, found[0].title) == ("leave.md", 0, "Leave")
        assert found[0].text == "Twenty days of holiday."
        assert found[0].score > found[1].score > found[2].score
        assert [one.title for one in await search(retriever, "nothing interest", top_k=1)] == ["notes.txt"]
        assert len({one.version for one in found if one.document == "leave.md"}) == 1
        assert (retriever.state, retriever.detail) == ("ready", "3 documents, 4 pieces")
        assert retriever.lasting == inf
        assert sorted(folder.embedded())[0] == "Leave\nTwenty days of holiday."


async def test_names_that_are_not_plain(folder: Folder) -> None:
    names = ['a, b@1 "100%".md', "line\nbreak.md", "Ordner/Größe.md"]
    for name in names:
        folder.write(name, f"# {name.split('.')[0]}\n\nText.")
    async with folder.running() as retriever:
        assert await seen(retriever) == {"leave.md", "hr/pay.md", *names}


async def test_who_may_see_what(folder: Folder) -> None:
    folder.rules(RULES)
    async with folder.running() as retriever:
        assert await seen(retriever) == {"leave.md"}
        assert await seen(retriever, "hr", "legal") == {"leave.md", "hr/pay.md"}
        everything = await retriever.search("salaries paid", top_k=1, permissions=None, deadline=5)
        assert everything[0].document == "hr/pay.md"
        assert retriever.effective(frozenset({"hr", "legal"})) == {"hr"}


async def test_nothing_to_see_asks_no_model(folder: Folder) -> None:
    folder.rules("default: [all]")
    async with folder.running() as retriever:
        folder.words.fails = "no"
        assert await seen(retriever, "other") == set()


async def test_of_a_thousand_files_only_what_has_changed_is_embedded(folder: Folder) -> None:
    text = "# One\n\n{0} one.\n\n# Two\n\n{0} two.\n\n# Three\n\n{0} three.\n"
    for number in range(1_000):
        folder.write(f"{number // 100}/{number}.md", text.format(f"file{number}"))
    async with folder.running() as retriever:
        assert len(folder.embedded()) == 3_003
        assert max(folder.words.calls) <= 16
        async with another_generation(retriever):
            path = folder.root / "5" / "555.md"
            path.write_text(path.read_text().replace("two.", "something else."))
        assert folder.embedded() == ["Two\nfile555 something else."]
        assert folder.told == [["5/555.md"]]
        assert (await search(retriever, "Two file555 something else."))[0].document == "5/555.md"
        generation = retriever.generation
    folder.embedded()
    async with folder.running() as retriever:
        assert folder.embedded() == []
        assert retriever.generation == generation
        assert retriever.detail == "1,002 documents, 3,003 pieces"
        assert await best(retriever, "Three file777 three.") == "7/777.md"


async def test_a_new_a_changed_and_a_deleted_document(folder: Folder) -> None:
    async with folder.running() as retriever:
        async with another_generation(retriever):
            folder.write("new.md", "# Parking\n\nBehind the house.")
        assert await best(retriever, "parking behind the house") == "new.md"
        assert folder.told == []
        async with another_generation(retriever):
            folder.write("new.md", "# Parking\n\nUnder the bridge.")
        assert (await search(retriever, "parking", top_k=1))[0].text == "Under the bridge."
        assert folder.told == [["new.md"]]
        async with another_generation(retriever):
            (folder.root / "new.md").unlink()
        assert await seen(retriever) == {"leave.md", "hr/pay.md"}
        assert folder.told == [["new.md"], ["new.md"]]


async def test_a_copied_and_a_moved_file_are_not_embedded_again(folder: Folder) -> None:
    async with folder.running() as retriever:
        folder.embedded()
        async with another_generation(retriever):
            shutil.copy(folder.root / "leave.md", folder.root / "copy.md")
        assert await seen(retriever) == {"leave.md", "copy.md", "hr/pay.md"}
        (folder.root / "hr" / "pay.md").rename(folder.root / "hr" / "moved.md")
        await until(lambda: folder.told and retriever.detail == "3 documents, 5 pieces")
        assert await seen(retriever) == {"leave.md", "copy.md", "hr/moved.md"}
        assert set(folder.embedded()) == {"anything"}


async def test_a_file_that_was_only_touched_changes_nothing(folder: Folder) -> None:
    async with folder.running() as retriever:
        generation = retriever.generation
        folder.write("leave.md", LEAVE)
        folder.write("other.md", "So that there is something to wait for.")
        await until(lambda: retriever.generation != generation)
        (folder.root / "other.md").unlink()
        await until(lambda: retriever.generation == generation)  # back again
        assert folder.told == [["other.md"]]


async def test_what_happened_while_it_was_down_is_honoured_before_the_first_search(folder: Folder) -> None:
    folder.rules(RULES)
    folder.write("old.md", "# Old\n\nOut of date.")
    folder.write("secret.md", "# Secret\n\nNot for all.")
    folder.write("edited.md", "# Edited\n\nBefore.")
    async with folder.running() as retriever:
        assert await seen(retriever) == {"leave.md", "old.md", "secret.md", "edited.md"}
    (folder.root / "old.md").unlink()
    folder.write("edited.md", "# Edited\n\nAfter.")
    folder.rules(RULES + "  - {path: secret.md, permissions: [board]}\n")
    folder.embedded()
    async with folder.running(ready=False) as retriever:
        reasons: set[str] = set()
        found: set[str] = set()
        while not found:
            try:
                found = await seen(retriever)
            except RetrieverError as error:
                reasons.add(error.reason)
            await asyncio.sleep(0)
        assert reasons == {"starting"}
        assert found == {"leave.md", "edited.md"}
        assert folder.told == [["edited.md", "old.md", "secret.md"]]
        assert folder.embedded() == ["Edited\nAfter.", "anything"]


async def test_generations_of_different_things_differ(folder: Folder) -> None:
    folder.rules(RULES)
    async with folder.running() as retriever:
        first = retriever.generation
        async with another_generation(retriever):
            folder.rules("default: [hr]")
        second = retriever.generation
        async with another_generation(retriever):
            folder.rules(RULES)
        assert retriever.generation == first != second
        assert folder.told == [["leave.md"], ["leave.md"]]


async def test_rules_that_name_others_but_mean_the_same_documents_change_no_generation(folder: Folder) -> None:
    folder.rules(RULES)
    async with folder.running() as retriever:
        generation = retriever.generation
        folder.rules(RULES + "  - {path: 'no/such/**', permissions: [legal]}\n")
        await until(lambda: retriever.effective(frozenset({"legal"})))
        assert retriever.generation == generation
        assert folder.told == []


async def test_the_same_without_a_database(folder: Folder) -> None:
    folder.database = None
    async with folder.running() as retriever:
        generation = retriever.generation
        folder.embedded()
        async with another_generation(retriever):
            folder.write("leave.md", LEAVE.replace("noon", "midnight"))
        assert folder.embedded() == ["Sickness\nCall your manager before midnight."]
    folder.write("leave.md", LEAVE)
    async with folder.running() as retriever:
        assert len(folder.embedded()) == 3
        assert retriever.generation == generation


async def test_searches_never_see_a_mixture(folder: Folder) -> None:
    """Every version of the three files has one word, and all that is found at once must agree on it."""
    (folder.root / "leave.md").unlink()
    (folder.root / "hr/pay.md").unlink()
    staging = folder.root / ".staging"
    for number in range(3):
        folder.write(f"{number}.md", f"# Part {number}\n\nversion0")
    words, versions, stop = set(), set(), asyncio.Event()

    async def look(retriever: FolderRetriever) -> None:
        while not stop.is_set():
            generation = retriever.generation
            found = await search(retriever, "part", top_k=9)
            if generation == retriever.generation:
                words.add(tuple(one.text for one in sorted(found, key=lambda one: one.document)))
                versions.add((generation, tuple(sorted(one.version for one in found))))

    async with folder.running() as retriever:
        looking = [asyncio.create_task(look(retriever)) for _ in range(3)]
        for version in range(1, 4):
            async with another_generation(retriever):
                for number in range(3):
                    staging.mkdir(exist_ok=True)
                    (staging / "x").write_text(f"# Part {number}\n\nversion{version}")
                    (staging / "x").rename(folder.root / f"{number}.md")
            await asyncio.sleep(0.02)
        stop.set()
        await asyncio.gather(*looking)
    assert words == {(f"version{version}",) * 3 for version in range(4)}
    assert len(versions) == len({generation for generation, _ in versions}) == 4
