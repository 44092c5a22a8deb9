"""Patience under both event loops that a gateway may run on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from backends.patience import Patience

Run = Callable[[Coroutine[Any, Any, None]], None]
both = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


class Sleeper:
    """Waits for nothing, and says after how long it was given up."""

    def __init__(self, patience: Patience) -> None:
        self._loop = asyncio.get_running_loop()
        self._future = self._loop.create_future()
        self._wait = patience.wait(lambda: self._future.set_exception(TimeoutError()))

    async def forever(self) -> float:
        begun = self._loop.time()
        with self._wait, pytest.raises(TimeoutError):
            await self._future
        return self._loop.time() - begun

    async def briefly(self, seconds: float) -> None:
        with self._wait:
            await asyncio.sleep(seconds)


@both
def test_a_wait_is_given_up_at_its_limit_and_not_before(run: Run) -> None:
    async def main() -> None:
        assert 0.098 < await Sleeper(Patience(0.1)).forever() < 0.18

    run(main())


@both
def test_waits_that_began_one_after_the_other_are_each_given_up_in_time(run: Run) -> None:
    async def main() -> None:
        patience = Patience(0.1)

        async def one(after: float) -> float:
            await asyncio.sleep(after)
            return await Sleeper(patience).forever()

        times = await asyncio.gather(*(one(0.007 * n) for n in range(30)))
        assert 0.098 < min(times) < max(times) < 0.18

    run(main())


@both
def test_only_a_wait_that_goes_on_is_given_up(run: Run) -> None:
    """Many short ones after one another are no long one, nor is what lies between them."""

    async def main() -> None:
        patience = Patience(0.2)
        sleeper = Sleeper(patience)
        for _ in range(4):
            await sleeper.briefly(0.08)
        await asyncio.sleep(0.25)
        await sleeper.briefly(0.08)
        assert 0.198 < await sleeper.forever() < 0.36

    run(main())


@both
def test_a_wait_that_is_cancelled_is_over(run: Run) -> None:
    async def main() -> None:
        patience = Patience(0.05)
        sleeper = Sleeper(patience)
        task = asyncio.create_task(sleeper.forever())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Failing the cancelled future would be an error in the loop.
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        await asyncio.sleep(0.1)
        assert not errors

    run(main())
