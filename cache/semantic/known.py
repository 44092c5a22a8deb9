"""What the tier knows: questions, and the vectors of those that are not alone in their context; kept in step with each
other, with what memory there is, and with what the store has kept over a restart."""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from cache.exact import ExactCache
from cache.question import Question
from cache.semantic.embedder import Embedder
from cache.semantic.questions import MAX_BARE, Questions, Row, name_of

if TYPE_CHECKING:
    from cache.semantic.index import Index

SHARE_OF_VECTORS = 0.7
"""Of the bytes that the tier may take; the rest is for texts."""
LEAST = 64 * 1024
"""Bytes that vectors may take in any case."""
PAGE = 1000
"""Questions read or looked up at once."""
ROWS_AT_ONCE = 50
"""Questions taken over before the event loop gets a turn: a millisecond or two."""
MAX_SAME = 64
"""Answers that are named beside a question in the store."""

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
_log = logging.getLogger(__name__)


class Known:
    """At most `max_bytes`; all belongs to the event loop's thread. `index` is None until the embedder has said how long
    its vectors are."""

    def __init__(self, cache: ExactCache, embedder: Embedder, max_bytes: int) -> None:
        self.questions = Questions(int(max_bytes * (1 - SHARE_OF_VECTORS)))
        self._cache = cache
        self._embedder = embedder
        self._max_bytes = max_bytes
        self._index: Index | None = None

    @property
    def index(self) -> "Index | None":
        if self._index is None and self._embedder.dimensions:
            from cache.semantic.index import Index  # late: it loads FAISS

            room = max(LEAST, int(self._max_bytes * SHARE_OF_VECTORS))
            self._index = Index(self._embedder.dimensions, max_bytes=room)
        return self._index

    @property
    def vectors(self) -> int:
        return len(self._index) if self._index is not None else 0

    @property
    def size(self) -> int:
        """Bytes that all of it takes."""
        return self.questions.bytes + (self._index.bytes if self._index is not None else 0)

    def add(self, row: Row, vector: Vector | None) -> bool:
        """A question whose key is new. Whether none had to go for it."""
        index = self.index
        if index is None:
            vector = None
        gone = self.questions.add(row, bare=vector is None)
        if vector is not None and index is not None and self.questions.get(row.key) is row:
            gone += index.add(row.context, row.key, vector)
        self._drop(gone)
        return not gone

    def embedded(self, row: Row, vector: Vector) -> bool:
        """The vector of a question that had none; False where that is no longer known."""
        if self.index is None or self.questions.get(row.key) is not row:
            return False
        self._drop(self.index.add(row.context, row.key, vector))
        self.questions.embedded(row.key)
        return True

    def vector(self, key: bytes) -> Vector | None:
        return self._index.vector(key) if self._index is not None else None

    def forget(self, key: bytes) -> None:
        self.questions.remove(key)
        if self._index is not None:
            self._index.remove(key)

    def note(self, row: Row, vector: Vector | None, same: Iterable[Row]) -> Question:
        """What the store is to keep of it; `same` are others with the same answer."""
        names = tuple(one.name for one in (row, *same) if one.name)[:MAX_SAME] if row.name else ()
        if vector is None:
            return Question(row.key, row.context, row.text, same=names)
        raw = vector.astype("<f4").tobytes()
        return Question(row.key, row.context, row.text, self._embedder.identity, raw, names)

    async def restore(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Take over what the store has kept, once the embedder is ready, as far as there is room: how many questions,
        and which of them have the same answer (by key). Raises StoreUnavailable."""
        after, taken = b"", 0
        keys: dict[bytes, bytes] = {}  # by the name of the answer
        links: list[tuple[bytes, bytes]] = []  # names; of a pair one may come much later
        while page := await self._cache.questions(after=after, limit=PAGE):
            after = page[-1].key
            there = await self._cache.known([question.key for question in page])
            for number, question in enumerate(page):
                if number % ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if self.questions.get(question.key) is not None or question.key not in there:
                    continue
                name, vector = name_of(question.key, there[question.key]), self._vector_of(question)
                own, *others = question.same or (name,)
                if own != name:
                    continue  # this was noted of another answer, and nothing was of the one that is there now
                if vector is None and self.questions.waiting(question.context) >= MAX_BARE:
                    continue
                row = Row(question.key, question.context, question.text, name)
                if not self.questions.fits(row) or not self.add(row, vector):
                    _log.warning("semantic index: full after %d questions; the others are left out", taken)
                    return taken, _pairs(keys, links)
                taken += 1
                keys[name] = row.key
                links += ((name, other) for other in others)
            _log.info("semantic index: %d questions read", taken)
        return taken, _pairs(keys, links)

    async def sweep(self) -> int:
        """Forget what the cache has lost: expired, evicted, purged; how many. Raises StoreUnavailable."""
        keys, forgotten = list(self.questions), 0
        for begin in range(0, len(keys), PAGE):
            chunk = [row for key in keys[begin : begin + PAGE] if (row := self.questions.get(key)) is not None]
            there = await self._cache.known([row.key for row in chunk])
            await asyncio.sleep(0)
            for row in chunk:
                # One that has been answered anew meanwhile is another row.
                if row.key not in there and self.questions.get(row.key) is row:
                    self.forget(row.key)
                    forgotten += 1
        return forgotten

    def close(self) -> None:
        if self._index is not None:
            self._index.close()

    def _drop(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.forget(key)

    def _vector_of(self, question: Question) -> Vector | None:
        """The stored vector, if it is one of this embedder and sound."""
        if question.embedder != self._embedder.identity or len(question.vector) != 4 * self._embedder.dimensions:
            return None
        vector = np.frombuffer(question.vector, dtype="<f4").astype(np.float32)
        if not (np.abs(vector) <= 1.001).all():  # also false of what is no number
            return None
        return vector if abs(float(vector @ vector) - 1.0) < 1e-3 else None


def _pairs(keys: dict[bytes, bytes], links: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The links between names as pairs of keys, where both are there."""
    return [(keys[one], keys[other]) for one, other in links if one in keys and other in keys]
