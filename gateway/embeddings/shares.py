"""What one call took, shared out among the elements that it was made for."""

from collections.abc import Sequence

from cache.entry import Cost


def share_tokens(total: int, weights: Sequence[int]) -> list[int]:
    """Whole tokens that add up to `total`, by weight; what is left over goes to the largest remainders, of equal ones
    to the first. Weights are above 0."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    left = total - sum(shares)
    order = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in order[:left]:
        shares[i] += 1
    return shares


def share_cost(cost: Cost, weights: Sequence[int]) -> list[Cost]:
    whole = sum(weights)
    return [Cost(cost.ms * w / whole, None if cost.usd is None else cost.usd * w / whole) for w in weights]
