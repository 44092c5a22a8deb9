"""Purges that the store fails to do, or does not finish in time. What it still holds of them must not come back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cache.exact import MAX_BANS, ExactCache
from cache.match import Match
from cache.stores.base import StoreUnavailable
from cache.stores.guard import GuardedStore
from cache.stores.memory import MemoryStore
from tests.contract.stores import START, Clock, key_of, make_entry

MIB = 2**20
EVERYTHING = Match()
ACME = Match(tenant="acme")


class Stubborn(MemoryStore):
    """A store whose purges fail, or take until `go` is set, when told to."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(MIB, now=clock, mono=clock)
        self.fails = False
        self.go = asyncio.Event()
        self.go.set()

    async def purge(self, match: Match, *, soft: bool = False, dry_run: bool = False) -> int:
        fails = self.fails
        await self.go.wait()
        if fails:
            raise StoreUnavailable("disk full")
        return await super().purge(match, soft=soft, dry_run=dry_run)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Stubborn:
    return Stubborn(clock)


@pytest.fixture
async def cache(clock: Clock, store: Stubborn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ExactCache]:
    async def open_stubborn(url: str, **settings: object) -> GuardedStore:
        return GuardedStore(store, failures=10_000)

    monkeypatch.setattr("cache.exact.open_store", open_stubborn)
    cache = ExactCache(MemoryStore(MIB, now=clock, mono=clock), max_entry=1000)
    await cache.open("stubborn://", max_bytes=MIB, now=clock)
    yield cache
    await cache.aclose()


async def put(cache: ExactCache, name: str = "a", **changes: object) -> None:
    """An answer that is in the store only, as after a restart or an eviction."""
    assert await cache.put(make_entry(name, **changes), since=cache.mark()) is None
    cache.front.discard(key_of(name))


async def found(cache: ExactCache, name: str = "a") -> bool:
    """Whether the store gives it: the front forgets it again."""
    slot = await cache.get(key_of(name))
    cache.front.discard(key_of(name))
    return slot is not None


async def fail(cache: ExactCache, store: Stubborn, match: Match, *, soft: bool = False) -> None:
    store.fails = True
    with pytest.raises(StoreUnavailable):
        await cache.purge(match, soft=soft)
    store.fails = False


@pytest.mark.parametrize("soft", [False, True])
async def test_what_a_failed_purge_was_to_take_is_not_there(cache: ExactCache, store: Stubborn, soft: bool) -> None:
    await put(cache, "a")
    await put(cache, "b", tenant="other")
    await fail(cache, store, ACME, soft=soft)
    assert await store.get(key_of("a")) is not None, "the store still has it"
    for _ in range(2):
        assert not await found(cache, "a")
    assert await found(cache, "b")


async def test_what_is_made_later_is_not_meant(cache: ExactCache, store: Stubborn, clock: Clock) -> None:
    clock.time = START + 10
    await fail(cache, store, ACME)
    for made, there in ((START + 9.999, False), (START + 10, False), (START + 10.001, True)):
        await put(cache, created=made)
        assert await found(cache) == there, made


async def test_a_newer_answer_in_front_is_given_out(cache: ExactCache, store: Stubborn) -> None:
    """Made after the purge, though in the same instant: the order of purges tells, as long as it is in front."""
    await put(cache)
    await fail(cache, store, ACME)
    assert await cache.put(make_entry(body=b"new"), since=cache.mark()) is None
    slot = await cache.get(key_of("a"))
    assert slot is not None
    assert slot.entry.body == b"new"


async def test_a_purge_that_outlasts_its_deadline_is_remembered(
    cache: ExactCache, store: Stubborn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache.stores.guard.SLOW_DEADLINE", 0.02)
    await put(cache)
    store.go.clear()
    with pytest.raises(StoreUnavailable, match="no answer within"):
        await cache.purge(ACME)
    assert not await found(cache)
    assert await store.get(key_of("a")) is not None


async def test_so_is_one_whose_caller_leaves(cache: ExactCache, store: Stubborn) -> None:
    await put(cache)
    store.go.clear()
    purging = asyncio.create_task(cache.purge(ACME))
    await asyncio.sleep(0)
    purging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await purging
    assert not await found(cache)


async def test_a_dry_run_that_fails_forbids_nothing(cache: ExactCache, store: Stubborn) -> None:
    await put(cache)
    store.fails = True
    with pytest.raises(StoreUnavailable):
        await cache.purge(ACME, dry_run=True)
    assert await found(cache)


@pytest.mark.parametrize(
    ("failed", "match", "soft", "lifted"),
    [
        (False, ACME, False, True),
        (True, ACME, False, True),
        (True, ACME, True, True),
        (False, ACME, True, False),  # the store holds it as a stale one, and it was to go
        (False, EVERYTHING, False, False),  # it would do, but is not the same
        (False, Match(tenant="other"), False, False),
    ],
)
async def test_a_later_purge_of_the_same_lifts_it(
    cache: ExactCache, store: Stubborn, failed: bool, match: Match, soft: bool, lifted: bool
) -> None:
    await fail(cache, store, ACME, soft=failed)
    await cache.purge(match, soft=soft)
    await put(cache)  # by the clock of the entry it was made before the failed purge
    assert await found(cache) == lifted


async def test_an_earlier_purge_that_ends_later_does_not(cache: ExactCache, store: Stubborn) -> None:
    await put(cache)
    store.go.clear()
    earlier = asyncio.create_task(cache.purge(ACME))
    await asyncio.sleep(0)
    later = asyncio.create_task(cache.purge(ACME))
    await asyncio.sleep(0)
    later.cancel()
    await asyncio.gather(later, return_exceptions=True)
    store.go.set()
    assert await earlier == 1
    await put(cache)
    assert not await found(cache)


async def test_of_too_many_the_oldest_become_one_on_everything(cache: ExactCache, store: Stubborn) -> None:
    """Better a miss than an answer that was to go. Repetitions count once."""
    await put(cache, "a", tenant="t0")
    await put(cache, "b", tenant="t1")
    await put(cache, "c", tenant="innocent")
    for n in range(MAX_BANS):
        await fail(cache, store, Match(tenant=f"t{n}"))
    for _ in range(5):
        await fail(cache, store, Match(tenant="t9"))
    assert [await found(cache, name) for name in "abc"] == [False, False, True]
    await fail(cache, store, Match(tenant="one more"))
    assert [await found(cache, name) for name in "abc"] == [False, False, False]
    assert len(cache._bans) == MAX_BANS
