"""Erased documents of services: one list for each name, whichever retriever has it, and the same on the disk."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.load import parse_config
from gateway.retrieval import retrievers as module
from gateway.retrieval.changes import Change
from gateway.retrieval.managed import Managed
from gateway.retrieval.retrievers import Retrievers
from gateway.state import State
from tests.gateway.retrieval.test_changes import Desk
from tests.gateway.retrieval.test_retrievers import config, search, unheard
from tests.support.embedders import Unready
from tests.support.retrievers import Shelf, serving

HEADER = "headers: {x-a: b}"


@pytest.fixture
async def all_of_them(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Retrievers]:
    monkeypatch.setattr(module, "RETIRE_AFTER", 60.0)
    retrievers = unheard(Unready)
    yield retrievers
    await retrievers.aclose()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(await State.open(tmp_path / "cache.state.db"))
    yield desk
    await desk.changes.aclose()
    await desk.cache.aclose()
    await desk.state.aclose()


async def test_what_was_known_before_is_given_to_each_by_its_name(all_of_them: Retrievers) -> None:
    with serving(Shelf()) as url:
        all_of_them.recall([("one", "leave.md"), ("store", "a"), ("one", "pay.md"), ("nowhere", "leave.md")])
        found = await all_of_them.apply(config(one=url, two=url))
        assert {name: list(all_of_them._gone[name]) for name in found} == {"one": ["leave.md", "pay.md"], "two": []}
        assert list(all_of_them._gone["nowhere"]) == ["leave.md"], "it may come with a reload"


async def test_a_request_that_took_the_old_one_erases_for_the_new_one_as_well(all_of_them: Retrievers) -> None:
    shelf = Shelf()
    shelf.put("leave.md", "thirty days of leave")
    with serving(shelf) as url:
        old = (await all_of_them.apply(config(one=url)))["one"]
        new = (await all_of_them.apply(config(one=f"{url} {HEADER}")))["one"]
        assert new is not old
        assert await search(new) == ["leave.md"]
        await old.retriever.changed("leave.md", version=None, deleted=True)
        assert await search(new) == await search(old) == []


async def test_a_vector_store_is_given_its_list(all_of_them: Retrievers) -> None:
    text = 'auth: {required: false}\nstore: {url: "memory://"}\nretrievers: {s: {kind: openai, URL, store: vs}}'
    all_of_them.recall([("s", "a")])
    for url in ("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v2"):
        (managed,) = (await all_of_them.apply(parse_config(text.replace("URL", f'base_url: "{url}"'), {}))).values()
        await managed.retriever.changed(url, version=None, deleted=True)
    assert list(all_of_them._gone["s"]) == ["a", "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v2"]


async def test_what_is_said_at_once_is_written_in_the_order_in_which_it_was_heeded(
    desk: Desk, all_of_them: Retrievers
) -> None:
    wiki = (await all_of_them.apply(config(wiki="http://127.0.0.1:9/")))["wiki"]
    told = [Change(f"{n % 3}", None if n % 2 else f"{n}", deleted=n % 2 == 1) for n in range(60)]
    told += [Change("a", deleted=True), Change("b", deleted=True), Change("a"), Change("b", version="1")]
    await asyncio.gather(*(desk.changes.announce(wiki, [change]) for change in told))
    assert await desk.state.erased() == [("wiki", document) for document in all_of_them._gone["wiki"]]
    assert "a" in all_of_them._gone["wiki"]


async def test_a_folder_remembers_by_itself(desk: Desk) -> None:
    settings = parse_config("retrievers: {files: {kind: folder, path: docs}}", {}).retrievers["files"]
    files = Managed(settings, Shelf(name="files"), None)
    assert await desk.changes.announce(files, [Change("a.md", deleted=True)]) == 0
    assert await desk.state.erased() == []
