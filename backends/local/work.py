"""The words between the server and the model's thread: a request as the model sees it, and the events of its answer.

No torch here, so that the server can answer while torch is still being imported.
"""

from dataclasses import dataclass
from typing import Literal

from backends.base import Priority

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch these filters off; without a seed answers
    differ. `logit_bias` has pairs of token id and what is added to its score. `logprobs`: how many of the likeliest
    tokens are told beside each chosen one; None where no log probabilities are wanted."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """What a request's headers say: `salt` names the partition of the prefix cache, nothing is shared between two;
    `party` is who shares the model fairly with the others; both are opaque. What is interactive makes what is batch
    wait."""

    salt: str = ""
    party: str = ""
    priority: Priority = "interactive"


@dataclass(frozen=True, slots=True)
class Work:
    """`max_tokens` and `stops` hold for each of the `n` choices. With `ignore_eos` the model's end token is a token
    like any other. `schema` is a JSON schema, as text, that the answer must obey. The rest is as in Origin."""

    prompt: tuple[int, ...]
    sampling: Sampling
    n: int
    max_tokens: int
    stops: tuple[str, ...]
    ignore_eos: bool = False
    schema: str | None = None
    salt: str = ""
    party: str = ""
    priority: Priority = "interactive"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One token and its log probability, before temperature and filters. `data` is the token's bytes."""

    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token and the likeliest ones, the likeliest first."""

    chosen: Alternative
    top: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """The first event of an answer that came to a first token: seconds in the queue, seconds from there to the first
    token, and how many tokens of the prompt the prefix cache had."""

    queued: float
    prefill: float
    cached: int


@dataclass(frozen=True, slots=True)
class Piece:
    """More text of a choice, and the log probabilities of the tokens since the piece before, where they are wanted."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    choice: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Usage:
    """The last event of a whole answer. `completion` counts every token that the model made; `cached` those of the
    prompt that the prefix cache had; `decode` the seconds from the first token to the last."""

    prompt: int
    completion: int
    cached: int = 0
    decode: float = 0.0


FailReason = Literal["cancelled", "stopping", "failed", "out_of_memory"]


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of an answer that came to no end."""

    reason: FailReason


Event = Begun | Piece | ChoiceEnd | Usage | Failed


class QueueFull(Exception):
    """As many requests of this priority wait as may wait."""
