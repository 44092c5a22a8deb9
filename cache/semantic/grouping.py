"""Which questions have the same answer: new answers are compared with those of their neighbours, in the background."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from cache.entry import Entry
from cache.exact import ExactCache
from cache.semantic.answers import Gist, gist, same_answer
from cache.semantic.known import Known, Vector
from cache.semantic.questions import Row

MAX_GISTS = 4096
"""Answers whose gist is kept for comparing."""
MAX_WAITING = 1000
"""Answers that may wait to be compared; more are not, which costs hits and nothing else."""
LONG_ANSWER = 1000
"""Characters from which an answer is read in a thread: that takes a millisecond for every few hundred."""

_Job = tuple[Row, Vector | None, Sequence[bytes]]
_log = logging.getLogger(__name__)


class Grouping:
    """`answer_text` gives the text of an entry's answer, None where it has none to compare. `apart` says of two keys
    that their answers are known to differ."""

    def __init__(
        self,
        cache: ExactCache,
        known: Known,
        answer_text: Callable[[Entry], str | None],
        apart: Callable[[bytes, bytes], bool],
    ) -> None:
        self._cache = cache
        self._known = known
        self._answer_text = answer_text
        self._apart = apart
        self._gists: OrderedDict[bytes, Gist] = OrderedDict()
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue(MAX_WAITING)
        self._task = asyncio.create_task(self._work())

    def add(self, row: Row, vector: Vector | None, neighbours: Sequence[bytes]) -> None:
        """Compare its answer with theirs, and let the store keep what is known of the question."""
        if not self._jobs.full():
            self._jobs.put_nowait((row, vector, neighbours))

    def forget(self, key: bytes) -> None:
        """The answer under this key is not what it was."""
        self._gists.pop(key, None)

    async def done(self) -> None:
        """Return when nothing waits to be compared."""
        await self._jobs.join()

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            row, vector, neighbours = await self._jobs.get()
            try:
                same = await self._same_as(row.key, neighbours)
                for key in same:
                    self._known.questions.merge(row.key, key)
                await self._cache.note(self._known.note(row, vector, tuple(same)))
            except Exception:
                _log.exception("an answer could not be compared")
            finally:
                self._jobs.task_done()

    async def _same_as(self, key: bytes, neighbours: Sequence[bytes]) -> list[bytes]:
        """Those with the answer of this one, and with each other's: a brief answer ("30") may lie within several longer
        ones, and must not make one of them."""
        same: list[bytes] = []
        for other in neighbours:
            for known in (key, *same):
                if not await self._same(known, other):
                    break
            else:
                same.append(other)
        return same

    async def _same(self, one: bytes, other: bytes) -> bool:
        questions = self._known.questions
        if questions.get(one) is None or questions.get(other) is None or self._apart(one, other):
            return False
        a, b = await self._gist(one), await self._gist(other)
        return a is not None and b is not None and same_answer(a, b)

    async def _gist(self, key: bytes) -> Gist | None:
        kept = self._gists.get(key)
        if kept is not None:
            self._gists.move_to_end(key)
            return kept
        slot = await self._cache.get(key)
        text = None if slot is None else self._answer_text(slot.entry)
        if text is None:
            return None
        made = await asyncio.to_thread(gist, text) if len(text) > LONG_ANSWER else gist(text)
        self._gists[key] = made
        if len(self._gists) > MAX_GISTS:
            self._gists.popitem(last=False)
        return made
