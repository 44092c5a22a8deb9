"""What a retriever is to the gateway: something that takes a question and gives pieces of documents that fit it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol

import numpy as np

RetrieverState = Literal["starting", "ready", "down"]
RetrieverReason = Literal["starting", "unavailable", "deadline", "bad_results", "busy", "failed"]


class RetrieverError(Exception):
    """No results for this call. The message is for the client: it names no URL and no secret, and quotes no text."""

    def __init__(self, reason: RetrieverReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Found:
    """A piece of a document: number `position` (from 0, in the order of the text) of the `version` of the `document`
    with this id. `title` is for people: a file's name, a heading. The higher the `score`, the better it fits. It may be
    used again for `lasting` seconds, if the retriever's are not fewer."""

    document: str
    version: str
    position: int
    text: str = field(repr=False)
    score: float
    title: str = ""
    lasting: float = inf


class Retriever(Protocol):
    name: str
    revision: str
    """Everything about it, apart from the documents, that can change what it finds (path, URL, model, how documents are
    cut); part of the key of results."""

    async def start(self) -> None:
        """Returns at once: what takes long goes on in the background."""

    @property
    def state(self) -> RetrieverState: ...

    @property
    def detail(self) -> str:
        """The state in words, for people: what it is doing, how far it is, why it is down."""

    @property
    def generation(self) -> str:
        """Another one as soon as another document, another version, or other permissions are known here. Of two calls
        with the same generation, query, `top_k` and effective permissions the results are the same, for `lasting`
        seconds."""

    @property
    def lasting(self) -> float:
        """Seconds for which results may be used again: inf where `generation` tells of every change."""

    def effective(self, permissions: frozenset[str]) -> frozenset[str]:
        """Those of a principal's permissions that can make a difference to what is found."""

    async def search(
        self, query: str, *, top_k: int, permissions: frozenset[str] | None, deadline: float
    ) -> list[Found]:
        """At most `top_k`, the best first, of the documents that these permissions may see (None: all), within
        `deadline` seconds. Raises RetrieverError."""

    async def changed(self, document: str, *, version: str | None, deleted: bool) -> None:
        """Somebody says that this document is new, has changed (`version`, where it is known), or is to be found no
        more. When it returns, `generation` is another one, and no later search finds what was said to be gone: also if
        it is said to have changed, as long as no other `version` is named (a purge only wants it read anew)."""

    async def aclose(self) -> None:
        """Harmless when called twice."""


Changed = Callable[[Sequence[str]], None]
"""Told, once their new generation is in force, the ids of the documents whose stored dependants are to go: changed,
deleted, or under other permissions."""


class EmbedsError(Exception):
    """No vectors for this call. `too_long`: a text has more tokens than the model takes. `reason` is what it means for
    a search."""

    def __init__(self, message: str, *, too_long: bool = False, reason: RetrieverReason = "unavailable") -> None:
        super().__init__(message)
        self.too_long = too_long
        self.reason: RetrieverReason = reason


class Embeds(Protocol):
    """The embedding model, wherever it runs."""

    @property
    def ready(self) -> bool: ...

    @property
    def detail(self) -> str: ...

    @property
    def identity(self) -> str:
        """Names the model, its weights and precision; "" until first ready. Vectors of different ones never meet."""

    @property
    def dimensions(self) -> int:
        """0 until first ready."""

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        """(n, dimensions) float32, rows of unit length, within `deadline` seconds from now. Raises EmbedsError; one
        text that is too long fails them all."""
