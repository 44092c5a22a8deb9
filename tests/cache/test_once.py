"""One call for everybody who wants the same at the same time: who leads, who joins, who may leave, who is told."""

import asyncio
from collections.abc import Collection, Mapping

import pytest

from cache.once import Once

Calls = Once[str, str]


class Kitchen:
    """Makes what it is asked for once `open` is set, and remembers the calls; `fail` is what it raises instead."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.cancelled = 0
        self.open = asyncio.Event()
        self.fail: Exception | None = None

    async def __call__(self, keys: Collection[str]) -> Mapping[str, str]:
        self.calls.append(list(keys))
        number, fail = len(self.calls), self.fail
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if fail is not None:
            raise fail
        return {key: f"{key} of call {number}" for key in keys}

    async def one(self) -> str:
        return (await self(["one"]))["one"]


async def begun(kitchen: Kitchen, calls: int) -> None:
    for _ in range(100):
        if len(kitchen.calls) == calls:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(kitchen.calls)} calls instead of {calls}")


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_those_who_want_the_same_at_once_get_it_from_one_call() -> None:
    once, kitchen = Calls(), Kitchen()
    waiting = [asyncio.create_task(once.get("a", kitchen.one)) for _ in range(3)]
    await begun(kitchen, 1)
    assert "a" in once
    await settle()
    assert (once.calls, once.waiting) == (1, 3)
    kitchen.open.set()
    assert await asyncio.gather(*waiting) == [("one of call 1", False), *[("one of call 1", True)] * 2]
    assert (once.calls, once.waiting) == (0, 0)


async def test_what_has_ended_is_joined_by_nobody() -> None:
    once, kitchen = Calls(), Kitchen()
    kitchen.open.set()
    assert await once.get("a", kitchen.one) == ("one of call 1", False)
    assert await once.get("a", kitchen.one) == ("one of call 2", False)


async def test_other_keys_are_other_calls() -> None:
    once, kitchen = Calls(), Kitchen()
    kitchen.open.set()
    await asyncio.gather(once.get("a", kitchen.one), once.get("b", kitchen.one))
    assert len(kitchen.calls) == 2


async def test_a_failure_is_told_to_all_and_to_nobody_later() -> None:
    once, kitchen = Calls(), Kitchen()
    kitchen.fail = OSError("gone")
    waiting = [asyncio.create_task(once.get("a", kitchen.one)) for _ in range(2)]
    await begun(kitchen, 1)
    kitchen.open.set()
    assert [str(e) for e in await asyncio.gather(*waiting, return_exceptions=True)] == ["gone", "gone"]
    kitchen.fail = None
    assert await once.get("a", kitchen.one) == ("one of call 2", False)


@pytest.mark.parametrize("who", [0, 1], ids=["the_first", "the_second"])
async def test_one_who_leaves_leaves_the_call_to_the_others(who: int) -> None:
    once, kitchen = Calls(), Kitchen()
    waiting = [asyncio.create_task(once.get("a", kitchen.one)) for _ in range(2)]
    await begun(kitchen, 1)
    await settle()
    waiting.pop(who).cancel()
    await settle()
    assert not kitchen.cancelled
    kitchen.open.set()
    assert (await waiting[0])[0] == "one of call 1"


async def test_when_the_last_has_left_the_call_is_cancelled_and_joined_by_nobody() -> None:
    once, kitchen = Calls(), Kitchen()
    waiting = [asyncio.create_task(once.get("a", kitchen.one)) for _ in range(2)]
    await begun(kitchen, 1)
    await settle()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert "a" not in once
    await settle()
    assert kitchen.cancelled == 1
    kitchen.open.set()
    assert await once.get("a", kitchen.one) == ("one of call 2", False)


# Several keys


async def test_one_call_makes_what_nobody_makes_yet() -> None:
    once, kitchen = Calls(), Kitchen()
    first = asyncio.create_task(once.many(["a", "b"], kitchen))
    await begun(kitchen, 1)
    second = asyncio.create_task(once.many(["b", "c", "a", "d"], kitchen))
    await begun(kitchen, 2)
    kitchen.open.set()
    one, two = await asyncio.gather(first, second)
    assert kitchen.calls == [["a", "b"], ["c", "d"]]
    assert (one.values, one.joined) == ({"a": "a of call 1", "b": "b of call 1"}, frozenset())
    assert two.values == {"a": "a of call 1", "b": "b of call 1", "c": "c of call 2", "d": "d of call 2"}
    assert two.joined == {"a", "b"}
    assert not two.failures


async def test_a_key_that_comes_twice_is_made_once() -> None:
    once, kitchen = Calls(), Kitchen()
    kitchen.open.set()
    await once.many(["a", "b", "a"], kitchen)
    assert kitchen.calls == [["a", "b"]]


async def test_nothing_wanted_is_no_call() -> None:
    once, kitchen = Calls(), Kitchen()
    made = await once.many([], kitchen)
    assert (made.values, made.joined, made.failures, kitchen.calls) == ({}, frozenset(), [], [])


async def test_a_call_of_others_that_fails_leaves_its_keys_out() -> None:
    once, kitchen = Calls(), Kitchen()
    kitchen.fail = OSError("gone")
    first = asyncio.create_task(once.many(["a", "b"], kitchen))
    await begun(kitchen, 1)
    kitchen.fail = None
    second = asyncio.create_task(once.many(["b", "c"], kitchen))
    await begun(kitchen, 2)
    kitchen.open.set()
    one, two = await asyncio.gather(first, second, return_exceptions=True)
    assert isinstance(one, OSError)
    assert not isinstance(two, BaseException)
    assert two.values == {"c": "c of call 2"}
    assert [str(e) for e in two.failures] == ["gone"]


async def test_the_own_call_s_failure_waits_for_nobody() -> None:
    once, slow, failing = Calls(), Kitchen(), Kitchen()
    failing.fail = OSError("gone")
    failing.open.set()
    first = asyncio.create_task(once.many(["a"], slow))
    await begun(slow, 1)
    with pytest.raises(OSError, match="gone"):
        await once.many(["a", "b"], failing)
    assert not slow.cancelled
    slow.open.set()
    assert (await first).values == {"a": "a of call 1"}


async def test_who_will_not_join_makes_all_and_leaves_others_theirs() -> None:
    once, kitchen = Calls(), Kitchen()
    first = asyncio.create_task(once.many(["a"], kitchen))
    await begun(kitchen, 1)
    alone = asyncio.create_task(once.many(["a", "b"], kitchen, join=False))
    await begun(kitchen, 2)
    third = asyncio.create_task(once.many(["a", "b"], kitchen))
    await settle()
    kitchen.open.set()
    await first
    assert (await alone).values == {"a": "a of call 2", "b": "b of call 2"}
    assert (await third).values == {"a": "a of call 1", "b": "b of call 2"}
    assert kitchen.calls == [["a"], ["a", "b"]]
    assert (once.calls, once.waiting) == (0, 0)


async def test_who_leaves_is_missed_by_none_of_its_keys() -> None:
    """Of a call for two keys others wait for one: it goes on, and both come of it."""
    once, kitchen = Calls(), Kitchen()
    first = asyncio.create_task(once.many(["a", "b"], kitchen))
    await begun(kitchen, 1)
    second = asyncio.create_task(once.many(["b"], kitchen))
    await settle()
    first.cancel()
    await settle()
    assert (kitchen.cancelled, "a" in once) == (0, True)
    kitchen.open.set()
    assert (await second).values == {"b": "b of call 1"}
    assert kitchen.calls == [["a", "b"]]


async def test_a_call_is_known_before_anything_is_awaited() -> None:
    """Whoever looks whether it is there, and then asks, misses none."""
    once, kitchen = Calls(), Kitchen()
    coroutine = once.many(["a"], kitchen)
    coroutine.send(None)
    assert "a" in once
    coroutine.close()
    await settle()
    assert "a" not in once
