"""An embedder for tests of folders: each word has a direction of its own, and texts with the same words are near."""

import asyncio
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b

import numpy as np

from backends.retrievers import EmbedsError

DIMENSIONS = 64


class Words:
    """`embedded` are the texts of good calls, `calls` their numbers of texts. `fails`: why the next calls fail;
    `bad` are words of which it makes no vector, `longest` the number of words it takes."""

    detail = "loading"
    dimensions = DIMENSIONS

    def __init__(self, *, identity: str = "words") -> None:
        self.identity = identity
        self.ready = True
        self.fails: str | None = None
        self.bad: set[str] = set()
        self.longest = 1_000
        self.embedded: list[str] = []
        self.calls: list[int] = []
        self.gate: asyncio.Event | None = None

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        if not self.ready:
            raise EmbedsError(self.detail)
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if self.fails is not None:
            raise EmbedsError(self.fails)
        if any(len(text.split()) > self.longest for text in texts):
            raise EmbedsError("too many words", too_long=True)
        if any(word in self.bad for text in texts for word in text.split()):
            raise EmbedsError("a word that the model cannot bear")
        self.embedded += texts
        self.calls.append(len(texts))
        return np.stack([vector(text) for text in texts])


def vector(text: str) -> np.ndarray:
    total = np.full(DIMENSIONS, 1e-3)
    for word in text.lower().split():
        total += _direction(word.strip(".,:#?"))
    return (total / np.linalg.norm(total)).astype(np.float32)


@cache
def _direction(word: str) -> np.ndarray:
    seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest())
    return np.random.default_rng(seed).standard_normal(DIMENSIONS)
