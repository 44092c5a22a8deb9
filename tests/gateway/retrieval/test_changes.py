"""Changes that a retriever finds by itself: what is stored of them goes, in the background, and is on record."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cache.exact import ExactCache
from cache.match import Match
from cache.stores.base import StoreUnavailable
from cache.stores.memory import MemoryStore
from gateway.api.webhooks import REMEMBERED, Deliveries
from gateway.config.load import parse_config
from gateway.retrieval import changes as module
from gateway.retrieval.changes import BATCH, BATCH_CHARACTERS, Change, Changes, first_batch
from gateway.retrieval.labels import labels
from gateway.retrieval.managed import Managed
from gateway.retrieval.signature import TOLERANCE
from gateway.semantics import Semantics
from gateway.state import State
from tests.contract.stores import START, Clock, make_entry
from tests.support.embedders import Unready
from tests.support.retrievers import Shelf

Json = dict[str, Any]
MIB = 2**20
CONFIG = parse_config(
    """
backends: {fake: {kind: remote, base_url: "http://127.0.0.1:9/v1"}}
models: {"*": fake}
retrievers:
  handbook: {kind: http, url: "http://127.0.0.1:9/", tenants: [acme]}
  shared: {kind: http, url: "http://127.0.0.1:9/", tenants: [acme, globex]}
