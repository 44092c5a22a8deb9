"""From the model's scores to the next tokens.

With a row of scores happens, in this order: the grammar's mask, `logit_bias` and the penalties; the best one is taken
where the temperature is 0; else temperature, `min_p`, `top_k`, `top_p` among what is left, and one draw. Log
probabilities are the model's own, before all of that.

The rows are numpy's here: on a CPU its argmax is ten times as fast as torch's, and there are a dozen small steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from backends.local.constrain import Constraint
from backends.local.work import Sampling

Row = NDArray[np.float32]

MASK_64 = 2**64 - 1
COLDEST = 1e-30  # a smaller temperature is 0 in float32
NUCLEUS = 256
"""Of how many tokens `top_p` looks for its share first. Most often they have it, and to find them is a fifth of the
work of sorting a vocabulary."""
LOWEST_LOGPROB = -9999.0  # as at OpenAI: JSON has no infinity


class NoToken(Exception):
    """Nothing can be drawn from these scores."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of the chosen token, and pairs of token and log probability of the likeliest ones, the likeliest first."""

    chosen: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """`last`: the grammar is complete, and nothing can follow this token."""

    token: int
    logprobs: Logprobs | None = None
    last: bool = False


class Sampler:
    """Draws the tokens of one choice, and knows those that it drew. The same seed gives the same tokens, whoever else
    is in the batch; each choice of a request has random numbers of its own, and a token takes one of them."""

    def __init__(self, sampling: Sampling, choice: int, constraint: Constraint | None = None) -> None:
        self._sampling = sampling
        self._constraint = constraint
        seed = None if sampling.seed is None else (sampling.seed + choice) & MASK_64
        self._random = np.random.default_rng(seed)
        self._bias_tokens = np.array([token for token, _ in sampling.logit_bias], np.intp)
        self._biases = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self._penal = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        self._counts: dict[int, int] = {}
        self.plain = (
            sampling.temperature == 0
            and not sampling.logit_bias
            and not self._penal
            and sampling.logprobs is None
            and constraint is None
        )
        """Whether the token is the one with the highest score, and nothing has to be known but that."""

    def draw(self, scores: Row) -> Drawn:
        """The next token, from finite scores of shape (vocabulary,), some of which may be -inf. They stay as they are.
        Raises NoToken and ConstraintFailed."""
        with np.errstate(over="ignore", under="ignore"):
            token = self._choose(self._adjusted(scores))
            wanted = self._sampling.logprobs
            logprobs = None if wanted is None else _logprobs(scores, token, wanted)
        if self._penal:
            self._counts[token] = self._counts.get(token, 0) + 1
        if self._constraint is None:
            return Drawn(token, logprobs)
        self._constraint.accept(token)
        return Drawn(token, logprobs, last=self._constraint.complete)

    def _adjusted(self, scores: Row) -> Row:
        sampling = self._sampling
        adjusted = scores.copy()
        adjusted[self._bias_tokens] += self._biases
        if self._counts:
            counts = np.fromiter(self._counts.values(), np.float32)
            penalties = sampling.presence_penalty + sampling.frequency_penalty * counts
            adjusted[np.fromiter(self._counts, np.intp)] -= penalties
        if self._constraint is not None:
            adjusted[~self._constraint.allowed()] = -math.inf
        return adjusted

    def _choose(self, scores: Row) -> int:
        """Overwrites the scores."""
        sampling = self._sampling
        best = int(scores.argmax())
        if not math.isfinite(scores[best]):
            raise NoToken("the request's constraints leave no token")
        if sampling.temperature == 0:
            return best
        # Shares of the best one's probability. Less the best before the division, so that nothing overflows.
        scores -= scores[best]
        scores /= max(sampling.temperature, COLDEST)
        weights = np.exp(scores, out=scores)
        if sampling.min_p > 0:
            weights[weights < sampling.min_p] = 0
        tokens: NDArray[np.intp] | None = None
        if 0 < sampling.top_k < len(weights):
            tokens = _largest(weights, sampling.top_k)
            weights = weights[tokens]
        if sampling.top_p < 1:
            places = _nucleus(weights, sampling.top_p)
            weights = weights[places]
            tokens = places if tokens is None else tokens[places]
        # One without weight never comes: the sum does not grow there.
        sums = weights.cumsum(dtype=np.float64)
        place = int(sums.searchsorted(self._random.random() * sums[-1], side="right"))
        return place if tokens is None else int(tokens[place])


def draw(scores: torch.Tensor, samplers: Sequence[Sampler]) -> list[Drawn | Exception]:
    """A token for each row of (rows, vocabulary) scores of any float type on any device. A row from which none can be
    drawn has the reason in its place."""
    best, tokens = _best(scores)
    others = [row for row, sampler in enumerate(samplers) if not sampler.plain]
    rows = dict(zip(others, scores[others].float().cpu().numpy(), strict=True)) if others else {}
    drawn: list[Drawn | Exception] = []
    for row, sampler in enumerate(samplers):
        try:
            if not math.isfinite(best[row]):
                raise NoToken("the model's scores are not finite")
            drawn.append(sampler.draw(rows[row]) if row in rows else Drawn(tokens[row]))
        except Exception as error:
            drawn.append(error)
    return drawn


def _best(scores: torch.Tensor) -> tuple[list[float], list[int]]:
    """The highest score of each row, NaN where one is, and its token."""
    if scores.device.type != "cpu":  # a vocabulary's scores are much to carry
        best, tokens = scores.max(-1)
        return best.tolist(), tokens.tolist()
    rows = scores.float().numpy()
    places = rows.argmax(-1)
    return rows[np.arange(len(rows)), places].tolist(), places.tolist()


def _largest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Indices of the largest values, the largest first."""
    left = len(values) - count
    places = np.argpartition(values, left - 1)[left:] if left else np.arange(count)
    return places[np.argsort(-values[places], kind="stable")]


def _nucleus(weights: Row, share: float) -> NDArray[np.intp]:
    """Indices of the fewest of the largest weights that have this share of the sum, at least one; the largest first."""
    goal = share * float(weights.sum(dtype=np.float64))
    size = min(NUCLEUS, len(weights))
    while True:
        places = _largest(weights, size)
        largest = weights[places]
        sums = largest.cumsum(dtype=np.float64)
        if size == len(weights) or sums[-1] >= goal:
            return places[: max(1, int((sums - largest < goal).sum()))]
        size = min(8 * size, len(weights))


def _logprobs(scores: Row, token: int, count: int) -> Logprobs:
    best = scores.max()
    whole = best + math.log(np.exp(scores - best).sum(dtype=np.float64))

    def logprob(place: int) -> float:
        return max(float(scores[place] - whole), LOWEST_LOGPROB)

    top = _largest(scores, min(count, len(scores)))
    return Logprobs(logprob(token), tuple((place, logprob(place)) for place in top.tolist()))
