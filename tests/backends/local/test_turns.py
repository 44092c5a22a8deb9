"""The way to a thread: what batch may have on it, and how many of each priority."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from backends.base import Priority
from backends.local.turns import Turns
from backends.local.work import QueueFull


async def test_batch_has_one_turn_at_a_time_in_order_and_the_others_have_all() -> None:
    turns, order = Turns(10), list[str]()
    last, end = asyncio.Event(), asyncio.Event()

    async def ask(name: str, priority: Priority) -> None:
        async with turns.wait(priority):
            order.append(name)
            if name == "d":
                last.set()
            await end.wait()

    names: list[tuple[str, Priority]] = [("a", "batch"), ("b", "batch"), ("c", "interactive"), ("d", "interactive")]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(*name)) for name in [*names, ("e", "batch")]]
        await last.wait()
        assert order == ["a", "c", "d"]
        tasks[1].cancel()  # its client has gone
        end.set()
    assert order == ["a", "c", "d", "e"]


@pytest.mark.parametrize(("full", "other"), [("batch", "interactive"), ("interactive", "batch")])
async def test_each_priority_has_its_own_number(full: Priority, other: Priority) -> None:
    turns, end = Turns(3), asyncio.Event()

    async def ask(priority: Priority) -> None:
        async with turns.wait(priority):
            await end.wait()

    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for _ in range(3):
            group.create_task(ask(full))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await ask(full)
        for _ in range(3):
            group.create_task(ask(other))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await ask(other)
        end.set()
    await ask(full)  # those that have left make room
