"""Embedders that need no model: for tests of what stands around them, and of what becomes of their faults."""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np

from cache.semantic.embedder import EmbedderError, Reason, State
from gateway.config import Embedder as EmbedderConfig

DIMENSIONS = 8


class Unready:
    """One that never has a vector."""

    identity = ""
    dimensions = 0
    detail = "of no use"

    def __init__(self, config: EmbedderConfig | None = None) -> None:
        self.state: State = "starting"

    async def start(self) -> None:
        pass

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        raise EmbedderError("starting")

    async def aclose(self) -> None:
        pass


class Placed:
    """Each text lies where `place` says: texts with the same place have the same vector, others nearly orthogonal ones.
    `fails` is the reason that the next calls fail with."""

    detail = ""
    dimensions = DIMENSIONS

    def __init__(self, place: Callable[[str], str], *, identity: str = "placed") -> None:
        self.place = place
        self.identity = identity
        self.state: State = "ready"
        self.fails: Reason | None = None
        self.embedded: list[str] = []
        self.closed = False

    async def start(self) -> None:
        pass

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        if self.fails is not None:
            raise EmbedderError(self.fails)
        self.embedded += texts
        return np.stack([_unit(self.place(text)) for text in texts])

    async def aclose(self) -> None:
        self.closed = True


def _unit(name: str) -> np.ndarray:
    seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
    vector = np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)
    return vector / np.linalg.norm(vector)
