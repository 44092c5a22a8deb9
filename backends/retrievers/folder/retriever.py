"""A folder of documents as a retriever: what the gateway sees of it."""

import asyncio
import logging
import secrets
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

from backends.retrievers.base import Changed, Embeds, EmbedsError, Found, RetrieverError, RetrieverState
from backends.retrievers.folder.database import DatabaseError
from backends.retrievers.folder.in_force import InForce
from backends.retrievers.folder.index import LARGE, Vectors
from backends.retrievers.folder.indexing import Indexing
from backends.retrievers.folder.pieces import RULES
from backends.retrievers.folder.progress import FolderProgress

SHORTENED = (2_000, 1_000, 500, 250, 120)
"""Characters to which a query is shortened that is too long for the model, one after the other."""

_log = logging.getLogger(__name__)


class FolderRetriever:
    """Finds pieces of the documents below `root`, under the access rules in the file `acl` (None: everybody may see
    everything), by vectors of `embeds`.

    `database` is an SQLite file for this retriever alone; None: in memory, where an erasure is forgotten at the end.
    """

    def __init__(
        self, name: str, root: Path, acl: Path | None, embeds: Embeds, database: Path | None, *, changed: Changed
    ) -> None:
        self.name = name
        self.revision = f"folder:{RULES}:{root}"
        self._embeds = embeds
        self._indexing = Indexing(name, root, acl, embeds, database, changed)
        self._task: asyncio.Task[None] | None = None
        self._sayings: set[asyncio.Task[None]] = set()
        self._closed = False
        # Nothing is kept under the generation of a retriever that does not serve: no other process will have it.
        self._no_generation = f"none-{secrets.token_hex(8)}"

    def __repr__(self) -> str:
        return f"FolderRetriever({self.name!r}, {self.state})"

    async def start(self) -> None:
        self._task = asyncio.create_task(self._indexing.run())

    @property
    def state(self) -> RetrieverState:
        if self._closed or self._indexing.folder_trouble or self._indexing.rules_missing:
            return "down"
        return "starting" if self._indexing.in_force is None else "ready"

    @property
    def detail(self) -> str:
        indexing = self._indexing
        if self._closed:
            return "stopped"
        if indexing.folder_trouble:
            return indexing.folder_trouble
        if indexing.rules_missing:
            return f"the access rules cannot be used: {indexing.rules_trouble}"
        doing = indexing.progress
        if indexing.in_force is not None:
            return "; ".join(self._ready(indexing.in_force, doing))
        if doing is not None:
            return str(doing)
        return "reading the folder" if self._embeds.ready else f"waiting for the embedding model: {self._embeds.detail}"

    @property
    def progress(self) -> FolderProgress | None:
        """Of the reading and embedding under way, if there is any."""
        return self._indexing.progress

    @property
    def generation(self) -> str:
        in_force = self._indexing.in_force
        return self._no_generation if in_force is None or self.state != "ready" else in_force.generation

    @property
    def lasting(self) -> float:
        return inf

    def effective(self, permissions: frozenset[str]) -> frozenset[str]:
        in_force = self._indexing.in_force
        return permissions if in_force is None else permissions & in_force.named

    async def search(
        self, query: str, *, top_k: int, permissions: frozenset[str] | None, deadline: float
    ) -> list[Found]:
        if not self._serving().index.rows(permissions):
            return []
        try:
            async with asyncio.timeout(deadline):
                vector = await self._vector(query, deadline)
                index = self._serving().index  # which may be another one by now
                if vector.shape != (index.dimensions,):
                    raise RetrieverError("failed", "the embedding model made a vector of another size than before")
                if index.rows(permissions) < LARGE:
                    return index.search(vector, top_k, permissions)
                return await asyncio.to_thread(index.search, vector, top_k, permissions)
        except TimeoutError:
            raise RetrieverError("deadline", f"nothing was found within {deadline:g} s") from None

    async def changed(self, document: str, *, version: str | None, deleted: bool) -> None:
        """An erased document comes back when its file has another version than the one that was erased, and not
        before: neither a restart nor a later call without `deleted` brings it back. `version` is of no use here."""
        if self._closed:
            raise RetrieverError("unavailable", "the retriever has been closed")
        indexing = self._indexing
        saying = asyncio.create_task(indexing.erase(document) if deleted else indexing.renew(document))
        self._sayings.add(saying)
        saying.add_done_callback(self._said)
        try:
            await asyncio.shield(saying)  # an erasure is carried out, also when nobody waits for it any more
        except DatabaseError:
            raise RetrieverError(
                "failed", "the document is found no more, but that could not be written down: say it again"
            ) from None

    async def aclose(self) -> None:
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._sayings:
            await asyncio.wait(self._sayings)
        await self._indexing.aclose()

    def _said(self, saying: asyncio.Task[None]) -> None:
        self._sayings.discard(saying)
        if not saying.cancelled() and (error := saying.exception()) is not None:
            _log.warning("retriever %s: what was said of a document was not done: %s", self.name, error)

    def _serving(self) -> InForce:
        """Raises RetrieverError."""
        state, in_force = self.state, self._indexing.in_force
        if state == "down":
            raise RetrieverError("unavailable", "the documents cannot be searched at the moment")
        if in_force is None:
            raise RetrieverError("starting", "the documents are being indexed")
        return in_force

    def _ready(self, in_force: InForce, doing: FolderProgress | None) -> Iterator[str]:
        index, skipped = in_force.index, self._indexing.skipped
        yield f"{_count(len(index.documents), 'document')}, {_count(index.pieces, 'piece')}"
        if skipped:
            yield f"{_count(skipped, 'file')} skipped"
        if self._indexing.rules_trouble:
            yield f"the former access rules stay in force: {self._indexing.rules_trouble}"
        if doing is not None:
            yield str(doing)

    async def _vector(self, query: str, deadline: float) -> Vectors:
        """Raises RetrieverError."""
        for text in (query, *_shortened(query)):
            try:
                vectors: Vectors = await self._embeds.embed([text], deadline=deadline)
            except EmbedsError as error:
                if not error.too_long:
                    raise RetrieverError(error.reason, f"there is no vector of the query: {error}") from None
            else:
                first: Vectors = vectors[0]
                return first
        raise RetrieverError("failed", "the query is too long for the embedding model")


def _shortened(query: str) -> Iterator[str]:
    """Its begin and its end: what is asked stands before or after what was pasted, seldom in the midst of it."""
    for most in SHORTENED:
        if len(query) > most:
            yield f"{query[: most // 2]}\n{query[-(most // 2) :]}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
