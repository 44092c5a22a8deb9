"""A loop whose time jumps ahead when nothing else is to do. Where all wait for what can never come, it says so."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from selectors import SelectorKey, SelectSelector
from typing import Any, ParamSpec, TypeVar

import pytest

from gateway import flight

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


MAX_TURNS = 20_000


class Stuck(Exception):
    """Nothing that is waited for can happen any more, or something waits without rest."""


class Loop(asyncio.SelectorEventLoop):
    """Its time passes when nothing else is to do, and then at once; a turn takes a microsecond, and threads are waited
    for. `failures` are the errors nobody took."""

    def __init__(self) -> None:
        self._now = 0.0
        self._threads = 0
        self._turns = 0  # since there was last nothing to do
        self.failures: list[Json] = []
        super().__init__(_Selector(self._wait))
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def clear(self) -> None:
        """End all tasks. Some have to be told twice: that they are to end, and that nobody takes what they then say."""
        for _ in range(2):
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.call_later(1.0, self.stop)
            self.run_forever()

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        self._threads += 1
        work: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        work.add_done_callback(self._thread_ended)
        return work

    async def shutdown_default_executor(self, *args: Any) -> None:
        self._threads += 1
        await super().shutdown_default_executor(*args)
        self._threads -= 1

    def _thread_ended(self, _: object) -> None:
        self._threads -= 1

    def _wait(self, timeout: float | None) -> float:
        """How long to wait in earnest."""
        self._turns += 1
        if self._turns > MAX_TURNS:
            raise Stuck(f"{MAX_TURNS} turns of the loop, and no rest")
        if timeout is not None and timeout <= 0:
            self._now += 1e-6
            return 0.0
        self._turns = 0
        if self._threads:
            return 1.0
        if timeout is None:
            raise Stuck
        self._now += timeout
        return 0.0


class _Selector(SelectSelector):
    def __init__(self, wait: Callable[[float | None], float]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        return super().select(self._wait(timeout))


def timeless(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in such a loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = Loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flight, "monotonic", loop.time)
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                try:
                    runner.run(test(*args, **kwargs))
                finally:
                    loop.clear()
        assert not loop.failures, loop.failures

    return run
