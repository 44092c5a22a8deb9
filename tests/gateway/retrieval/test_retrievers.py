"""Retrievers over a reload: kept where nothing about them changed, closed when the last search on them has ended."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest

from backends.retrievers import EmbedsError, RetrieverError
from gateway.config import Config
from gateway.config.load import parse_config
from gateway.embedders import MakeEmbedder, SharedEmbedders
from gateway.retrieval import retrievers as module
from gateway.retrieval.managed import Managed
from gateway.retrieval.retrievers import Retrievers, documents_path
from tests.support.embedders import Placed, Unready
from tests.support.retrievers import Shelf, serving

SOON = 0.02


def config(**retrievers: str) -> Config:
    """By name: a URL, or a URL and more settings."""
    lines = ["auth: {required: false}", 'store: {url: "memory://"}', "retrievers:" if retrievers else ""]
    for name, settings in retrievers.items():
        url, _, more = settings.partition(" ")
        lines.append(f'  {name}: {{kind: http, url: "{url}"{", " + more if more else ""}}}')
    return parse_config("\n".join(lines), {})


def unheard(embedders: MakeEmbedder) -> Retrievers:
    """Whom nobody listens to."""
    return Retrievers(embedders, lambda name, documents: None, nullcontext)


@pytest.fixture
def shelf() -> Shelf:
    shelf = Shelf()
    shelf.put("leave.md", "thirty days of leave")
    return shelf


@pytest.fixture
def url(shelf: Shelf) -> Iterator[str]:
    with serving(shelf) as url:
        yield url


@pytest.fixture
async def all_of_them(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Retrievers]:
    monkeypatch.setattr(module, "RETIRE_AFTER", SOON)
    retrievers = unheard(Unready)
    yield retrievers
    await retrievers.aclose()


class _Gate(asyncio.Event):
    """For a service in another thread."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = False

    def open(self) -> None:
        self._opened = True

    async def wait(self) -> Literal[True]:
        while not self._opened:  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(0.005)
        return True


async def search(managed: Managed, query: str = "leave") -> list[str]:
    found = await managed.search(query, top_k=4, permissions=frozenset(), deadline=5.0)
    return [piece.document for piece in found]


async def closed(managed: Managed) -> bool:
    """Whether it was closed within a while."""
    for _ in range(100):
        if managed.retriever.detail == "stopped":
            return True
        await asyncio.sleep(0.01)
    return False


async def test_they_are_there_by_name(url: str, all_of_them: Retrievers) -> None:
    found = await all_of_them.apply(config(one=url, two=url))
    assert found.keys() == {"one", "two"} == set(all_of_them.names())
    assert all_of_them.get("one") is found["one"]
    assert all_of_them.get("three") is None
    assert {m.name for m in all_of_them} == {"one", "two"}
    assert await search(found["one"]) == ["leave.md"]


@pytest.mark.parametrize("more", ["tenants: [acme]", "on_error: answer_without", "webhook_secret: a plain word"])
async def test_who_may_ask_is_no_reason_for_another_one(url: str, all_of_them: Retrievers, more: str) -> None:
    """What it knows of deleted documents, and its generation, stay with it."""
    first = (await all_of_them.apply(config(one=url)))["one"]
    await first.retriever.changed("leave.md", version=None, deleted=True)
    generation = first.retriever.generation
    again = (await all_of_them.apply(config(one=f"{url} {more}")))["one"]
    assert again is first
    assert again.retriever.generation == generation
    assert await search(again) == []
    setting = more.partition(":")[0]
    assert getattr(again.config, setting) != getattr(config(one=url).retrievers["one"], setting)


@pytest.mark.parametrize("more", ["headers: {x-a: b}", "method: GET", "id: $.doc", "version: $.version"])
async def test_another_way_to_ask_is_another_one(url: str, all_of_them: Retrievers, more: str) -> None:
    first = (await all_of_them.apply(config(one=url, two=url)))["one"]
    after = await all_of_them.apply(config(one=f"{url} {more}", two=url))
    assert after["one"] is not first
    assert all_of_them.get("one") is after["one"]
    assert after["one"].retriever.generation != first.retriever.generation
    assert await closed(first)
    assert await search(after["two"]) == ["leave.md"], "another one is not touched"


async def test_one_that_is_gone_is_closed(url: str, all_of_them: Retrievers) -> None:
    first = (await all_of_them.apply(config(one=url)))["one"]
    assert await all_of_them.apply(config()) == {}
    assert all_of_them.names() == ()
    assert await closed(first)
    with pytest.raises(RetrieverError) as caught:
        await search(first)
    assert caught.value.reason == "unavailable"


