"""One sequence about documents: the real gateway from its outermost callable on, real files and a real service."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, assert_never
from unittest.mock import patch

from backends.base import Call
from gateway.app import create_app
from gateway.config import Config
from tests.scopes.backend import ScriptedBackend
from tests.scopes.client import Client, Lifespan
from tests.scopes.documents import MARK, Labels, canaries, judge_documents
from tests.scopes.documents_shelves import Shelves
from tests.scopes.documents_telling import Telling
from tests.scopes.documents_world import (
    DOCUMENTS,
    FOLDER,
    FOR_TENANTS,
    TOPICS,
    Change,
    Library,
    Meanwhile,
    PurgeDocument,
    Restart,
    Search,
    Step,
)
from tests.scopes.harness import Course
from tests.scopes.log import Asked, Made
from tests.scopes.model import Leak
from tests.scopes.steps import Burst, Release, Wait
from tests.support.embedders import Placed
from tests.support.rag import Gate
from tests.support.retrievers import Shelf

QUIET = 0.02
"""Seconds without a change after which the folder's watcher believes what it sees; a tenth of what it usually waits."""
ON_ITS_WAY = 0.01
"""Seconds in which a request reaches the service."""


def place_of(text: str) -> str:
    """Where an embedder puts this text, be it a question or a document."""
    return next((topic for topic in TOPICS if topic in text.lower()), MARK)


class Quoting(ScriptedBackend):
    """Answers with the canaries of the prompt."""

    def says(self, made: Made, call: Call) -> str:
        found = sorted(canaries(call.body))
        return " ".join([super().says(made, call), *(f"canary-{name}-v{version}-" for name, version in found)])


class Reading(Course):
    """A sequence in progress. `shelf` is what the service at `url` has; `place` is a folder of this sequence's own."""

    def __init__(
        self, library: Library, counts: Counter[str], file: Path | None, place: Path, shelf: Shelf, url: str
    ) -> None:
        super().__init__(library, counts, file, small=False)
        self._library = library
        self._place = place
        self._shelf = shelf
        self._url = url
        self._telling = Telling(library, Shelves(place, shelf), self._log, self._clock, lambda: self._app)
        self._labels = Labels()
        self._backend = Quoting(self._log, self._clock)
        self._running = AsyncExitStack()

    async def run(self, steps: Sequence[Any]) -> None:
        """Raises Leak, with the number of the step in `at`."""
        quiet = patch("backends.retrievers.folder.watch.QUIET", QUIET)
        with quiet, patch("gateway.fleet.build", lambda name, settings: self._backend):
            try:
                await self._start()
                for number, step in enumerate([*steps, Release()]):
                    await self._take(number, step)
            finally:
                self._counts["opportunities"] += self._log.opportunities
                self._backend.release()
                await asyncio.gather(*(client.task for client in self._open), return_exceptions=True)
                await self._running.aclose()

    async def _start(self) -> None:
        self._app = create_app(
            self._config(), clock=self._clock, embedders=lambda _: Placed(place_of), announce=self._announced
        )
        await self._running.enter_async_context(Lifespan(self._app))
        await asyncio.sleep(0)
        await self._telling.started()

    async def _do(self, step: Any) -> None:
        await self._happen(step)

    async def _happen(self, step: Step) -> None:
        match step:
            case Burst() | Release() | Wait():
                await super()._do(step)
            case Change():
                await self._change(step)
            case Meanwhile(burst, change, held):
                await self._meanwhile(burst, change, held=held)
            case PurgeDocument(document):
                await self._telling.purge(document)
                await self._expect_nothing_kept(document)
                self._counts["purges"] += 1
            case Restart(changes):
                await self._restart(changes)
            case _:
                assert_never(step)

    async def _change(self, change: Change) -> None:
        if not await self._telling.tell(change):
            return
        self._counts[f"change_{change.what}"] += 1
        self._counts[change.how] += 1
        if change.what in ("delete", "erase") and change.how in ("notice", "purge"):
            await self._expect_nothing_kept(change.document)

    async def _meanwhile(self, burst: Burst, change: Change, *, held: bool) -> None:
        self._backend.script(burst.fates, burst.hold)
        gate = self._shelf.gate = Gate() if held else None
        self._open += [Client(self._app, self._log, self._clock, self._asked(ask)) for ask in burst.asks]
        await asyncio.sleep(ON_ITS_WAY if held else 0)
        try:
            await self._change(change)
        finally:
            self._shelf.gate = None
            if gate is not None:
                gate.open()
        await self._settle()
        self._backend.script(("good",), "no")

    async def _restart(self, changes: tuple[Change, ...]) -> None:
        await super()._do(Release())
        await self._running.aclose()
        self._telling.unseen(changes)
        await self._start()
        self._counts["restarts"] += 1

    async def _expect_nothing_kept(self, document: str) -> None:
        """While nobody makes anything of it."""
        if not self._open and not self._gateway.flights.count and (kept := await self._telling.kept(document)):
            raise Leak("kept after a purge", f"{document}: {kept}")

    def _check(self, client: Client) -> None:
        asked, ask = client.asked, client.asked.ask
        found = canaries(client.content)
        retriever = ask.retriever if isinstance(ask, Search) else self._library.retrieval[ask.endpoint]
        if not self._may_be(asked, retriever) or (asked.status != 200 and (found or asked.serials)):
            raise Leak("status", f"{asked.status} for {asked.person}: {client.content!r}")
        if asked.status != 200:
            self._counts[f"status_{asked.status}"] += 1
            return
        if isinstance(ask, Search):
            self._counts["requests"] += 1
            self._counts[f"search_{asked.outcome}"] += 1
        else:
            super()._check(client)
            maker = self._log.made[next(iter(asked.serials))].asked.person
            assert maker is not None
            assert asked.person is not None
            self._counts["shared"] += maker.permissions != asked.person.permissions
            self._counts["retrieved"] += b"retrieval; hit" in client.headers[b"cache-status"]
        # Whatever it is about, a folder has something that is more or less like the question.
        topic = None if isinstance(ask, Search) and retriever == FOLDER else ask.wording.place
        documents = self._telling.documents
        judge_documents(documents, asked, found, DOCUMENTS[retriever], topic)
        self._labels.judge(client.headers.get(b"x-refrain-documents", b"").decode(), found, retriever)
        self._counts["documents"] += len(found)
        self._counts["withheld"] += documents.withheld(asked, topic)

    def _may_be(self, asked: Asked, retriever: str) -> bool:
        """May the answer have this status?"""
        assert asked.person is not None
        tenant = asked.person.tenant
        if tenant not in FOR_TENANTS[self._library.retrieval[asked.ask.endpoint]]:
            return asked.status == 403
        if tenant not in FOR_TENANTS[retriever]:
            return asked.status == 404
        not_cached = asked.status == 504 and asked.ask.control.only_if_cached
        meanwhile = asked.status == 503 and self._telling.documents.changing(asked)
        return asked.status == 200 or not_cached or meanwhile

    def _config(self) -> Config:
        return Config.model_validate(self._library.library(self._store, self._url, self._place))
