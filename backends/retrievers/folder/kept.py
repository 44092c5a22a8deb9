"""What is kept of an index over a restart."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from backends.retrievers.folder import plan
from backends.retrievers.folder.chunking import Piece
from backends.retrievers.folder.database import Database, DatabaseError
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.index import Index, Indexed
from backends.retrievers.folder.pieces import RULES, digest
from backends.retrievers.folder.table import Memory, Refused, Row

_log = logging.getLogger(__name__)


class Kept:
    """What the database has. Where it has failed, what could not be written is written by the next `save`."""

    def __init__(self, name: str, database: Database) -> None:
        self.memory = Memory()
        self.rows: list[Row] = []  # documents, until an index is made of them
        self.refused: dict[str, Refused] = {}  # at the begin
        self._name = name
        self._database = database
        self._begun = 0
        self._documents: dict[str, tuple[FileState, Indexed] | None] = {}
        self._refused: Mapping[str, Refused] = {}
        self._left: set[bytes] = set()  # digests of vectors that perhaps no document has
        self._clean = False

    async def open(self) -> None:
        try:
            self.memory = await self._database.memory()
            self.rows = await self._database.rows()
            self.refused = await self._database.refused(RULES)
        except DatabaseError as error:
            _log.warning("retriever %s: its database cannot be read, all is embedded anew: %s", self._name, error)
        self._begun = self._database.begun
        # What other rules have made is there as well: to be replaced, or to go.
        self._documents = {row.id: (row.state, row.document) if row.rules == RULES else None for row in self.rows}
        self._refused = self.refused

    def marks(self) -> dict[str, plan.Mark]:
        return plan.marks({row.id: row.document for row in self.rows})

    async def index(self, embedder: str, dimensions: int) -> tuple[Index, dict[str, FileState]]:
        """Of the documents that can be used as they are; and the states that their files had when they were read."""
        rows = [row for row in self.rows if row.rules == RULES and not self.is_erased(row.id, row.document.version)]
        self.rows = []
        digests = await asyncio.to_thread(lambda: [digest(piece) for row in rows for piece in row.document.pieces])
        try:
            vectors = await self._database.vectors(embedder, dimensions, digests)
        except DatabaseError as error:
            _log.warning("retriever %s: its vectors cannot be read: %s", self._name, error)
            vectors = {}
        index = await asyncio.to_thread(plan.restored, rows, vectors, embedder, dimensions)
        return index, {row.id: row.state for row in rows if row.id in index.documents}

    def is_erased(self, document: str, version: str) -> bool:
        return (document, version) in self.memory.erased

    def told(self, document: str, *, erased: Collection[str] = ()) -> None:
        """Somebody said something of a document: that it has changed, or that these versions are to be found no
        more."""
        versions = self.memory.erased | {(document, version) for version in erased}
        self.memory = replace(self.memory, erased=versions, told=self.memory.told + 1)
        self.rows = [row for row in self.rows if row.id != document]

    async def erase(self, documents: Collection[str]) -> None:
        """Write down what was told, and overwrite these documents. Raises DatabaseError."""
        if documents:
            await self._database.remember(self.memory)
            await self._database.erase(documents)

    async def renew(self, pieces: Iterable[Piece]) -> None:
        """Write down what was told, and let go of the vectors of these pieces."""
        with suppress(DatabaseError):  # without a database there are none
            await self._database.remember(self.memory)
            await self._database.discard([digest(piece) for piece in pieces])

    async def save(self, index: Index, known: Mapping[str, FileState], refused: Mapping[str, Refused]) -> None:
        """What the database does not have yet."""
        try:
            while True:
                begun = self._database.begun
                await self._save(index, known, refused, anew=begun != self._begun)
                self._begun = begun
                if begun == self._database.begun:
                    break
        except DatabaseError as error:
            _log.warning("retriever %s: the index is not kept over a restart: %s", self._name, error)

    async def clean(self, embedder: str) -> None:
        """Let go of vectors that no document has: when all has been read, since a file may only have moved."""
        try:
            if not self._clean:
                await self._database.drop_unused(embedder)
            elif self._left:
                await self._database.drop(self._left)
            self._clean, self._left = True, set()
        except DatabaseError as error:
            _log.warning("retriever %s: vectors that are of no use stay in its database: %s", self._name, error)

    async def _save(
        self, index: Index, known: Mapping[str, FileState], refused: Mapping[str, Refused], *, anew: bool
    ) -> None:
        """`anew`: the database has nothing of what was written before. Raises DatabaseError."""
        if anew:
            self._documents, self._refused = {}, {}
            await self._database.put_vectors(index.embedder, await asyncio.to_thread(plan.vectors, index))
        now = {name: (known[name], document) for name, document in index.documents.items()}
        put, gone = await asyncio.to_thread(_differences, self._documents, now)
        if put or gone:
            self._left |= await self._database.save(put, gone)
            self._documents = {**now}
        if refused != self._refused:
            await self._database.refuse(RULES, refused)
            self._refused = refused


def _differences(
    before: Mapping[str, tuple[FileState, Indexed] | None], now: Mapping[str, tuple[FileState, Indexed]]
) -> tuple[list[Row], Iterable[str]]:
    put = [Row(name, *one) for name, one in now.items() if before.get(name) != one]
    return put, before.keys() - now.keys()
