"""The exact tier: memory in front, a real SQLite file behind or nothing; and purges that race with everything."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cache.exact import REMEMBERED_PURGES, ExactCache
from cache.match import Match
from cache.stores.base import StoreError, StoreUnavailable
from cache.stores.memory import MemoryStore
from tests.contract.stores import START, Clock, key_of, make_entry

MIB = 2**20
EVERYTHING = Match()
NOTHING = Match(tenant="nobody")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


@pytest.fixture
async def memory(clock: Clock) -> AsyncIterator[ExactCache]:
    """Only the front."""
    cache = ExactCache(MemoryStore(MIB, now=clock), max_entry=1000)
    yield cache
    await cache.aclose()


async def open_disk(path: Path, clock: Clock, *, memory: int = MIB) -> ExactCache:
    cache = ExactCache(MemoryStore(memory, now=clock), max_entry=1000)
    await cache.open(f"sqlite:///{path}", max_bytes=64 * MIB, now=clock)
    return cache


@pytest.fixture
async def disk(clock: Clock, path: Path) -> AsyncIterator[ExactCache]:
    """A SQLite file behind the front."""
    cache = await open_disk(path, clock)
    yield cache
    await cache.aclose()


@pytest.fixture(params=["memory", "disk"])
async def cache(request: pytest.FixtureRequest, clock: Clock, path: Path) -> AsyncIterator[ExactCache]:
    """Once with the front only, once with a file behind it."""
    if request.param == "memory":
        cache = ExactCache(MemoryStore(MIB, now=clock), max_entry=1000)
    else:
        cache = await open_disk(path, clock)
    yield cache
    await cache.aclose()


async def put(cache: ExactCache, name: str = "a", **changes: object) -> None:
    assert await cache.put(make_entry(name, **changes), since=cache.mark()) is None


async def found(cache: ExactCache, name: str = "a") -> bytes | None:
    slot = await cache.get(key_of(name))
    return None if slot is None else slot.entry.body


async def forget_front(cache: ExactCache, name: str = "a") -> None:
    """Let the answer be in the file only, as after a restart or an eviction."""
    await cache.flush()
    cache.front.discard(key_of(name))


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Another process is writing: readers go on, our writer waits."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


# Both set-ups


async def test_what_is_put_is_found(cache: ExactCache) -> None:
    assert await found(cache) is None
    await put(cache)
    assert await found(cache) == make_entry().body
    assert await found(cache, "b") is None


async def test_a_newer_answer_takes_the_place_of_the_older(cache: ExactCache) -> None:
    await put(cache, body=b"old")
    await put(cache, body=b"new")
    assert await found(cache) == b"new"
    await forget_front(cache)
    assert await found(cache) in (b"new", None)


async def test_stale_answers_are_given_out_until_they_are_no_longer_kept(cache: ExactCache, clock: Clock) -> None:
    await put(cache, expires=START + 10, keep_until=START + 20)
    clock.time = START + 19.9
    assert await found(cache) is not None
    clock.time = START + 20
    assert await found(cache) is None


@pytest.mark.parametrize(("size", "why"), [(1000, None), (1001, "too_large")])
async def test_an_answer_over_the_bound_is_not_kept(cache: ExactCache, size: int, why: str | None) -> None:
    assert await cache.put(make_entry(body=b"x" * size), since=cache.mark()) == why
    assert (await found(cache) is None) == (why is not None)


async def test_purging_removes_what_matches_and_counts_it(cache: ExactCache) -> None:
    await put(cache, "a", tenant="acme")
    await put(cache, "b", tenant="globex")
    assert await cache.purge(Match(tenant="acme"), dry_run=True) == 1
    assert await found(cache, "a") is not None
    assert await cache.purge(Match(tenant="acme")) == 1
    assert await cache.purge(Match(tenant="acme")) == 0
    assert await found(cache, "a") is None
    assert await found(cache, "b") is not None


async def test_an_answer_made_while_it_was_purged_is_not_kept(cache: ExactCache) -> None:
    mark = cache.mark()
    await cache.purge(Match(tenant="acme"))
    assert await cache.put(make_entry(), since=mark) == "purged_meanwhile"
    assert await found(cache) is None
    assert await cache.put(make_entry(), since=cache.mark()) is None


@pytest.mark.parametrize(
    ("match", "kept"),
    [
        (Match(tenant="globex"), True),
        (Match(user="alice"), False),
        (Match(key=key_of("a")), False),
        (Match(key=key_of("b")), True),
        (Match(tags=frozenset({"x"})), False),
        (Match(tags=frozenset({"z"})), True),
        (Match(older_than=START), True),  # it was made after the purge's bound
        (Match(older_than=START + 1), False),
        (EVERYTHING, False),
    ],
)
async def test_only_a_purge_that_matches_keeps_an_answer_out(cache: ExactCache, match: Match, kept: bool) -> None:
    mark = cache.mark()
    await cache.purge(match)
    await cache.purge(NOTHING)
    assert (await cache.put(make_entry(tags=("x", "y")), since=mark) is None) == kept


async def test_a_dry_run_keeps_nothing_out(cache: ExactCache) -> None:
    mark = cache.mark()
    await cache.purge(EVERYTHING, dry_run=True)
    assert await cache.put(make_entry(), since=mark) is None


async def test_more_purges_than_are_remembered_keep_everything_out(memory: ExactCache) -> None:
    mark = memory.mark()
    for _ in range(REMEMBERED_PURGES):
        await memory.purge(NOTHING)
    assert await memory.put(make_entry(), since=mark) is None
    await memory.purge(NOTHING)
    assert await memory.put(make_entry(), since=mark) == "purged_meanwhile"


async def test_the_oldest_purge_that_counts_is_still_remembered(memory: ExactCache) -> None:
    mark = memory.mark()
    await memory.purge(EVERYTHING)
    for _ in range(REMEMBERED_PURGES - 1):
        await memory.purge(NOTHING)
    assert await memory.put(make_entry(), since=mark) == "purged_meanwhile"


async def test_listing_and_stats(cache: ExactCache) -> None:
    await put(cache, "a", created=START)
    await put(cache, "b", created=START + 1)
    assert [e.key for e in await cache.entries(EVERYTHING, limit=5)] == [key_of("b"), key_of("a")]
    assert len(await cache.entries(EVERYTHING, limit=1)) == 1
    await cache.flush()
    stats = await cache.stats()
    assert stats["memory"].entries == 2
    assert all(layer.entries == 2 and layer.healthy for layer in stats.values())


# With a file behind


async def test_an_answer_survives_a_restart(path: Path, clock: Clock) -> None:
    first = await open_disk(path, clock)
    await put(first)
    await first.aclose()
    second = await open_disk(path, clock)
    assert second.front.peek(key_of("a")) is None
    slot = await second.get(key_of("a"))
    await second.aclose()
    assert slot is not None
    assert slot.entry == make_entry()


async def test_what_is_found_in_the_file_is_found_in_front_next_time(disk: ExactCache) -> None:
    await put(disk)
    await forget_front(disk)
    assert disk.front.peek(key_of("a")) is None
    slot = await disk.get(key_of("a"))
    assert slot is not None
    assert disk.front.peek(key_of("a")) is slot


async def test_what_does_not_fit_in_front_is_served_from_the_file(path: Path, clock: Clock) -> None:
    cache = await open_disk(path, clock, memory=1)
    try:
        await put(cache)
        assert cache.front.peek(key_of("a")) is None
        for _ in range(2):
            assert await found(cache) == make_entry().body
    finally:
        await cache.aclose()


async def test_an_answer_that_came_meanwhile_wins_over_that_of_the_file(disk: ExactCache) -> None:
    await put(disk, body=b"old")
    await forget_front(disk)
    reading = asyncio.create_task(disk.get(key_of("a")))
    await asyncio.sleep(0)
    await put(disk, body=b"new")
    slot = await reading
    assert slot is not None
    assert slot.entry.body == b"new"
    assert await found(disk) == b"new"


async def test_a_purge_while_a_look_up_is_under_way_leaves_nothing_in_front(disk: ExactCache) -> None:
    await put(disk)
    await forget_front(disk)
    reading = asyncio.create_task(disk.get(key_of("a")))
    await asyncio.sleep(0)
    assert await disk.purge(EVERYTHING) == 1
    await reading
    assert disk.front.peek(key_of("a")) is None
    assert await found(disk) is None


async def test_a_look_up_while_a_purge_is_under_way_leaves_nothing_in_front(disk: ExactCache, path: Path) -> None:
    """The purge has cleaned the front and waits for the file. Who reads now still finds the answer in the file, and
    must not put it back in front, where it would outlive the purge."""
    await put(disk)
    await forget_front(disk)
    with write_lock(path):
        purging = asyncio.create_task(disk.purge(Match(tenant="acme")))
        await asyncio.sleep(0.02)
        assert not purging.done()
        await disk.get(key_of("a"))
    assert await purging == 1
    assert disk.front.peek(key_of("a")) is None
    assert await found(disk) is None


async def test_a_put_while_a_purge_is_under_way_leaves_front_and_file_agreed(disk: ExactCache, path: Path) -> None:
    """Begun before the purge: not kept. Begun after it: kept, or at worst a miss, but never the old answer."""
    await put(disk, body=b"old")
    await disk.flush()
    before = disk.mark()
    with write_lock(path):
        purging = asyncio.create_task(disk.purge(EVERYTHING))
        await asyncio.sleep(0.02)
        assert await disk.put(make_entry(body=b"late"), since=before) == "purged_meanwhile"
        assert await disk.put(make_entry(body=b"new"), since=disk.mark()) is None
    await purging
    assert await found(disk) == b"new"
    await forget_front(disk)
    assert await found(disk) in (b"new", None)


async def test_a_purge_takes_what_waits_to_be_written(disk: ExactCache, path: Path) -> None:
    with write_lock(path):
        await put(disk)
        purging = asyncio.create_task(disk.purge(EVERYTHING))
        await asyncio.sleep(0.02)
        assert disk.front.peek(key_of("a")) is None
    assert await purging == 1
    assert await found(disk) is None


async def test_what_the_store_could_not_give_up_does_not_come_back(disk: ExactCache, path: Path, clock: Clock) -> None:
    await put(disk, "a")
    await put(disk, "b", tenant="other")
    await disk.flush()
    await forget_front(disk, "b")
    with write_lock(path), pytest.raises(StoreUnavailable):  # longer than SQLite waits for a lock
        await disk.purge(Match(tenant="acme"))
    for _ in range(2):
        assert await found(disk, "a") is None
    assert await found(disk, "b") is not None, "another tenant's"
    assert len(await disk.entries(EVERYTHING, limit=9)) == 2, "it is still in the file"
    clock.time += 1
    await put(disk, "a", created=clock.time, body=b"new")
    await forget_front(disk, "a")
    assert await found(disk, "a") == b"new", "what was made later is not meant"
    await disk.flush()
    assert await disk.purge(Match(tenant="acme")) == 1
    assert len(await disk.entries(EVERYTHING, limit=9)) == 1


async def test_a_soft_purge_reaches_both_layers(cache: ExactCache, clock: Clock) -> None:
    await put(cache, expires=START + 100, keep_until=START + 200)
    mark = cache.mark()
    clock.time += 10
    assert await cache.purge(EVERYTHING, soft=True) == 1
    for _ in range(2):
        slot = await cache.get(key_of("a"))
        assert slot is not None
        assert (slot.entry.expires, slot.entry.keep_until) == (START + 10, START + 110)
        if len(await cache.stats()) == 1:
            break  # there is no file to find it in
        await forget_front(cache)
    assert await cache.put(make_entry("b"), since=mark) == "purged_meanwhile"


# A store that fails


async def test_a_dead_store_is_a_miss_and_the_front_goes_on(disk: ExactCache, path: Path) -> None:
    await put(disk, "a")
    await put(disk, "b")
    await forget_front(disk, "b")
    damage(path)
    for _ in range(3):
        assert await found(disk, "a") == make_entry("a").body
        await found(disk, "b")  # a miss, or the answer out of a page that the connection still holds; no error
        await put(disk, "c")
        assert await found(disk, "c") == make_entry("c").body
    assert set(await disk.stats()) == {"memory", "store"}


def damage(path: Path) -> None:
    """Write over the file and its log, as a dying disk would."""
    for file in path.parent.glob(path.name + "*"):
        file.write_bytes(b"\x00garbage" * 4096)


async def test_a_closed_store_is_a_miss_and_says_so(path: Path, clock: Clock) -> None:
    cache = await open_disk(path, clock)
    await put(cache)
    await cache.aclose()
    assert await found(cache) is None
    assert await cache.put(make_entry("b"), since=cache.mark()) == "store_unavailable"
    assert await found(cache, "b") == make_entry("b").body
    stats = await cache.stats()
    assert not stats["store"].healthy
    with pytest.raises(StoreUnavailable):
        await cache.purge(EVERYTHING)
    assert cache.front.peek(key_of("b")) is None  # the front is clean all the same


@pytest.mark.parametrize("url", ["redis://localhost", "sqlite://", "mysql:///x", ""])
async def test_a_store_of_an_unknown_kind_is_refused(memory: ExactCache, url: str) -> None:
    with pytest.raises(StoreError):
        await memory.open(url, max_bytes=MIB, now=Clock())


async def test_a_path_that_cannot_be_is_refused(memory: ExactCache, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        await memory.open(f"sqlite:///{tmp_path}/file/cache.db", max_bytes=MIB, now=Clock())
    await put(memory)
    assert await found(memory) is not None


async def test_memory_alone_has_no_store_behind(memory: ExactCache) -> None:
    await memory.open("memory://", max_bytes=MIB, now=Clock())
    assert set(await memory.stats()) == {"memory"}
