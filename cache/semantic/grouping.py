"""Which questions have the same answer: new answers are compared with those of their neighbours, in the background."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from itertools import islice

from cache.entry import Entry
from cache.exact import ExactCache
from cache.semantic.answers import Gist, gist, same_answer
from cache.semantic.known import MAX_SAME, Known, Vector
from cache.semantic.questions import Row

MAX_GISTS = 4096
"""Answers whose gist is kept for comparing."""
MAX_WAITING = 1000
"""Answers that may wait to be compared; of more nothing is kept over a restart, which costs hits."""
LAST_NOTES = 1.0
"""Seconds that the end waits for what is still to be compared."""
LONG_ANSWER = 1000
"""Characters from which an answer is read in a thread: that takes a millisecond for every few hundred."""

_Job = tuple[Row, Vector | None, Sequence[bytes]]
_log = logging.getLogger(__name__)


class Grouping:
    """`answer_text` gives the text of an entry's answer, None where it has none to compare. `apart` says of two sets of
    keys that an answer of the one is known to differ from one of the other; `merged` is told which share one."""

    def __init__(
        self,
        cache: ExactCache,
        known: Known,
        answer_text: Callable[[Entry], str | None],
        apart: Callable[[Set[bytes], Set[bytes]], bool],
        merged: Callable[[Set[bytes]], None],
    ) -> None:
        self._cache = cache
        self._known = known
        self._answer_text = answer_text
        self._apart = apart
        self._merged = merged
        self._gists: OrderedDict[bytes, tuple[Row, Gist]] = OrderedDict()
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(MAX_WAITING)
        self._task = asyncio.create_task(self._work())

    def add(self, row: Row, vector: Vector | None, neighbours: Sequence[bytes]) -> None:
        """Compare its answer with theirs, and let the store keep what is known of the question."""
        if not self._jobs.full():
            self._jobs.put_nowait((row, vector, neighbours))

    def merge(self, one: bytes, other: bytes) -> None:
        """These two have the same answer, and with them their groups, unless answers of these are known to differ."""
        questions = self._known.questions
        a, b = questions.get(one), questions.get(other)
        if a is None or b is None or (a.group is not None and a.group is b.group):
            return
        if not self._apart(questions.group_of(one), questions.group_of(other)):
            questions.merge(one, other)
            self._merged(questions.group_of(one))

    async def done(self) -> None:
        """Return when nothing waits to be compared."""
        await self._jobs.join()

    async def aclose(self) -> None:
        with suppress(TimeoutError):  # what is known of the last questions is for the store
            async with asyncio.timeout(LAST_NOTES):
                await self.done()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            row, vector, neighbours = await self._jobs.get()
            try:
                same = await self._same_as(row, neighbours)
                if self._is_known(row):
                    for other in same:
                        self.merge(row.key, other.key)
                    await self._cache.note(self._known.note(row, vector, self._group(row)))
            except Exception:
                _log.exception("an answer could not be compared")
            finally:
                self._jobs.task_done()

    async def _same_as(self, row: Row, neighbours: Sequence[bytes]) -> list[Row]:
        """Those with the answer of this one, and with each other's: a brief answer ("30") may lie within several longer
        ones, and must not make one of them."""
        same: list[Row] = []
        for key in neighbours:
            other = self._known.questions.get(key)
            if other is None:
                continue
            for known in (row, *same):
                if not await self._same(known, other):
                    break
            else:
                same.append(other)
        return [other for other in same if self._is_known(other)]

    async def _same(self, one: Row, other: Row) -> bool:
        a, b = await self._gist(one), await self._gist(other)
        return a is not None and b is not None and same_answer(a, b)

    async def _gist(self, row: Row) -> Gist | None:
        """None where its answer is gone, or is another one by now."""
        kept = self._gists.get(row.key)
        if kept is not None and kept[0] is row:
            self._gists.move_to_end(row.key)
            return kept[1]
        slot = await self._cache.get(row.key)
        text = None if slot is None else self._answer_text(slot.entry)
        if text is None:
            return None
        made = await asyncio.to_thread(gist, text) if len(text) > LONG_ANSWER else gist(text)
        await asyncio.sleep(0)  # it takes a millisecond or more
        if not self._is_known(row):
            return None
        self._gists[row.key] = (row, made)
        self._gists.move_to_end(row.key)
        if len(self._gists) > MAX_GISTS:
            self._gists.popitem(last=False)
        return made

    def _group(self, row: Row) -> list[Row]:
        """Others with the answer of this one."""
        keys = self._known.questions.group_of(row.key) - {row.key}
        return [other for key in islice(keys, MAX_SAME) if (other := self._known.questions.get(key)) is not None]

    def _is_known(self, row: Row) -> bool:
        return self._known.questions.get(row.key) is row
