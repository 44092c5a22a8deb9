"""One call for everybody who wants the same at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Made(Generic[K, V]):
    """`values` by key; `joined` are those keys that another's call was for. Keys that have no value are those of
    others' calls that failed: `failures`."""

    values: dict[K, V]
    joined: frozenset[K]
    failures: list[BaseException] = field(default_factory=list)


class Once(Generic[K, V]):
    """Calls under way, by key. A call belongs to nobody: it goes on while anybody waits for it, and is cancelled when
    the last one has left. What it raises is raised to all that wait."""

    def __init__(self) -> None:
        self._calls: dict[K, _Call[K, V]] = {}  # those that may be joined
        self._all: set[_Call[K, V]] = set()

    def __contains__(self, key: K) -> bool:
        return key in self._calls

    @property
    def calls(self) -> int:
        """Calls under way."""
        return len(self._all)

    @property
    def waiting(self) -> int:
        """How many wait for them; who waits for several counts for each."""
        return sum(call.waiting for call in self._all)

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> tuple[V, bool]:
        """What `make` gives, and whether it was another's call that had begun before."""

        async def one(_: Collection[K]) -> Mapping[K, V]:
            return {key: await make()}

        made = await self.many([key], one)
        if made.failures:
            raise made.failures[0]
        return made.values[key], bool(made.joined)

    async def many(
        self, keys: Collection[K], make: Callable[[Collection[K]], Awaitable[Mapping[K, V]]], *, join: bool = True
    ) -> Made[K, V]:
        """One call of `make` for those of the keys that nobody makes yet, which has to give them all; the others are
        waited for. Without `join` it is called for all, and joined by nobody for a key that another makes already.
        Nothing is awaited before the calls are known to others. What the own call raises is raised, at once; a call of
        others that failed leaves its keys out."""
        calls: dict[_Call[K, V], list[K]] = {}
        own: list[K] = []
        for key in dict.fromkeys(keys):
            if join and (call := self._calls.get(key)) is not None:
                calls.setdefault(call, []).append(key)
            else:
                own.append(key)
        joined = frozenset(key for theirs in calls.values() for key in theirs)
        mine = self._begin(own, make) if own else None
        waited = [*calls] if mine is None else [mine, *calls]
        for call in waited:
            call.waiting += 1
        try:
            values: dict[K, V] = {} if mine is None else dict(await asyncio.shield(mine.task))
            if calls:
                await asyncio.wait([call.task for call in calls])
        finally:
            for call in waited:
                self._leave(call)
        failures: list[BaseException] = []
        for call, wanted in calls.items():
            if call.task.cancelled():
                failures.append(asyncio.CancelledError())
            elif (error := call.task.exception()) is not None:
                failures.append(error)
            else:
                result = call.task.result()
                values.update((key, result[key]) for key in wanted)
        return Made(values, joined, failures)

    def _begin(self, keys: Collection[K], make: Callable[[Collection[K]], Awaitable[Mapping[K, V]]]) -> "_Call[K, V]":
        call: _Call[K, V] = _Call(asyncio.ensure_future(_await(make, keys)), keys)
        for key in keys:
            self._calls.setdefault(key, call)
        self._all.add(call)
        call.task.add_done_callback(lambda _: self._ended(call))
        return call

    def _leave(self, call: "_Call[K, V]") -> None:
        call.waiting -= 1
        if not call.waiting and not call.task.done():
            self._forget(call)  # nobody is to join what is being cancelled
            call.task.cancel()

    def _ended(self, call: "_Call[K, V]") -> None:
        self._all.discard(call)
        self._forget(call)
        if not call.task.cancelled():
            call.task.exception()  # seen, also where nobody waits any more

    def _forget(self, call: "_Call[K, V]") -> None:
        for key in call.keys:
            if self._calls.get(key) is call:
                del self._calls[key]


class _Call(Generic[K, V]):
    def __init__(self, task: "asyncio.Future[Mapping[K, V]]", keys: Collection[K]) -> None:
        self.task = task
        self.keys = keys
        self.waiting = 0


async def _await(make: Callable[[Collection[K]], Awaitable[Mapping[K, V]]], keys: Collection[K]) -> Mapping[K, V]:
    return await make(keys)
