"""Answers that come, and purges, while the store is being read. A look-up that missed the answer would make a second
upstream call; one that missed the purge would bring back what was to go."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cache.entry import Entry
from cache.exact import ExactCache
from cache.match import Match
from cache.stores.base import StoreUnavailable
from cache.stores.memory import MemoryStore
from tests.contract.stores import Clock, key_of, make_entry

MIB = 2**20
EVERYTHING = Match()


class SlowStore(MemoryStore):
    """A store whose every `get` takes what is there, and gives it once `go` is set; or fails then."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(MIB, now=clock)
        self.go = asyncio.Event()
        self.fails = False

    async def get(self, key: bytes) -> Entry | None:
        found = await super().get(key)
        await self.go.wait()
        if self.fails:
            raise StoreUnavailable("no answer in time")
        return found


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ExactCache, SlowStore]]:
    clock = Clock()
    store = SlowStore(clock)

    async def open_slow(url: str, **settings: object) -> SlowStore:
        return store

    monkeypatch.setattr("cache.exact.open_store", open_slow)
    cache = ExactCache(MemoryStore(MIB, now=clock), max_entry=1000)
    await cache.open("slow://", max_bytes=MIB, now=clock)
    yield cache, store
    await cache.aclose()


async def put(cache: ExactCache, body: bytes = b"old") -> None:
    assert await cache.put(make_entry(body=body), since=cache.mark()) is None


async def put_behind(cache: ExactCache) -> None:
    """An answer that is in the store only, as after a restart or an eviction."""
    await put(cache)
    cache.front.discard(key_of("a"))


@pytest.mark.parametrize("before", [True, False], ids=["an old one in the store", "nothing in the store"])
@pytest.mark.parametrize("fails", [False, True], ids=["the store answers", "the store fails"])
async def test_an_answer_that_comes_during_the_look_up_is_found(
    slow: tuple[ExactCache, SlowStore], before: bool, fails: bool
) -> None:
    cache, store = slow
    if before:
        await put_behind(cache)
    reading = asyncio.create_task(cache.get(key_of("a")))
    await asyncio.sleep(0)
    await put(cache, b"new")
    store.fails = fails
    store.go.set()
    slot = await reading
    assert slot is not None
    assert slot is cache.front.peek(key_of("a"))
    assert slot.entry.body == b"new"


@pytest.mark.parametrize("fails", [False, True])
async def test_what_comes_after_a_purge_during_the_look_up_is_found_too(
    slow: tuple[ExactCache, SlowStore], fails: bool
) -> None:
    cache, store = slow
    await put_behind(cache)
    reading = asyncio.create_task(cache.get(key_of("a")))
    await asyncio.sleep(0)
    await cache.purge(EVERYTHING)
    await put(cache, b"new")
    store.fails = fails
    store.go.set()
    slot = await reading
    assert slot is not None
    assert slot.entry.body == b"new"


@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_purged_during_the_look_up_is_not(slow: tuple[ExactCache, SlowStore], fails: bool) -> None:
    cache, store = slow
    await put_behind(cache)
    reading = asyncio.create_task(cache.get(key_of("a")))
    await asyncio.sleep(0)
    await cache.purge(EVERYTHING)
    store.fails = fails
    store.go.set()
    assert await reading is None
    assert cache.front.peek(key_of("a")) is None


async def test_two_look_ups_at_a_time_share_one_place_in_front(slow: tuple[ExactCache, SlowStore]) -> None:
    """A second one that put the entry there anew would throw away what the first has rendered."""
    cache, store = slow
    await put_behind(cache)
    reading = [asyncio.create_task(cache.get(key_of("a"))) for _ in range(3)]
    await asyncio.sleep(0)
    store.go.set()
    slots = await asyncio.gather(*reading)
    assert slots[0] is not None
    assert slots == [slots[0]] * 3
    assert cache.front.peek(key_of("a")) is slots[0]
