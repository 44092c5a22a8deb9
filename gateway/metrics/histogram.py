"""How often values fell within bounds: what Prometheus calls a histogram."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise


class Histogram:
    """`counts` has one more than `bounds`, for what is larger than all of them; a value on a bound counts below it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, other: "Histogram") -> None:
        """Add what another one with the same bounds has."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


def coarser(bounds: Sequence[float], counts: Sequence[int], kept: Sequence[float]) -> list[int]:
    """The counts under fewer bounds, exactly. Raises ValueError where one that is kept is not among the bounds."""
    cumulative = list(accumulate(counts))
    at_most = [0, *(cumulative[bounds.index(bound)] for bound in kept), cumulative[-1]]
    return [after - before for before, after in pairwise(at_most)]
