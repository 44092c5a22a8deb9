"""Looking many elements up: few round trips, in a bounded time, and what the store cannot give is a miss."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from cache.entry import Entry
from cache.exact import ExactCache
from cache.stores.base import StoreUnavailable
from cache.stores.memory import MemoryStore
from gateway.embeddings.lookup import GROUP, TIME, slots
from tests.contract.stores import Clock, key_of, make_entry

MIB = 2**20


class Behind(MemoryStore):
    """A store that counts what it is asked, takes `pause` seconds for each answer, and may be dead."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(MIB, now=clock)
        self.gets = self.listings = 0
        self.pause = 0.0
        self.dead = False

    async def get(self, key: bytes) -> Entry | None:
        self.gets += 1
        await self._work()
        return await super().get(key)

    async def known(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        self.listings += 1
        await self._work()
        return await super().known(keys)

    async def _work(self) -> None:
        await asyncio.sleep(self.pause)
        if self.dead:
            raise StoreUnavailable("gone")


@pytest.fixture
async def both(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ExactCache, Behind]]:
    clock = Clock()
    store = Behind(clock)

    async def open_store(url: str, **settings: object) -> Behind:
        return store

    monkeypatch.setattr("cache.exact.open_store", open_store)
    cache = ExactCache(MemoryStore(MIB, now=clock), max_entry=1000)
    await cache.open("behind://", max_bytes=MIB, now=clock)
    yield cache, store
    await cache.aclose()


def keys_of(count: int) -> list[bytes]:
    return [key_of(str(i)) for i in range(count)]


@pytest.mark.parametrize("count", [1, GROUP, 3 * GROUP + 5])
async def test_what_is_kept_is_found_and_nothing_else(both: tuple[ExactCache, Behind], count: int) -> None:
    cache, store = both
    for i in range(0, count, 2):
        await store.put(make_entry(str(i)))
    keys = keys_of(count)
    found = await slots(cache, keys, None)
    assert {key: slot.entry.key for key, slot in found.items()} == {key: key for key in keys[::2]}
    if count > GROUP:  # of many it is asked first which are there at all
        assert (store.listings, store.gets) == (1, len(found))
    else:
        assert (store.listings, store.gets) == (0, count)


async def test_what_is_in_memory_is_asked_of_nobody(both: tuple[ExactCache, Behind]) -> None:
    cache, store = both
    for name in ("0", "1"):
        await cache.put(make_entry(name), since=cache.mark())
    assert len(await slots(cache, keys_of(2), 0.0)) == 2
    assert (store.listings, store.gets) == (0, 0)


@pytest.mark.parametrize("count", [GROUP, 3 * GROUP])
async def test_many_are_read_side_by_side(both: tuple[ExactCache, Behind], count: int) -> None:
    cache, store = both
    for i in range(count):
        await store.put(make_entry(str(i)))
    store.pause = 0.02
    begun = time.monotonic()
    assert len(await slots(cache, keys_of(count), None)) == count
    assert time.monotonic() - begun < count * store.pause / 2


@pytest.mark.parametrize("count", [1, GROUP + 1])
@pytest.mark.parametrize("seconds", [None, 0.05, 0.0, -1.0])
async def test_a_slow_store_costs_a_bounded_time(
    both: tuple[ExactCache, Behind], count: int, seconds: float | None
) -> None:
    cache, store = both
    await store.put(make_entry("0"))
    store.pause = 5
    begun = time.monotonic()
    assert await slots(cache, keys_of(count), seconds) == {}
    assert time.monotonic() - begun < (TIME if seconds is None else max(0.0, seconds)) + 0.5


@pytest.mark.parametrize("count", [1, GROUP + 1])
async def test_a_dead_store_costs_misses_and_memory_answers_all_the_same(
    both: tuple[ExactCache, Behind], count: int
) -> None:
    cache, store = both
    await cache.put(make_entry("0"), since=cache.mark())
    store.dead = True
    assert (await slots(cache, keys_of(1 + count), None)).keys() == {key_of("0")}
