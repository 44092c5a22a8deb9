"""How near the nearest question was, by what the semantic tier made of it: the picture behind its threshold."""

from bisect import bisect_left
from typing import Any

BOUNDS = tuple(round(0.5 + 0.02 * n, 2) for n in range(26))
"""Upper bounds of the bars; the first takes all that is further away."""


class Similarities:
    """Counts since the start of look-ups that found a neighbour."""

    def __init__(self) -> None:
        self._counts = {True: [0] * len(BOUNDS), False: [0] * len(BOUNDS)}

    def add(self, similarity: float, *, hit: bool) -> None:
        """`similarity` is a cosine; rounding may make it a little more than 1."""
        self._counts[hit][min(bisect_left(BOUNDS, similarity), len(BOUNDS) - 1)] += 1

    def as_dict(self) -> dict[str, Any]:
        return {"bounds": list(BOUNDS), "hit": list(self._counts[True]), "miss": list(self._counts[False])}
