"""Reads files, and embeds what is new in them: one run over some files.

Reading goes ahead of embedding, so that the model always has texts of about the same length to choose from, and the
number of pieces is known early. Vectors are written to the database as they are made: a run that is interrupted has
lost none but the last few hundred.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from backends.retrievers.base import Embeds
from backends.retrievers.folder.chunking import MOST, Piece
from backends.retrievers.folder.database import Database, DatabaseError
from backends.retrievers.folder.embedding import vectors_of
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.formats_base import Unreadable
from backends.retrievers.folder.index import Vectors, stacked
from backends.retrievers.folder.pieces import checksum, digest, effort, embedded, titled
from backends.retrievers.folder.plan import Read
from backends.retrievers.folder.progress import FolderProgress
from backends.retrievers.folder.reader import Reader
from backends.retrievers.folder.reader_wire import Document
from backends.retrievers.folder.table import NO_ROOM, Refused

TEXTS = 16
"""In a call."""
CALLS = 2
"""Under way at a time."""
AHEAD = 8_192
"""Texts that may wait for the model; then reading waits."""
NO_READER = 5.0
"""Seconds until it is tried again to start the process that reads."""
WRITTEN = 256
"""Vectors that are written at once."""

_log = logging.getLogger(__name__)
Erased = Callable[[str, str], bool]
"""Whether this version of this document is to be found no more."""


class Filling:
    """`embeds` must be ready. `room` is how many pieces may be read; a document that does not fit is refused."""

    def __init__(
        self,
        reader: Reader,
        embeds: Embeds,
        database: Database,
        progress: FolderProgress,
        *,
        erased: Erased,
        room: int,
    ) -> None:
        self.progress = progress
        self._reader = reader
        self._embeds = embeds
        self._embedder, self._dimensions = embeds.identity, embeds.dimensions
        self._database = database
        self._erased = erased
        self._room = room
        self._texts = _Texts(AHEAD)
        self._documents: dict[str, tuple[FileState, str, tuple[Piece, ...]]] = {}
        self._refused: dict[str, Refused] = {}
        self._vectors: dict[bytes, Vectors | None] = {}
        self._unwritten: list[tuple[bytes, Vectors]] = []

    async def run(self, files: Mapping[str, FileState]) -> tuple[dict[str, Read], dict[str, Refused]]:
        """What became of each file. Waits for the model for as long as it takes."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(files))
                for _ in range(CALLS):
                    tasks.create_task(self._embed())
        finally:
            await self._write()
        read: dict[str, Read] = {}
        for name, (state, version, pieces) in self._documents.items():
            rows = [self._vectors[digest(piece)] for piece in pieces]
            good = [row for row in rows if row is not None]
            if len(good) < len(rows):
                self._refused[name] = Refused(state, "has a text of which the embedding model makes no vector")
            else:
                vectors = stacked(good, self._dimensions)
                read[name] = Read(state, version, checksum(pieces), pieces, vectors)
        return read, self._refused

    async def _read(self, files: Mapping[str, FileState]) -> None:
        for name, state in files.items():
            pieces: Sequence[Piece] = ()
            try:
                document = await self._opened(name)
            except Unreadable as error:
                self._refused[name] = Refused(state, str(error))
            except Exception:
                # Whatever is wrong with it must not keep the others out.
                _log.exception("a document could not be read: %r", name)
                self._refused[name] = Refused(state, "could not be read")
            else:
                pieces = titled(name, document.pieces)
                if self._erased(name, document.version):
                    self._refused[name] = Refused(state, "")
                    pieces = ()
                elif len(pieces) > self._room:
                    self._refused[name] = Refused(state, NO_ROOM)
                    pieces = ()
                else:
                    self._room -= len(pieces)
                    self._documents[name] = state, document.version, pieces
            await self._want(state.size, pieces)
        await self._texts.close()

    async def _opened(self, name: str) -> Document:
        """Raises Unreadable, and what nobody thought of."""
        while True:
            try:
                return await self._reader.read(name, most=MOST)
            except OSError as error:  # the file is not to blame
                _log.warning("documents cannot be read at the moment: %s", error)
                await asyncio.sleep(NO_READER)

    async def _want(self, size: int, pieces: Sequence[Piece]) -> None:
        """Have the pieces of a file embedded, but for those that have vectors already."""
        digests = await asyncio.to_thread(lambda: {digest(piece): piece for piece in pieces})
        wanted = {one: piece for one, piece in digests.items() if one not in self._vectors}
        try:
            found = await self._database.vectors(self._embedder, self._dimensions, list(wanted))
        except DatabaseError:
            found = {}
        self._vectors.update(found)
        new = {one: piece for one, piece in wanted.items() if one not in found}
        self._vectors.update(dict.fromkeys(new))  # the same text in the next file waits for the same vector
        self.progress.read(size, len(pieces), len(pieces) - len(new))
        await self._texts.put(await asyncio.to_thread(_texts, new))

    async def _embed(self) -> None:
        while texts := await self._texts.take(TEXTS):
            self.progress.embedding()
            made = await vectors_of([text for _, _, text in texts], self._embeds, self.progress)
            for (_, one, _), vector in zip(texts, made, strict=True):
                self._vectors[one] = vector
                if vector is not None:
                    self._unwritten.append((one, vector))
            self.progress.made(len(texts))
            if self.progress.due():
                _log.info("%s (%.0f a second)", self.progress, self.progress.rate)
            if len(self._unwritten) >= WRITTEN:
                await self._write()

    async def _write(self) -> None:
        vectors, self._unwritten = self._unwritten, []
        if vectors:
            try:
                await self._database.put_vectors(self._embedder, vectors)
            except DatabaseError as error:
                _log.warning("vectors are not kept over a restart: %s", error)


Text = tuple[int, bytes, str]
"""Effort, digest and the text itself."""


def _texts(pieces: Mapping[bytes, Piece]) -> list[Text]:
    return [(effort(text), one, text) for one, piece in pieces.items() if (text := embedded(piece))]


class _Texts:
    """Texts that wait for the model."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._waiting: list[Text] = []
        self._closed = False
        self._changed = asyncio.Condition()

    async def put(self, texts: Sequence[Text]) -> None:
        """Waits while there are too many."""
        async with self._changed:
            self._waiting += texts
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(self._waiting) <= self._bound)

    async def close(self) -> None:
        """No more will come."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def take(self, count: int) -> list[Text]:
        """Those of the most effort, which are so of about the same; waits until there are enough. At the end: []."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or len(self._waiting) >= count)
            self._waiting.sort()
            taken = self._waiting[-count:]
            del self._waiting[-count:]
            self._changed.notify_all()
            return taken
