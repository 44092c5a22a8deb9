"""Deadline and breaker around a scripted store."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from cache.stores.base import StoreError, StoreStats, StoreUnavailable
from cache.stores.guard import GuardedStore
from tests.contract.stores import key_of, make_entry, make_question

KEY = key_of("a")


class Scripted:
    """A store that answers, raises `trouble`, or takes `delay` seconds; it counts the calls that reach it."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.delay = 0.0
        self.calls = 0
        self.closed = False
        self.noted: Question | None = None

    async def answer(self, result: Any) -> Any:
        self.calls += 1
        await asyncio.sleep(self.delay)
        if self.trouble is not None:
            raise self.trouble
        return result

    async def get(self, key: bytes) -> Entry | None:
        return await self.answer(make_entry("a"))

    async def put(self, entry: Entry) -> None:
        await self.answer(None)

    async def purge(self, match: Match, *, soft: bool = False, dry_run: bool = False) -> int:
        return await self.answer(7 if dry_run else 9 if soft else 8)

    async def entries(self, match: Match, *, limit: int) -> list[Entry]:
        return await self.answer([make_entry("a")] * limit)

    async def note(self, question: Question) -> None:
        await self.answer(None)
        self.noted = question

    async def questions(self, *, after: bytes, limit: int) -> list[Question]:
        return await self.answer([make_question("a", context=after)] * limit)

    async def known(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        return await self.answer(dict.fromkeys(keys, 1.0))

    async def stats(self) -> StoreStats:
        return await self.answer(StoreStats(1, 2, 3))

    async def flush(self) -> None:
        await self.answer(None)

    async def aclose(self) -> None:
        await self.answer(None)
        self.closed = True


class Watch:
    """A monotonic clock, set by the test."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def inner() -> Scripted:
    return Scripted()


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def guarded(inner: Scripted, watch: Watch) -> GuardedStore:
    return GuardedStore(inner, deadline=0.05, failures=3, retry_after=5.0, mono=watch)


async def fail(guarded: GuardedStore, inner: Scripted, times: int) -> None:
    inner.trouble = StoreUnavailable("down")
    for _ in range(times):
        with pytest.raises(StoreUnavailable):
            await guarded.get(KEY)
    inner.trouble = None


CALLS: dict[str, Callable[[GuardedStore], Any]] = {
    "get": lambda store: store.get(KEY),
    "put": lambda store: store.put(make_entry("a")),
    "purge": lambda store: store.purge(Match()),
    "entries": lambda store: store.entries(Match(), limit=2),
    "note": lambda store: store.note(make_question("a")),
    "questions": lambda store: store.questions(after=b"", limit=2),
    "known": lambda store: store.known([KEY]),
    "stats": lambda store: store.stats(),
    "flush": lambda store: store.flush(),
}


async def test_calls_go_through(guarded: GuardedStore, inner: Scripted) -> None:
    assert await guarded.get(KEY) == make_entry("a")
    await guarded.put(make_entry("a"))
    assert await guarded.purge(Match()) == 8
    assert await guarded.purge(Match(), dry_run=True) == 7
    assert await guarded.purge(Match(), soft=True) == 9
    assert await guarded.entries(Match(), limit=2) == [make_entry("a")] * 2
    await guarded.note(make_question("a"))
    assert inner.noted == make_question("a")
    assert await guarded.questions(after=KEY, limit=2) == [make_question("a", context=KEY)] * 2
    assert set(await guarded.known([KEY])) == {KEY}
    assert await guarded.stats() == StoreStats(1, 2, 3)
    await guarded.flush()
    await guarded.aclose()
    assert inner.closed
    assert inner.calls == 12


@pytest.mark.parametrize("call", ["get", "put", "note", "stats"])
async def test_a_call_that_hangs_fails_at_its_deadline(guarded: GuardedStore, inner: Scripted, call: str) -> None:
    inner.delay = 60
    started = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable, match="no answer within"):
        await CALLS[call](guarded)
    assert asyncio.get_running_loop().time() - started < 5


@pytest.mark.parametrize("call", ["purge", "entries", "questions", "known", "flush"])
async def test_what_no_request_waits_for_may_take_longer(guarded: GuardedStore, inner: Scripted, call: str) -> None:
    inner.delay = 0.15
    await CALLS[call](guarded)
    assert guarded.healthy


@pytest.mark.parametrize(
    "trouble", [StoreUnavailable("x"), StoreError("x"), OSError("x"), TimeoutError(), KeyError("x")]
)
@pytest.mark.parametrize("call", CALLS)
async def test_every_failure_is_store_unavailable(
    guarded: GuardedStore, inner: Scripted, call: str, trouble: Exception
) -> None:
    inner.trouble = trouble
    with pytest.raises(StoreUnavailable):
        await CALLS[call](guarded)


async def test_a_defect_is_logged(guarded: GuardedStore, inner: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    await fail(guarded, inner, 1)
    assert caplog.records == []
    inner.trouble = KeyError("x")
    with pytest.raises(StoreUnavailable):
        await guarded.get(KEY)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("call", CALLS)
async def test_the_breaker_opens_after_so_many_failures(guarded: GuardedStore, inner: Scripted, call: str) -> None:
    await fail(guarded, inner, 2)
    assert guarded.healthy
    await fail(guarded, inner, 1)
    assert not guarded.healthy
    with pytest.raises(StoreUnavailable, match="left alone"):
        await CALLS[call](guarded)
    assert inner.calls == 3


async def test_only_failures_in_a_row_count(guarded: GuardedStore, inner: Scripted) -> None:
    for _ in range(5):
        await fail(guarded, inner, 2)
        await guarded.get(KEY)
    assert guarded.healthy


async def test_deadlines_missed_open_the_breaker_too(guarded: GuardedStore, inner: Scripted) -> None:
    inner.delay = 60
    results = await asyncio.gather(*(guarded.get(KEY) for _ in range(4)), return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    assert not guarded.healthy


async def test_a_probe_that_works_closes_it(guarded: GuardedStore, inner: Scripted, watch: Watch) -> None:
    await fail(guarded, inner, 3)
    watch.time += 4.999
    with pytest.raises(StoreUnavailable):
        await guarded.get(KEY)
    assert inner.calls == 3
    watch.time += 0.001
    assert await guarded.get(KEY) is not None
    assert guarded.healthy
    await fail(guarded, inner, 2)
    assert guarded.healthy


async def test_a_probe_that_fails_opens_it_for_as_long_again(
    guarded: GuardedStore, inner: Scripted, watch: Watch
) -> None:
    await fail(guarded, inner, 3)
    watch.time += 5
    await fail(guarded, inner, 1)
    assert inner.calls == 4
    watch.time += 4.9
    await fail(guarded, inner, 1)
    assert inner.calls == 4
    watch.time += 0.1
    await guarded.get(KEY)
    assert guarded.healthy


async def test_there_is_one_probe_at_a_time(guarded: GuardedStore, inner: Scripted, watch: Watch) -> None:
    await fail(guarded, inner, 3)
    watch.time += 5
    inner.delay = 0.01
    results = await asyncio.gather(*(guarded.get(KEY) for _ in range(10)), return_exceptions=True)
    assert inner.calls == 4
    assert sum(isinstance(result, StoreUnavailable) for result in results) == 9


async def test_a_cancelled_probe_leaves_the_way_to_the_next(
    guarded: GuardedStore, inner: Scripted, watch: Watch
) -> None:
    await fail(guarded, inner, 3)
    watch.time += 5
    inner.delay = 60
    probe = asyncio.ensure_future(guarded.get(KEY))
    await asyncio.sleep(0)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert not guarded.healthy
    inner.delay = 0
    assert await guarded.get(KEY) is not None
    assert guarded.healthy


async def test_an_open_breaker_does_not_keep_the_store_open(guarded: GuardedStore, inner: Scripted) -> None:
    await fail(guarded, inner, 3)
    await guarded.aclose()
    assert inner.closed