""",
    {},
)


class Desk:
    """What `Changes` works with: a cache, an audit log, and two retrievers."""

    def __init__(self, state: State) -> None:
        self.clock = Clock()
        self.state = state
        self.cache = ExactCache(MemoryStore(MIB * 8, now=self.clock), max_entry=MIB)
        self.semantics = Semantics(self.cache, self.clock, Unready)
        self.retrievers = {n: Managed(c, Shelf(name=n), None) for n, c in CONFIG.retrievers.items()}
        self.changes = Changes(
            self.cache, self.semantics, self.clock, state=lambda: self.state, retrievers=lambda: self.retrievers
        )

    async def keep(self, *documents: str, retriever: str = "handbook") -> None:
        for document in documents:
            entry = make_entry(f"{retriever}/{document}", documents=labels(retriever, [(document, "1")]))
            assert await self.cache.put(entry, since=self.cache.mark()) is None

    async def kept(self) -> int:
        return len(await self.cache.entries(Match(), limit=10_000))

    async def lines(self) -> list[Json]:
        return await self.state.lines(tenant=None, limit=1000)

    async def done(self) -> None:
        await self.changes.aclose()


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(await State.open(None))
    if request.param == "sqlite":
        await desk.cache.open(f"sqlite:///{tmp_path}/cache.db", max_bytes=MIB * 64, now=desk.clock)
    yield desk
    await desk.changes.aclose()
    await desk.cache.aclose()
    await desk.state.aclose()


async def test_what_a_retriever_finds_changed_goes_and_is_on_record(desk: Desk) -> None:
    await desk.keep("année 1.md", "b.md", "c.md")
    await desk.keep("b.md", retriever="shared")
    desk.changes.forget("handbook", ["année 1.md", "b.md", "new.md"])
    await desk.done()
    assert await desk.kept() == 2
    (line,) = await desk.lines()
    assert line == {
        "number": 1,
        "at": START,
        "tenant": "acme",
        "user": "retriever:handbook",
        "role": "gateway",
        "action": "documents_changed",
        "details": {"retriever": "handbook", "documents": [{"id": "année 1.md"}, {"id": "b.md"}, {"id": "new.md"}]},
        "request_id": "",
        "result": {"purged": 2},
    }
    assert desk.semantics._purged.is_set()


async def test_whose_line_it_is(desk: Desk) -> None:
    for name in ("shared", "handbook", "removed"):
        desk.changes.forget(name, ["a.md"])
    await desk.done()
    assert {line["user"]: line["tenant"] for line in await desk.lines()} == {
        "retriever:shared": "",
        "retriever:handbook": "acme",
        "retriever:removed": "",
    }


async def test_nothing_is_no_change(desk: Desk) -> None:
    desk.changes.forget("handbook", [])
    await desk.done()
    assert await desk.lines() == []


async def test_many_documents_go_in_batches_each_once(desk: Desk) -> None:
    names = [f"{n}.md" for n in range(2 * BATCH + 10)]
    await desk.keep(*names)
    for _ in range(3):
        desk.changes.forget("handbook", names)  # told again before anything was done
    await desk.done()
    assert await desk.kept() == 0
    lines = await desk.lines()
    assert [len(line["details"]["documents"]) for line in lines] == [10, BATCH, BATCH]
    assert sum(line["result"]["purged"] for line in lines) == len(names)


async def test_what_is_told_while_others_are_removed_goes_too(desk: Desk) -> None:
    await desk.keep("a.md", "b.md")
    desk.changes.forget("handbook", ["a.md"])
    for _ in range(3):
        await asyncio.sleep(0)
    desk.changes.forget("handbook", ["b.md"])
    await desk.done()
    await desk.keep("c.md")
    desk.changes.forget("handbook", ["c.md"])  # also after all was done
    await desk.done()
    assert await desk.kept() == 0
    assert len(await desk.lines()) == 3


async def test_what_is_being_made_meanwhile_is_not_stored(desk: Desk) -> None:
    mark = desk.cache.mark()
    desk.changes.forget("handbook", ["a.md"])
    await desk.done()
    entry = make_entry("a", documents=labels("handbook", [("a.md", "1")]))
    assert await desk.cache.put(entry, since=mark) == "purged_meanwhile"


async def test_a_store_that_is_down_is_on_record_and_gives_nothing_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.keep("a.md", "b.md")

    async def down(*_: object, **__: object) -> int:
        raise StoreUnavailable("no answer in time")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(desk.cache.front if desk.cache._store is None else desk.cache._store, "purge", down)
        desk.changes.forget("handbook", ["a.md"])
        await desk.done()
    assert [line["result"] for line in await desk.lines()] == [{"error": "store_unavailable"}]
    assert "warning" in [entry["log_level"] for entry in logs]
    if desk.cache._store is not None:
        assert await desk.cache.get(make_entry("handbook/a.md").key) is None
    desk.changes.forget("handbook", ["b.md"])  # it goes on
    await desk.done()
    assert (await desk.lines())[0]["result"] == {"purged": 1}


async def test_without_an_audit_log_documents_go_all_the_same(desk: Desk) -> None:
    await desk.keep("a.md")
    await desk.state.aclose()
    with capture_logs() as logs:
        desk.changes.forget("handbook", ["a.md"])
        await desk.done()
    assert await desk.kept() == 0
    assert "an audit line could not be written" in [entry["event"] for entry in logs]


async def test_a_name_that_no_label_can_have_harms_nobody_else(desk: Desk) -> None:
    """A file name that is no Unicode: nothing can be stored of it."""
    await desk.keep("a.md")
    with capture_logs() as logs:
        desk.changes.forget("shared", ["bad\udc80.md"])
        desk.changes.forget("handbook", ["a.md"])
        await desk.done()
    assert await desk.kept() == 0
    assert "unexpected error" in [entry["event"] for entry in logs]


async def test_an_end_does_not_wait_for_ever(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.01)

    async def hangs(*_: object, **__: object) -> int:
        await asyncio.sleep(60)
        return 0

    monkeypatch.setattr(desk.cache, "purge", hangs)
    desk.changes.forget("handbook", ["a.md"])
    async with asyncio.timeout(5):
        await desk.changes.aclose()
        await desk.changes.aclose()


async def test_a_retriever_is_told_before_anything_is_removed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.keep("a.md")
    seen: list[int] = []

    async def changed(document: str, *, version: str | None, deleted: bool) -> None:
        seen.append(await desk.kept())

    shelf = cast(Shelf, desk.retrievers["handbook"].retriever)
    monkeypatch.setattr(shelf, "changed", changed)
    change = [Change("a.md", version="2"), Change("b.md", deleted=True)]
    assert await desk.changes.announce(desk.retrievers["handbook"], change) == 1
    assert seen == [1, 1]
    assert desk.semantics._purged.is_set()


async def test_what_a_retriever_says_of_a_change_that_it_was_told_of_is_counted_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.keep("a.md", "b.md")
    handbook = desk.retrievers["handbook"]

    async def changed(document: str, *, version: str | None, deleted: bool) -> None:
        desk.changes.forget("handbook", ["a.md", "b.md"])
        await asyncio.sleep(0.02)
        if version == "broken":
            raise ZeroDivisionError

    monkeypatch.setattr(cast(Shelf, handbook.retriever), "changed", changed)
    assert await desk.changes.announce(handbook, [Change("a.md", deleted=True)]) == 1
    await desk.done()
    assert [line["details"]["documents"] for line in await desk.lines()] == [[{"id": "b.md"}]]
    # What goes wrong in a way that nobody foresaw leaves nothing behind either.
    await desk.keep("a.md")
    with pytest.raises(ZeroDivisionError):
        await desk.changes.announce(handbook, [Change("a.md", version="broken")])
    await desk.done()
    assert await desk.kept() == 0


@given(st.lists(st.text(max_size=BATCH_CHARACTERS + 10), max_size=20), st.integers(0, 2 * BATCH))
def test_batches_take_all_in_order_and_are_bounded(long: list[str], short: int) -> None:
    names = [*long, *(f"{n}" for n in range(short))]
    left, batches = list(names), []
    while left:
        batches.append(first_batch(left))
        assert batches[-1]
        del left[: len(batches[-1])]
    assert [name for batch in batches for name in batch] == names
    for batch in batches:
        assert len(batch) <= BATCH
        assert len(batch) == 1 or sum(map(len, batch)) <= BATCH_CHARACTERS


# Messages that come twice


async def act_once(deliveries: Deliveries, ids: Iterable[str], done: list[str]) -> None:
    for id in ids:

        async def act(id: str = id) -> int:
            done.append(id)
            return 1

        assert await deliveries.once(("handbook", id.encode()), act) == 1


async def test_messages_are_remembered_while_they_could_come_again_and_not_without_bound() -> None:
    clock, done = Clock(), cast(list[str], [])
    deliveries = Deliveries(clock)
    await act_once(deliveries, ["first", "first"], done)
    clock.time += 2 * TOLERANCE
    await act_once(deliveries, ["first", "second", "first"], done)
    assert done == ["first", "second"]
    clock.time += 1
    await act_once(deliveries, ["third"], done)
    assert ("handbook", b"first") not in deliveries._done
    await act_once(deliveries, map(str, range(REMEMBERED)), done)
    assert len(deliveries._done) == REMEMBERED
    assert ("handbook", b"third") not in deliveries._done


async def test_what_failed_is_done_again() -> None:
    deliveries = Deliveries(Clock())
    calls = SimpleNamespace(count=0)

    async def act() -> int:
        calls.count += 1
        await asyncio.sleep(0)
        if calls.count == 1:
            raise StoreUnavailable("down")
        return 7

    both = [deliveries.once(("handbook", b"1"), act) for _ in range(2)]
    assert [type(e) for e in await asyncio.gather(*both, return_exceptions=True)] == [StoreUnavailable] * 2
    assert [await deliveries.once(("handbook", b"1"), act) for _ in range(2)] == [7, 7]
    assert calls.count == 2