async def test_a_request_that_took_the_old_ones_may_still_search(
    url: str, all_of_them: Retrievers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETIRE_AFTER", 0.3)
    first = (await all_of_them.apply(config(one=url)))["one"]
    await all_of_them.apply(config())
    assert await search(first) == ["leave.md"]


async def test_one_in_use_is_closed_after_its_last_search(shelf: Shelf, url: str, all_of_them: Retrievers) -> None:
    first = (await all_of_them.apply(config(one=url)))["one"]
    await search(first)
    gate = shelf.gate = _Gate()
    asked = len(shelf.searches)
    searching = [asyncio.create_task(search(first)) for _ in range(3)]
    while len(shelf.searches) < asked + 3:  # noqa: ASYNC110  another thread appends
        await asyncio.sleep(0.005)
    await all_of_them.apply(config())
    searching[0].cancel()  # who leaves is no longer waited for
    await asyncio.sleep(10 * SOON)
    assert first.retriever.detail != "stopped"
    gate.open()
    for task in searching[1:]:
        assert await task == ["leave.md"]
    assert await closed(first)


async def test_closing_does_not_wait_for_what_is_retired(
    shelf: Shelf, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETIRE_AFTER", 60.0)
    retrievers = unheard(Unready)
    first = (await retrievers.apply(config(one=url, two=url)))["one"]
    await retrievers.apply(config(two=url))
    async with asyncio.timeout(5):
        await retrievers.aclose()
        await retrievers.aclose()
    assert first.retriever.detail == "stopped"


async def test_what_cannot_be_started_leaves_the_others_running(
    url: str, all_of_them: Retrievers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration is in force as a whole, or not at all."""
    first = (await all_of_them.apply(config(one=url)))["one"]
    begun: list[Managed] = []
    start = Managed.start

    async def fails_on_three(self: Managed) -> None:
        await start(self)
        begun.append(self)
        if self.name == "three":
            raise OSError("no such thing")

    monkeypatch.setattr(Managed, "start", fails_on_three)
    with pytest.raises(OSError, match="no such thing"):
        await all_of_them.apply(config(two=url, three=url, one=f"{url} method: GET"))
    assert all_of_them.get("one") is first
    assert all_of_them.names() == ("one",)
    assert await search(first) == ["leave.md"]
    for managed in begun:
        assert await closed(managed)


@pytest.mark.parametrize(
    ("store", "durable", "expected"),
    [
        ("sqlite:///a/cache.db", None, "a/cache.documents-hand%2Fbook.db"),
        ("memory://", None, None),
        ("memory://", "sqlite:////b/state.db", "/b/state.documents-hand%2Fbook.db"),
        ("redis://h", "sqlite:///state", "state.documents-hand%2Fbook"),
        ("sqlite:///a/cache.db", "memory://", None),
    ],
)
def test_a_folders_database_lies_beside_what_lasts(store: str, durable: str | None, expected: str | None) -> None:
    found = documents_path(store, durable, "hand/book")
    assert found == (None if expected is None else Path(expected))


def test_two_retrievers_never_share_a_database() -> None:
    names: list[Any] = ["a", "A", "a/b", "a%2Fb", "..", ".", "a b", "ä", "a.db"]
    paths = [documents_path("sqlite:///x/cache.db", None, name) for name in names]
    assert len({str(path) for path in paths}) == len(names)
    assert all(path is not None and path.parent == Path("x") for path in paths)


class Counted(Placed):
    def __init__(self, made: list["Counted"]) -> None:
        super().__init__(lambda text: text)
        made.append(self)


def folders(*paths: Path) -> Config:
    lines = [f"  {path.name}: {{kind: folder, path: {path}}}" for path in paths]
    return parse_config("\n".join(['auth: {required: false}\nstore: {url: "memory://"}\nretrievers:', *lines]), {})


async def test_folders_share_one_embedder_which_the_last_of_them_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETIRE_AFTER", SOON)
    made: list[Counted] = []
    retrievers = unheard(SharedEmbedders(lambda config: Counted(made)))
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        path.mkdir()
        (path / "leave.md").write_text(f"Leave of {path.name}.")
    found = await retrievers.apply(folders(*paths))
    for name, managed in found.items():
        async with asyncio.timeout(30):
            while managed.state != "ready":  # noqa: ASYNC110  its state is all that it tells
                await asyncio.sleep(0.01)
        (piece,) = await managed.search("leave", top_k=4, permissions=None, deadline=5.0)
        assert (piece.document, piece.text) == ("leave.md", f"Leave of {name}.")
    assert len(made) == 1
    after = await retrievers.apply(folders(paths[1]))
    assert after["two"] is found["two"]
    assert await closed(found["one"])
    assert not made[0].closed
    await retrievers.aclose()
    assert made[0].closed
    assert len(made) == 1


@pytest.mark.parametrize(
    ("said", "means"),
    [("busy", "busy"), ("deadline", "deadline"), ("starting", "starting"), ("failed", "unavailable")],
)
async def test_what_is_wrong_with_the_model_is_what_is_wrong_with_the_search(said: Any, means: str) -> None:
    embedder = Placed(str)
    embedder.fails = said
    with pytest.raises(EmbedsError) as failed:
        await module.SharedModel(embedder).embed(["a"], deadline=1)
    assert (failed.value.reason, failed.value.too_long) == (means, False)
