"""The texts that wait for the model: what waits while it is at work becomes one batch, each text once.

Pure bookkeeping. A caller that has given up has a future that is done; a text without any other is not run, and takes
no place in the bound.
"""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

Row = asyncio.Future[np.ndarray]
Result = np.ndarray | Callable[[], Exception]
"""A vector, or what makes an error: each caller must have its own, since raising one writes into it."""


class Full(Exception):
    """There is no room for so many more."""


class TextQueue:
    """Holds `bound` waiting texts at most."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._waiting: dict[str, list[Row]] = {}  # in the order of their coming
        self._running: dict[str, list[Row]] = {}
        self._any = asyncio.Event()

    def __len__(self) -> int:
        """Texts that wait."""
        return len(self._waiting)

    def add(self, texts: Sequence[str]) -> list[Row]:
        """One future for each. Raises Full, and then none of them waits."""
        new = {text for text in texts if text not in self._running and text not in self._waiting}
        if len(self._waiting) + len(new) > self._bound:
            self._forget()
            if len(self._waiting) + len(new) > self._bound:
                raise Full
        loop = asyncio.get_running_loop()
        rows: list[Row] = []
        for text in texts:
            row: Row = loop.create_future()
            running = self._running.get(text)
            (self._waiting.setdefault(text, []) if running is None else running).append(row)
            rows.append(row)
        if self._waiting:
            self._any.set()
        return rows

    async def take(self, most: int) -> list[str]:
        """Wait for texts, and return so many at most, the oldest first: they run from now on."""
        while True:
            self._forget()
            if self._waiting:
                break
            self._any.clear()
            await self._any.wait()
        texts = list(self._waiting)[:most]
        self._running = {text: self._waiting.pop(text) for text in texts}
        return texts

    def done(self, results: Sequence[Result]) -> None:
        """What became of the texts taken last, in their order."""
        running, self._running = self._running, {}
        for rows, result in zip(running.values(), results, strict=True):
            _settle(rows, result)

    def fail(self, error: Callable[[], Exception]) -> None:
        """Give up all there is, running and waiting."""
        given_up = [*self._running.values(), *self._waiting.values()]
        self._running, self._waiting = {}, {}
        for rows in given_up:
            _settle(rows, error)

    def _forget(self) -> None:
        """Drop what nobody waits for any more."""
        self._waiting = {text: rows for text, rows in self._waiting.items() if not all(row.done() for row in rows)}


def _settle(rows: list[Row], result: Result) -> None:
    for row in rows:
        if not row.done():
            if isinstance(result, np.ndarray):
                row.set_result(result)
            else:
                row.set_exception(result())
