"""Retrievers over real folders, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from backends.retrievers import Found
from backends.retrievers.folder.retriever import FolderRetriever
from tests.backends.retrievers.folder.words import Words


class Folder:
    """The documents `root`, the rules `acl` where they have been written, and the database, over several lives."""

    def __init__(self, tmp: Path) -> None:
        self.root = tmp / "docs"
        self.root.mkdir()
        self.acl: Path | None = None
        self.database: Path | None = tmp / "index" / "folder.db"
        self.words = Words()
        self.told: list[list[str]] = []

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def rules(self, text: str) -> None:
        self.acl = self.root / "acl.yaml"
        self.acl.write_text(text)

    def tell(self, documents: Sequence[str]) -> None:
        self.told.append(list(documents))

    def embedded(self) -> list[str]:
        """Since the last time, in the order of the alphabet."""
        found, self.words.embedded = sorted(self.words.embedded), []
        return found

    @asynccontextmanager
    async def running(self, *, ready: bool = True) -> AsyncIterator[FolderRetriever]:
        retriever = FolderRetriever("docs", self.root, self.acl, self.words, self.database, changed=self.tell)
        await retriever.start()
        try:
            if ready:
                await until(lambda: retriever.state == "ready" and retriever.progress is None)
            yield retriever
        finally:
            await retriever.aclose()


async def until(right: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not right():  # noqa: ASYNC110 (there is nothing to wait for)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def another_generation(retriever: FolderRetriever) -> AsyncIterator[None]:
    """When it ends, what was done within has come into force."""
    before = retriever.generation
    yield
    await until(lambda: retriever.generation != before and retriever.progress is None)


async def search(retriever: FolderRetriever, query: str, *permissions: str, top_k: int = 3) -> list[Found]:
    return await retriever.search(query, top_k=top_k, permissions=frozenset(permissions), deadline=10)


async def best(retriever: FolderRetriever, query: str, *permissions: str) -> str:
    """The document that fits best; "" where there is none."""
    found = await search(retriever, query, *permissions, top_k=1)
    return found[0].document if found else ""


async def seen(retriever: FolderRetriever, *permissions: str) -> set[str]:
    """All documents that are found."""
    return {found.document for found in await search(retriever, "anything", *permissions, top_k=1_000)}
