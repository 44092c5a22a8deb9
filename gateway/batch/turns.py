"""Turns: nobody has more than so many at once, and all together not more than so many."""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """`each`: of one party; `most`: of all parties, None where that has no bound. Who waits goes in the order of
    coming, but a party with all its turns taken is passed by."""

    def __init__(self, each: int, most: int | None = None) -> None:
        self._each = each
        self._all = None if most is None else asyncio.Semaphore(most)
        self._own: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()  # of those who are here

    @asynccontextmanager
    async def of(self, party: Hashable) -> AsyncIterator[None]:
        """A turn of this party, when there is one."""
        own = self._own.get(party)
        if own is None:
            own = self._own[party] = asyncio.Semaphore(self._each)
        async with own:
            if self._all is None:
                yield
            else:
                async with self._all:
                    yield
