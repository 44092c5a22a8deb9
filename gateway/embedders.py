"""The embedder that a configuration names: one for all parts of a gateway that want it."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from backends.embeddings import EmbeddingError, RemoteEmbedder
from cache.semantic.embedder import Embedder, EmbedderError, LocalEmbedder, State
from gateway.config import Embedder as EmbedderConfig
from gateway.prices.search import embedded

MakeEmbedder = Callable[[EmbedderConfig], Embedder]
"""Makes the embedder, and does not start it."""


class Remote:
    """A server's embedder as the semantic tier knows one; here its errors become the tier's."""

    def __init__(self, remote: RemoteEmbedder) -> None:
        self._remote = remote

    @property
    def state(self) -> State:
        return self._remote.state

    @property
    def detail(self) -> str:
        return self._remote.detail

    @property
    def identity(self) -> str:
        return self._remote.identity

    @property
    def dimensions(self) -> int:
        return self._remote.dimensions

    async def start(self) -> None:
        await self._remote.start()

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        try:
            return await self._remote.embed(texts, deadline=deadline)
        except EmbeddingError as error:
            raise EmbedderError(error.reason, str(error)) from None

    async def aclose(self) -> None:
        await self._remote.aclose()


class SharedEmbedders:
    """Makes embedders, as `MakeEmbedder`: of those made for the same settings all but the first are the first one once
    more. It is started by the first that is, and closed by the last that is."""

    def __init__(self, make: MakeEmbedder) -> None:
        self._make = make
        self._shared: list[_Shared] = []

    def __call__(self, config: EmbedderConfig) -> Embedder:
        config = config.model_copy(update={"hourly_cost": None})  # no other embedder for another price
        for shared in self._shared:
            if shared.config == config:
                return _Lease(shared)
        shared = _Shared(config, self._make(config), self._shared)
        self._shared.append(shared)
        return _Lease(shared)


class _Shared:
    def __init__(self, config: EmbedderConfig, embedder: Embedder, home: "list[_Shared]") -> None:
        self.config = config
        self.embedder = embedder
        self._home = home
        self._leases = 0
        self._started = False

    def lease(self) -> None:
        self._leases += 1

    async def start(self) -> None:
        if not self._started:
            self._started = True
            await self.embedder.start()

    async def release(self) -> None:
        self._leases -= 1
        if not self._leases:
            with suppress(ValueError):
                self._home.remove(self)
            await self.embedder.aclose()


class _Lease:
    """One part's hold on a shared embedder."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._embedder = shared.embedder
        self._closed = False
        shared.lease()

    @property
    def state(self) -> State:
        return self._embedder.state

    @property
    def detail(self) -> str:
        return self._embedder.detail

    @property
    def identity(self) -> str:
        return self._embedder.identity

    @property
    def dimensions(self) -> int:
        return self._embedder.dimensions

    async def start(self) -> None:
        await self._shared.start()

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        return await self._embedder.embed(texts, deadline=deadline)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._shared.release()


def embedder_of(config: EmbedderConfig) -> Embedder:
    """The real ones."""
    if config.base_url is None:
        return LocalEmbedder(config.model)
    key = config.api_key.get_secret_value() if config.api_key is not None else None
    return Remote(RemoteEmbedder(config.base_url, key, config.model, made=embedded))
