"""Documents that have changed: the retriever is told, then what is stored of them goes.

The order is the point. Once the retriever has its new generation, nobody can make anything from the old document any
more; what somebody had begun to make from it before is met by the purge, and not stored. The other way round, what is
begun between the two would be kept.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import structlog

from backends.retrievers import Retriever, RetrieverError
from cache.exact import ExactCache
from cache.match import Match
from cache.stores.base import StoreUnavailable
from gateway.config.retrievers import FolderRetriever
from gateway.errors import ApiError
from gateway.logs import where
from gateway.retrieval.labels import label
from gateway.retrieval.managed import Managed
from gateway.semantics import Semantics
from gateway.state import AuditLine, State, StateError

ACTION = "documents_changed"
"""What the audit log calls it, whoever has told of it."""
TELL_SECONDS = 60.0
"""Seconds that a retriever has for all changes of one call: to read files again, but not for ever."""
BATCH = 256
BATCH_CHARACTERS = 16 * 1024
"""Documents of one purge and their ids' characters: what one line of the audit log should hold."""
CLOSE_SECONDS = 5.0
"""Seconds for what is still to be removed when the gateway stops."""

log = structlog.get_logger("refrain")


@dataclass(frozen=True, slots=True)
class Change:
    """The document with this id is new or another one (`version`, where that is known), or is to be found no more."""

    document: str
    version: str | None = None
    deleted: bool = False

    def shown(self) -> dict[str, Any]:
        more: dict[str, Any] = {"deleted": True} if self.deleted else {}
        return {"id": self.document, **({"version": self.version} if self.version is not None else {}), **more}


class Author(NamedTuple):
    """Whom the audit log names where nobody came by a credential. No principal has these roles."""

    tenant: str
    user: str
    role: str


def author(managed: Managed | None, user: str, role: str) -> Author:
    """A retriever of one tenant speaks in the part of the audit log which that tenant's people see."""
    tenants = managed.config.tenants if managed is not None else frozenset()
    return Author(next(iter(tenants)) if len(tenants) == 1 else "", user, role)


