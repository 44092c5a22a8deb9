"""How fast a backend is, as its calls say: the fit behind `gateway.latency`, without clock or state.

A call takes `overhead + prefill * prompt tokens + decode * answer tokens`. Each call is one equation, and its time to
the first byte, where it was streamed, another one, without the answer. The three are fitted to them so that

- an error counts in relation to what the call takes: short calls and long ones weigh alike;
- calls that took what no tokens explain (a stall, a queue, an answer from somebody's cache) have no say: errors that
  are large beside most others count less, and none at all when they are far out;
- none is negative; and what the calls leave open is as before the first one (PRIOR): of calls that are all alike
  only the sum is known, and a handful can be anything.
"""

from itertools import combinations
from operator import mul
from typing import NamedTuple

import numpy as np

PRIOR = np.array([80.0, 0.5, 20.0])
"""Overhead in ms, ms for a token of the prompt (2,000 a second) and of the answer (50 a second)."""
PRIOR_WEIGHT = 2e-3
"""Of being as far off as the whole prior, beside a call's being off by all that it takes (1)."""
FIRST_WEIGHT = 0.25
"""Of the time to a first byte beside that of the call: some streams come in one piece at the end."""
ROUNDS, CUT_FROM = 4, 1
"""Of the fit; from the second number on what is far out is left out."""
GENTLE, CUT = 1.5, 6.0
"""Beyond so many typical errors one counts less, or not at all."""
LEAST_ERROR = 0.01
"""A typical error is taken to be no less than this, relative."""
LEAST_MS = 0.1
_CHOICES = [chosen for size in (3, 2, 1) for chosen in combinations(range(3), size)]


class Speed(NamedTuple):
    """Milliseconds: of a call whatever its tokens, of a token of the prompt, and of one of the answer."""

    overhead: float
    prefill: float
    decode: float

    def ms(self, prompt: float, output: float) -> float:
        """What a call takes; `prompt` without the tokens that the backend need not read."""
        return self.overhead + self.prefill * prompt + self.decode * output


def fit(prompt: np.ndarray, output: np.ndarray, first: np.ndarray, ms: np.ndarray, weights: np.ndarray) -> Speed:
    """One value of each for each call: tokens, milliseconds to the first byte (NaN: not known) and of the whole, and
    how much it counts."""
    streamed = ~np.isnan(first)
    whole = np.column_stack([np.ones_like(prompt), prompt, output]) * PRIOR
    equations = np.vstack([whole, whole[streamed] * (1.0, 1.0, 0.0)])
    taken = np.concatenate([ms, first[streamed]])
    weights = np.concatenate([weights, FIRST_WEIGHT * weights[streamed]])
    expected, trust, found = ms, weights, [1.0, 1.0, 1.0]
    for number in range(ROUNDS):
        # In the first round beside what it took; then a call that was far too slow would look harmless.
        by = np.maximum(expected, LEAST_MS)
        by = np.concatenate([by, by[streamed]])
        scaled, right = equations / by[:, None], taken / by
        found = _solve(scaled, right, trust, found)
        errors = np.abs(scaled @ found - right)
        typical = max(_median(errors, weights), LEAST_ERROR)
        trust = weights * np.minimum(1.0, GENTLE * typical / np.maximum(errors, LEAST_ERROR))
        if number >= CUT_FROM:
            trust[errors > CUT * typical] = 0.0
        expected = whole @ found
    return Speed(*(float(u * prior) for u, prior in zip(found, PRIOR, strict=True)))


def _solve(equations: np.ndarray, taken: np.ndarray, weights: np.ndarray, former: list[float]) -> list[float]:
    """The least squares in multiples of PRIOR, none below 0. What is a multiple of it already (`former`) is drawn back
    less: a slow backend is not half believed."""
    weighted = equations * weights[:, None]
    matrix, right = (equations.T @ weighted).tolist(), (taken @ weighted).tolist()
    for i, u in enumerate(former):
        pull = PRIOR_WEIGHT / max(1.0, u)
        matrix[i][i] = matrix[i][i] * (1.0 + 1e-12) + pull  # calls of millions of tokens would drown it
        right[i] += pull
    return least(matrix, right)


def least(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The x >= 0 for which x'Mx - 2x'r is least; M is symmetric and positive definite. There is one choice of those
    that are above 0 for which these solve the equations and none of the others wants to be more; of so few unknowns
    all choices can be tried."""
    best = [0.0] * len(right)
    for chosen in _CHOICES:
        found = dict(zip(chosen, _solved([[matrix[i][j] for j in chosen] + [right[i]] for i in chosen]), strict=True))
        x = [found.get(i, 0.0) for i in range(len(right))]
        if min(x) >= 0:
            best = x
            if all(i in found or sum(map(mul, matrix[i], x)) >= right[i] for i in range(len(x))):
                break
    return best


def _solved(rows: list[list[float]]) -> list[float]:
    """Gauss, for a matrix that needs no pivots."""
    for i, row in enumerate(rows):
        for below in rows[i + 1 :]:
            factor = below[i] / row[i]
            for j in range(i, len(below)):
                below[j] -= factor * row[j]
    x = [0.0] * len(rows)
    for i in reversed(range(len(rows))):
        x[i] = (rows[i][-1] - sum(map(mul, rows[i][i + 1 : -1], x[i + 1 :]))) / rows[i][i]
    return x


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
