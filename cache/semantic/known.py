"""What the tier knows: questions, and the vectors of those that are not alone in their context; kept in step with each
other, with what memory there is, and with what the store has kept over a restart."""

import asyncio
import logging
from collections.abc import Iterable

import numpy as np

from cache.exact import ExactCache
from cache.question import Question
from cache.semantic.embedder import Embedder
from cache.semantic.index import Index
from cache.semantic.questions import Questions, Row

SHARE_OF_VECTORS = 0.7
"""Of the bytes that the tier may take; the rest is for texts."""
LEAST = 64 * 1024
"""Bytes that vectors may take in any case."""
PAGE = 500
"""Questions read or looked up at once."""
SAY_EVERY = 5_000
"""Questions between two lines that say how far the reading is."""

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
    def index(self) -> Index | None:
        if self._index is None and self._embedder.dimensions:
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

    def add(self, row: Row, vector: Vector | None) -> None:
        """A question whose key is new."""
        index = self.index
        if index is None:
            vector = None
        self._drop(self.questions.add(row, bare=vector is None))
        if vector is not None and index is not None and self.questions.get(row.key) is row:
            self._drop(index.add(row.context, row.key, vector))

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

    def note(self, row: Row, vector: Vector | None, same: tuple[bytes, ...] = ()) -> Question:
        """What the store is to keep of it."""
        if vector is None:
            return Question(row.key, row.context, row.text, same=same)
        raw = vector.astype("<f4").tobytes()
        return Question(row.key, row.context, row.text, self._embedder.identity, raw, same)

    async def restore(self) -> int:
        """Take over what the store has kept, once the embedder is ready; how many questions. Raises
        StoreUnavailable."""
        after, taken = b"", 0
        same: list[tuple[bytes, bytes]] = []  # pages are in the order of keys, so one of a pair may come later
        while page := await self._cache.questions(after=after, limit=PAGE):
            after = page[-1].key
            for question in page:
                if self.questions.get(question.key) is None:
                    self.add(Row(question.key, question.context, question.text), self._vector_of(question))
                    same += ((question.key, other) for other in question.same)
            taken += len(page)
            if taken % SAY_EVERY == 0:
                _log.info("semantic index: %d questions read", taken)
            await asyncio.sleep(0)
        for one, other in same:
            self.questions.merge(one, other)
        return taken

    async def sweep(self) -> int:
        """Forget what the cache has lost: expired, evicted, purged; how many. Raises StoreUnavailable."""
        keys, forgotten = list(self.questions), 0
        for begin in range(0, len(keys), PAGE):
            chunk = keys[begin : begin + PAGE]
            there = await self._cache.known(chunk)
            for key in chunk:
                if key not in there:
                    self.forget(key)
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
        return vector if abs(float(vector @ vector) - 1.0) < 1e-3 else None
