"""The embedder that a configuration names."""

from collections.abc import Callable, Sequence

import numpy as np

from backends.embeddings import EmbeddingError, RemoteEmbedder
from cache.semantic.embedder import Embedder, EmbedderError, LocalEmbedder, State
from gateway.config import Embedder as EmbedderConfig

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


def embedder_of(config: EmbedderConfig) -> Embedder:
    """The real ones."""
    if config.base_url is None:
        return LocalEmbedder(config.model)
    key = config.api_key.get_secret_value() if config.api_key is not None else None
    return Remote(RemoteEmbedder(config.base_url, key, config.model))