class Changes:
    """One per gateway. `state` and `retrievers` (those in force, by name) are asked when they are needed."""

    def __init__(
        self,
        cache: ExactCache,
        semantics: Semantics,
        clock: Callable[[], float],
        *,
        state: Callable[[], State],
        retrievers: Callable[[], Mapping[str, Managed]],
    ) -> None:
        self._cache = cache
        self._semantics = semantics
        self._clock = clock
        self._state = state
        self._retrievers = retrievers
        self._waiting: dict[str, dict[str, None]] = {}  # ids by retriever, in the order in which they came
        self._told: Counter[tuple[str, str]] = Counter()  # (retriever, id) of which a retriever is being told
        self._work: asyncio.Task[None] | None = None

    async def tell(self, managed: Managed, changes: Sequence[Change]) -> None:
        """Have the retriever take note, and write down what it will have to know after a restart. Whoever calls this
        removes what is stored of these documents afterwards, so it is not done on the retriever's word as well. Raises
        ApiError 503 where one of them was not taken note of."""
        documents = [change.document for change in changes]
        told = Counter((managed.name, document) for document in documents)
        self._told += told
        try:
            try:
                await _tell(managed.retriever, changes)
                await self._record(managed, changes)
            finally:
                self._told -= told
        except ApiError:
            raise
        except BaseException:
            self.forget(managed.name, documents)  # since nobody will
            raise

    async def announce(self, managed: Managed, changes: Sequence[Change]) -> int:
        """Tell the retriever, and remove what is stored of these documents, for all tenants; gives how much that was.
        Raises ApiError where the retriever could not do it, or it could not be written down (what is stored is gone all
        the same: that is never wrong) and StoreUnavailable."""
        failed = None
        try:
            await self.tell(managed, changes)
        except ApiError as error:
            failed = error
        purged = await self._remove(managed.name, [change.document for change in changes])
        if failed is not None:
            raise failed
        return purged

    def forget(self, retriever: str, documents: Sequence[str]) -> None:
        """The retriever has found by itself that these have changed, and its new generation is in force: what is stored
        of them is removed soon. Never raises."""
        waiting = [document for document in documents if (retriever, document) not in self._told]
        if waiting:
            self._waiting.setdefault(retriever, {}).update(dict.fromkeys(waiting))
            if self._work is None or self._work.done():
                self._work = asyncio.create_task(self._work_off())

    async def aclose(self) -> None:
        """Remove what is to be removed, if that takes no time. Harmless when called twice."""
        if self._work is not None:
            await asyncio.wait({self._work}, timeout=CLOSE_SECONDS)
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _work_off(self) -> None:
        while self._waiting:
            retriever, waiting = next(iter(self._waiting.items()))
            documents = first_batch(waiting)
            for document in documents:
                del waiting[document]
            if not waiting:
                del self._waiting[retriever]
            try:
                await self._forget(retriever, documents)
            except Exception as error:
                log.error("unexpected error", retriever=retriever, kind=type(error).__name__, where=where(error))

    async def _record(self, managed: Managed, changes: Sequence[Change]) -> None:
        """Services may still find what was erased, so the gateway remembers it; a folder does so itself. Nothing waits
        between the retriever's word and the call that writes, so notices of one document are written in the order in
        which they came."""
        said = [(change.document, change.deleted) for change in changes if change.deleted or change.version is not None]
        if isinstance(managed.config, FolderRetriever) or not said:
            return
        try:
            await self._state().note_erased(managed.name, said, at=self._clock())
        except StateError as error:
            log.error("a notice of documents could not be written", retriever=managed.name, reason=str(error))
            text = "The change is in force, but it could not be written: a restart may forget it. Try again."
            raise ApiError(503, text, code="not_recorded", headers={"retry-after": "5"}) from None

    async def _forget(self, retriever: str, documents: list[str]) -> None:
        who = author(self._retrievers().get(retriever), f"retriever:{retriever}", "gateway")
        details = {"retriever": retriever, "documents": [Change(document).shown() for document in documents]}
        number = None
        try:
            number = await self._state().begin(
                AuditLine(self._clock(), who.tenant, who.user, who.role, ACTION, details, request_id="")
            )
        except StateError as error:
            # Nobody waits to try again, and a document that has gone must not stay for want of a line.
            log.error("an audit line could not be written", action=ACTION, retriever=retriever, reason=str(error))
        result: Mapping[str, Any]
        try:
            result = {"purged": await self._remove(retriever, documents)}
        except StoreUnavailable as error:
            # The cache uses nothing of it any more, whatever the store still has.
            log.warning("the store could not remove what came from documents", retriever=retriever, reason=str(error))
            result = {"error": "store_unavailable"}
        log.info("audit", action=ACTION, by=who.user, tenant=who.tenant, role=who.role, details=details, result=result)
        if number is not None:
            try:
                await self._state().end(number, result=result)
            except StateError as error:
                log.error("an audit line could not be completed", number=number, reason=str(error))

    async def _remove(self, retriever: str, documents: Iterable[str]) -> int:
        labels = frozenset(label(retriever, document) for document in documents)
        purged = await self._cache.purge(Match(documents=labels))
        self._semantics.purged()
        return purged


def first_batch(documents: Iterable[str]) -> list[str]:
    """The first of them, as many as one purge should name: at least one."""
    batch: list[str] = []
    characters = 0
    for document in islice(documents, BATCH):
        characters += len(document)
        if batch and characters > BATCH_CHARACTERS:
            break
        batch.append(document)
    return batch


async def _tell(retriever: Retriever, changes: Iterable[Change]) -> None:
    """Of all at once, in their order: a retriever may do for many what it would do for each."""
    telling = [retriever.changed(one.document, version=one.version, deleted=one.deleted) for one in changes]
    try:
        async with asyncio.timeout(TELL_SECONDS):
            said = await asyncio.gather(*telling, return_exceptions=True)
    except TimeoutError:
        raise _refused("deadline", "It took too long.") from None
    for error in said:
        if isinstance(error, RetrieverError):
            raise _refused(error.reason, str(error)) from None
        if error is not None:
            raise error


def _refused(reason: str, message: str) -> ApiError:
    text = f"The retriever could not take note of the change; try again. {message}"
    return ApiError(503, text, code=f"retriever_{reason}", headers={"retry-after": "5"})
