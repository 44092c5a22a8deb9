"""The way to a thread that does one thing after another: how many may be on it, and that batch makes way."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator

from backends.base import Priority
from backends.local.work import QueueFull


class Turns:
    """At most `most` requests of each priority. Of the batch ones one at a time goes on to the thread, so that an
    interactive one finds no more than one of them before it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._here: Counter[Priority] = Counter()
        self._batch = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def wait(self, priority: Priority) -> AsyncGenerator[None, None]:
        """The turn of a request; it lasts until the block is left. Raises QueueFull."""
        if self._here[priority] >= self._most:
            raise QueueFull
        self._here[priority] += 1
        try:
            async with self._batch if priority == "batch" else contextlib.nullcontext():
                yield
        finally:
            self._here[priority] -= 1
