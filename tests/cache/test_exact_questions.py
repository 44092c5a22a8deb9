"""Questions and known keys through the exact tier: the store's where there is one, the front's where there is none."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from cache.exact import ExactCache
from cache.match import Match
from cache.stores.base import StoreUnavailable
from cache.stores.memory import MemoryStore
from tests.contract.stores import START, Clock, key_of, make_entry, make_question

MIB = 2**20
ALL = [key_of(name) for name in "abc"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


async def open_disk(path: Path, clock: Clock) -> ExactCache:
    cache = ExactCache(MemoryStore(MIB, now=clock), max_entry=1000)
    await cache.open(f"sqlite:///{path}", max_bytes=64 * MIB, now=clock)
    return cache


@pytest.fixture
async def disk(clock: Clock, path: Path) -> AsyncIterator[ExactCache]:
    cache = await open_disk(path, clock)
    yield cache
    await cache.aclose()


async def put(cache: ExactCache, name: str, **changes: object) -> None:
    assert await cache.put(make_entry(name, **changes), since=cache.mark()) is None


async def test_questions_are_there_after_a_restart(path: Path, clock: Clock) -> None:
    first = await open_disk(path, clock)
    await put(first, "a")
    await first.note(make_question("a"))
    await first.note(make_question("b"))
    await first.aclose()
    second = await open_disk(path, clock)
    try:
        assert await second.questions(after=b"", limit=9) == [make_question("a")]
        assert await second.questions(after=key_of("a"), limit=9) == []
    finally:
        await second.aclose()


async def test_the_front_alone_knows_its_keys_and_keeps_no_questions(clock: Clock) -> None:
    cache = ExactCache(MemoryStore(MIB, now=clock), max_entry=1000)
    await put(cache, "a", keep_until=START + 60)
    await put(cache, "b")
    await cache.note(make_question("a"))
    assert await cache.questions(after=b"", limit=9) == []
    assert set(await cache.known(ALL)) == set(ALL[:2])
    clock.time += 60
    assert set(await cache.known(ALL)) == {key_of("b")}
    await cache.aclose()


async def test_the_store_knows_what_the_front_has_no_room_for(disk: ExactCache) -> None:
    await put(disk, "a")
    await put(disk, "b")
    disk.front.discard(key_of("a"))
    assert set(await disk.known(ALL)) == set(ALL[:2])
    await disk.purge(Match(key=key_of("a")))
    assert set(await disk.known(ALL)) == {key_of("b")}


async def test_a_dead_store_loses_a_note_and_says_so_elsewhere(disk: ExactCache, path: Path) -> None:
    await put(disk, "a")
    await disk.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as neighbour:
        neighbour.execute("BEGIN IMMEDIATE")
        await disk.note(make_question("a"))
        with pytest.raises(StoreUnavailable):
            await disk.questions(after=b"", limit=9)
        assert set(await disk.known(ALL)) == {key_of("a")}, "readers do not wait for writers"
    await disk.aclose()
    await disk.note(make_question("a"))
    for call in (disk.questions(after=b"", limit=9), disk.known(ALL)):
        with pytest.raises(StoreUnavailable):
            await call
