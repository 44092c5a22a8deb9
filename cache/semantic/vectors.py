"""Vectors when they are needed: of the question asked, and with it those of earlier ones that have none yet."""

import asyncio
from collections.abc import Callable, Sequence

from cache.semantic.embedder import Embedder, EmbedderError
from cache.semantic.known import Known, Vector
from cache.semantic.questions import Row

DEADLINE = 0.25
"""Seconds that an embedding may take; beyond that the question goes to the backend."""
BARE_AT_ONCE = 8
"""Vectors that one look-up makes for earlier questions of its context."""
BATCH = 32
"""Questions looked at before the event loop gets a turn."""


class Vectors:
    """`made` is told of each earlier question that has got its vector."""

    def __init__(self, known: Known, embedder: Embedder, made: Callable[[Row, Vector], None]) -> None:
        self._known = known
        self._embedder = embedder
        self._made = made
        self._making: dict[bytes, asyncio.Task[None]] = {}  # by key, so that many look-ups wait for one

    async def of(self, text: str, bare: Sequence[Row]) -> Vector:
        """The vector of this text; those of earlier questions are made in the same batch, the latest first, so that one
        that fails again and again is in nobody's way. Raises EmbedderError."""
        made = asyncio.gather(
            *(asyncio.shield(self._make(row)) for row in bare[-BARE_AT_ONCE:]), return_exceptions=True
        )
        [mine], _ = await asyncio.gather(self._embedder.embed([text], deadline=DEADLINE), made)
        vector: Vector = mine
        return vector

    async def similar(self, text: str, *, above: float, seconds: float) -> list[bytes]:
        """Keys of all questions, of whatever context, whose cosine to this text is at least `above`. Raises
        EmbedderError, also when it takes longer than so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                [wanted] = await self._embedder.embed([text], deadline=seconds)
                found, keys = [], list(self._known.questions)
                for begin in range(0, len(keys), BATCH):
                    await asyncio.sleep(0)
                    chunk = [row for key in keys[begin : begin + BATCH] if (row := self._known.questions.get(key))]
                    await self._complete(chunk, seconds)
                    vectors = ((row.key, self._known.vector(row.key)) for row in chunk)
                    found += [key for key, v in vectors if v is not None and float(v @ wanted) >= above]
                return found
        except TimeoutError:
            raise EmbedderError("deadline") from None

    def _make(self, row: Row) -> asyncio.Task[None]:
        task = self._making.get(row.key)
        if task is None:
            task = self._making[row.key] = asyncio.create_task(self._embed(row))
            task.add_done_callback(lambda _: self._making.pop(row.key, None))
        return task

    async def _embed(self, row: Row) -> None:
        """Without its vector it is not found this time; the next look-up tries again."""
        try:
            [vector] = await self._embedder.embed([row.text], deadline=DEADLINE)
        except EmbedderError as error:
            self._hopeless(row, error)
            return
        self._take(row, vector)

    async def _complete(self, rows: Sequence[Row], seconds: float) -> None:
        """Make the vectors that are missing. Raises EmbedderError, but not for what is one text's own fault."""
        bare = [row for row in rows if self._known.vector(row.key) is None]
        calls = (self._embedder.embed([row.text], deadline=seconds) for row in bare)
        for row, made in zip(bare, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if not isinstance(made, BaseException):
                self._take(row, made[0])
            elif not self._hopeless(row, made):
                raise made

    def _take(self, row: Row, vector: Vector) -> None:
        if self._known.embedded(row, vector):
            self._made(row, vector)

    def _hopeless(self, row: Row, error: BaseException) -> bool:
        """Is it a text of which there is no vector? Then it is forgotten."""
        hopeless = isinstance(error, EmbedderError) and error.reason == "too_long"
        if hopeless and self._known.questions.get(row.key) is row:
            self._known.forget(row.key)
        return hopeless
