"""What the semantic tier needs of an embedder, wherever the model runs, and the one error it may raise."""

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

State = Literal["starting", "ready", "failed"]
Reason = Literal["starting", "deadline", "failed", "too_long", "bad_vector", "busy", "unavailable"]


class EmbedderError(Exception):
    """No vectors for this call; the request goes on as a miss. The message is for people and quotes no text."""

    def __init__(self, reason: Reason, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class Embedder(Protocol):
    """`state` is "failed" for as long as no call can succeed; it may become "ready" again by itself."""

    @property
    def state(self) -> State: ...

    @property
    def detail(self) -> str:
        """What it is doing, or what went wrong and what to do about it: for people."""

    @property
    def identity(self) -> str:
        """Names the model, its weights and precision; "" until first ready, then for ever the same. Vectors of
        different identities must never meet."""

    @property
    def dimensions(self) -> int:
        """0 until first ready, then for ever the same."""

    async def start(self) -> None:
        """Returns at once: loading goes on in the background."""

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        """(n, dimensions) float32, rows of unit length, within `deadline` seconds from now. Raises EmbedderError."""

    async def aclose(self) -> None: ...
