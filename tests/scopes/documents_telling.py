"""Changes of documents, how the gateway learns of them, and from when on they must be in force."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.scopes.client import App, call
from tests.scopes.documents import MARK, UNNOTICED, Documents, canaries, visible
from tests.scopes.documents_shelves import Shelves
from tests.scopes.documents_world import DOCUMENTS, FOLDER, FOR_TENANTS, KB, Change, Library, retriever_of
from tests.scopes.log import Log
from tests.scopes.model import Leak
from tests.scopes.world import ADMIN

AGAIN = 0.01
"""Seconds between two looks at the folder's state."""
IN_FORCE = 10.0
"""Seconds in which a change of the folder has to show."""


class Telling:
    """`app` gives the application that runs."""

    def __init__(
        self, library: Library, shelves: Shelves, log: Log, clock: Callable[[], float], app: Callable[[], App]
    ) -> None:
        self.documents = Documents()
        self._library = library
        self._shelves = shelves
        self._log = log
        self._clock = clock
        self._app = app
        for retriever in library.retrievers:
            for name in DOCUMENTS[retriever]:
                self.documents.become(name, None, 0)

    async def tell(self, change: Change) -> bool:
        """Make a change; False: it was none. When it returns the change is in force, but for one without a word."""
        tick = self._log.tick()
        if not self._shelves.change(change) and change.what != "erase":
            return False
        await (self._folder if retriever_of(change.document) == FOLDER else self._service)(change, tick)
        return True

    async def purge(self, name: str) -> None:
        """The gateway has it read again: after that it is found as it is."""
        tick = self._log.tick()
        if retriever_of(name) == FOLDER:
            self.documents.become(name, None, tick)
            self.documents.become(name, self._shelves.found(name), tick)
        await self._admin("/admin/purge", {"documents": [label_of(name)]})
        await self.until_in_force()
        self.documents.in_force(name, self._log.tick())

    def unseen(self, changes: tuple[Change, ...]) -> None:
        """They happen while the gateway does not run."""
        tick = self._log.tick()
        for change in changes:
            if self._shelves.change(change):
                self._read_anew(change)
        for name in self.documents.spells:
            self.documents.become(name, self._shelves.found(name), tick)

    async def started(self) -> None:
        await self.until_in_force()
        for name in self.documents.spells:
            self.documents.in_force(name, self._log.tick())

    async def kept(self, name: str) -> list[str]:
        """What is stored of a document, by kind."""
        _, found = await call(self._app(), "GET", "/admin/entries", ADMIN, query=f"document={label_of(name)}".encode())
        return [entry["api"] for entry in found["entries"]]

    async def until_in_force(self) -> None:
        """Until searches of the folder that no cache has a part in find what is there, for everybody."""
        if FOLDER not in self._library.retrievers:
            return
        keys = [key for key in self._library.keys if key.person.tenant in FOR_TENANTS[FOLDER]]
        there = {name: content for name in DOCUMENTS[FOLDER] if (content := self._shelves.found(name)) is not None}
        wanted = [(visible(there, key.person.permissions), self._shelves.marked) for key in keys]
        try:
            async with asyncio.timeout(IN_FORCE):
                while [await self._finds(key.token) for key in keys] != wanted:  # noqa: ASYNC110 (it tells nobody)
                    await asyncio.sleep(AGAIN)
        except TimeoutError:
            raise Leak("never in force", f"{there} for {[key.person for key in keys]}") from None

    async def _finds(self, token: str) -> tuple[set[tuple[str, int]], bool] | None:
        """The documents, and is the mark among them? None: the folder has not been compared yet."""
        body = {"query": "anything", "max_num_results": 50, "cache": {"no-store": True}}
        path = f"/{self._library.endpoint_of(FOLDER)}/v1/vector_stores/{FOLDER}/search"
        status, page = await call(self._app(), "POST", path, token, body)
        if status != 200:
            return None
        texts = [item["content"][0]["text"] for item in page["data"]]
        return canaries(" ".join(texts).encode()), MARK in texts

    async def _service(self, change: Change, tick: int) -> None:
        name = change.document
        if change.how == "silent":
            until = self._clock() + UNNOTICED
            self.documents.become(name, self._shelves.found(name), tick, until=until)
        elif change.how == "purge":
            self.documents.become(name, self._shelves.found(name), tick)
            await self.purge(name)
        else:
            await self._notice(change, tick)
            self.documents.in_force(name, self._log.tick())

    async def _folder(self, change: Change, tick: int) -> None:
        name = change.document
        self._read_anew(change)
        if change.how == "watch":
            self.documents.become(name, self._shelves.found(name), tick)
        elif change.what in ("erase", "delete"):
            await self._notice(change, tick)
            self.documents.in_force(name, self._log.tick())
        else:
            # It is taken out of the index, and read again.
            self.documents.become(name, None, tick)
            await self._notice(change, tick)
            if change.what == "text":  # it is not told of other permissions
                self.documents.in_force(name, self._log.tick(), but=2)
        await self.until_in_force()
        self.documents.in_force(name, self._log.tick())

    def _read_anew(self, change: Change) -> None:
        """What is gone from a folder stays so while it has the same content, whatever is said of it."""
        if change.what == "text" and retriever_of(change.document) == FOLDER:
            self._shelves.gone.discard(change.document)

    async def _notice(self, change: Change, tick: int) -> None:
        name, retriever = change.document, retriever_of(change.document)
        content = None if change.what == "erase" else self._shelves.actual.get(name)
        if content is None:
            self._shelves.gone.add(name)
        elif retriever == KB:
            self._shelves.gone.discard(name)
        self.documents.become(name, self._shelves.found(name), tick)
        said = {"deleted": True} if content is None else {"version": str(content.version)}
        id = label_of(name).partition("/")[2]
        await self._admin("/admin/documents", {"retriever": retriever, "id": id, **said})

    async def _admin(self, path: str, body: dict[str, Any]) -> None:
        status, found = await call(self._app(), "POST", path, ADMIN, body)
        if status != 200:
            raise Leak("status", f"{status} for {path} {body}: {found}")


def label_of(name: str) -> str:
    return f"{FOLDER}/{name}.md" if retriever_of(name) == FOLDER else f"{KB}/{name}"
