"""The retrievers in use: built from the configuration, kept over a reload where nothing about them changed, and closed
only when the last search on them has ended."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import numpy as np

from backends.retrievers import EmbedsError, RetrieverReason
from backends.retrievers.noticed import Gone
from cache.semantic.embedder_base import Embedder, EmbedderError
from cache.stores import SQLITE
from gateway.config import Config
from gateway.config.retrievers import FolderRetriever as FolderConfig
from gateway.config.retrievers import OpenAIRetriever as OpenAIConfig
from gateway.embedders import MakeEmbedder
from gateway.retrieval.managed import Managed, PaidBy

RETIRE_AFTER = 1.0
"""Seconds after which a retriever that a reload has replaced is closed, or later: when its last search has ended."""

NOT_BUILT = frozenset({"tenants", "on_error", "webhook_secret"})
"""Settings that say who may ask, and what is done about errors: a retriever stays when they change."""

Changed = Callable[[str, Sequence[str]], None]
"""Told the name of a retriever, and the ids of its documents whose stored dependants are to go."""


class Retrievers:
    """All of one gateway."""

    def __init__(self, embedders: MakeEmbedder, changed: Changed, paid_by: PaidBy) -> None:
        self._embedders = embedders
        self._changed = changed
        self._paid_by = paid_by
        self._running: dict[str, tuple[object, Managed]] = {}
        self._retired: dict[Managed, asyncio.Task[None]] = {}
        # By the retriever's name alone, and kept while the configuration has none of that name: whatever else about it
        # changes, what was erased must not come back.
        self._gone: dict[str, Gone] = {}

    def recall(self, erased: Iterable[tuple[str, str]]) -> None:
        """What an earlier process was told: (retriever, document), the oldest notice first. Before `apply`."""
        for name, document in erased:
            self._gone.setdefault(name, {})[document] = None

    async def apply(self, config: Config) -> Mapping[str, Managed]:
        """Start what is new or changed, retire what is gone; gives the retrievers by name."""
        kept = {
            name: known
            for name, known in self._running.items()
            if name in config.retrievers and known[0] == _matter(config, name)
        }
        fresh: dict[str, tuple[object, Managed]] = {}
        if any(isinstance(r, FolderConfig) for name, r in config.retrievers.items() if name not in kept):
            await asyncio.to_thread(import_module, "backends.retrievers.folder.retriever")  # FAISS takes a moment
        try:
            for name in config.retrievers.keys() - kept.keys():
                fresh[name] = (_matter(config, name), self._build(config, name))
                await fresh[name][1].start()
        except BaseException:
            # The running configuration stays, so whatever was begun for the new one goes.
            await asyncio.gather(*(managed.aclose() for _, managed in fresh.values()))
            raise
        for name, (_, managed) in self._running.items():
            if name not in kept:
                self._retired[managed] = asyncio.create_task(self._close_when_idle(managed))
        for name, (_, managed) in kept.items():
            managed.config = config.retrievers[name]
        self._running = kept | fresh
        return {name: managed for name, (_, managed) in self._running.items()}

    def get(self, name: str) -> Managed | None:
        found = self._running.get(name)
        return None if found is None else found[1]

    def names(self) -> Sequence[str]:
        return tuple(self._running)

    def __iter__(self) -> Iterator[Managed]:
        return iter([managed for _, managed in self._running.values()])

    async def aclose(self) -> None:
        for task in self._retired.values():
            task.cancel()
        await asyncio.gather(*self._retired.values(), return_exceptions=True)
        await asyncio.gather(*(managed.aclose() for managed in [*self, *self._retired]))

    async def _close_when_idle(self, managed: Managed) -> None:
        # A request that took the old snapshot may be about to search.
        await asyncio.sleep(RETIRE_AFTER)
        await managed.idle()
        await managed.aclose()
        del self._retired[managed]

    def _build(self, config: Config, name: str) -> Managed:
        settings = config.retrievers[name]
        if isinstance(settings, FolderConfig):
            from backends.retrievers.folder.retriever import FolderRetriever

            embedder = self._embedders(config.embedder)
            database = documents_path(config.store.url, config.store.durable_url, name)
            changed = partial(self._changed, name)
            folder = FolderRetriever(
                name, settings.path, settings.acl, SharedModel(embedder), database, changed=changed
            )
            return Managed(settings, folder, embedder, self._paid_by)
        gone = self._gone.setdefault(name, {})
        if isinstance(settings, OpenAIConfig):
            from backends.retrievers.openai import OpenAIRetriever

            key = settings.api_key.get_secret_value() if settings.api_key is not None else None
            store = OpenAIRetriever(name, base_url=settings.base_url, api_key=key, store=settings.store, gone=gone)
            return Managed(settings, store, None)
        from backends.retrievers.service import ServiceRetriever

        service = ServiceRetriever(
            name,
            url=settings.url,
            method=settings.method,
            headers={header: value.get_secret_value() for header, value in settings.headers.items()},
            body=settings.body,
            results=settings.results,
            id=settings.id,
            text=settings.text,
            score=settings.score,
            version=settings.version,
            permissions=settings.permissions,
            gone=gone,
        )
        return Managed(settings, service, None)


class SharedModel:
    """The gateway's embedder as a folder knows one; here its errors become the folder's."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    @property
    def ready(self) -> bool:
        return self._embedder.state == "ready"

    @property
    def detail(self) -> str:
        return self._embedder.detail

    @property
    def identity(self) -> str:
        return self._embedder.identity

    @property
    def dimensions(self) -> int:
        return self._embedder.dimensions

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        try:
            return await self._embedder.embed(texts, deadline=deadline)
        except EmbedderError as error:
            reason = _REASONS.get(error.reason, "unavailable")
            raise EmbedsError(str(error), too_long=error.reason == "too_long", reason=reason) from None


_REASONS: dict[str, RetrieverReason] = {"starting": "starting", "busy": "busy", "deadline": "deadline"}
"""Of an embedder's reasons those that are worth another try soon."""


def documents_path(store_url: str, durable_url: str | None, retriever: str) -> Path | None:
    """Where a folder's pieces and vectors are kept: beside what must outlive the process, or beside the answers; None:
    in memory."""
    url = store_url if durable_url is None else durable_url
    if not url.startswith(SQLITE):
        return None
    beside = Path(url.removeprefix(SQLITE))
    return beside.with_name(f"{beside.stem}.documents-{quote(retriever, safe='')}{beside.suffix}")


def _matter(config: Config, name: str) -> tuple[object, ...]:
    """The settings that `_build` uses."""
    settings = config.retrievers[name]
    own = tuple((field, getattr(settings, field)) for field in type(settings).model_fields if field not in NOT_BUILT)
    if not isinstance(settings, FolderConfig):
        return own
    return (*own, config.embedder.model_copy(update={"hourly_cost": None}), config.store)
