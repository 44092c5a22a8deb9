"""The words between the server and the model's thread: a request as the model sees it, and the events of its answer.

No torch here, so that the server can answer while torch is still being imported.
"""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch these filters off; without a seed answers differ."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """`max_tokens` and `stops` hold for each of the `n` choices."""

    prompt: tuple[int, ...]
    sampling: Sampling
    n: int
    max_tokens: int
    stops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """More text of a choice."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    choice: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    """The last event of a whole answer. `completion` counts every token that the model made."""

    prompt: int
    completion: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of an answer that came to no end: cancelled, or an error inside the engine."""

    cancelled: bool


Event = Piece | ChoiceEnd | Usage | Failed


class Cancelled(Exception):
    """Nobody wants the answer any more."""
