from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger.sums import SECONDS, Sums, percentile
from tests.gateway.values import some

LENGTH = len(SECONDS) + 1
histograms = st.dictionaries(st.integers(0, LENGTH - 1), st.integers(1, 2**40), max_size=6).map(
    lambda found: [found.get(place, 0) for place in range(LENGTH)]
)


def counted(*times: float) -> list[int]:
    """A histogram of these, in ms."""
    buckets = [0] * LENGTH
    for ms in times:
        buckets[bisect_left(SECONDS, ms / 1000)] += 1
    return buckets


def test_each_bound_is_at_most_two_thirds_above_the_one_before() -> None:
    assert list(SECONDS) == sorted(set(SECONDS))
    assert all(b / a < 1.7 for a, b in pairwise(SECONDS))


def test_nothing_has_no_percentile() -> None:
    assert percentile(counted(), 0.5) is None


@pytest.mark.parametrize(
    ("times", "q", "expected"),
    [
        ([0.08], 0.5, 0.05),  # half of the way through its bucket, 0 to 0.1
        ([0.08], 1.0, 0.1),
        ([4.0] * 10, 0.5, 4.0),  # 3 to 5
        ([4.0] * 9 + [900.0], 0.9, 5.0),
        ([4.0] * 9 + [900.0], 0.95, 850.0),  # 700 to 1,000
        ([4.0, 1e9], 0.99, 300_000.0),
        ([4.0] * 5, 0.0, 3.0),
    ],
)
def test_percentiles_lie_within_their_bucket(times: list[float], q: float, expected: float) -> None:
    assert percentile(counted(*times), q) == pytest.approx(expected)


@some
@given(st.lists(st.floats(0.2, 200_000), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_in_the_bucket_of_the_exact_one(times: list[float], q: float) -> None:
    exact = sorted(times)[max(0, -(-int(q * len(times) * 1e9) // 10**9) - 1)]
    found = percentile(counted(*times), q)
    assert found is not None
    place = bisect_left(SECONDS, exact / 1000)
    assert SECONDS[place - 1] * 999 <= found <= SECONDS[place] * 1001


@some
@given(histograms, histograms, st.integers(0, 2**50), st.floats(0, 1e6))
def test_a_row_keeps_all_of_it(one: list[int], other: list[int], tokens: int, usd: float) -> None:
    sums = Sums()
    sums.buckets, sums.first_buckets, sums.consumed, sums.usd = one, other, tokens, usd
    again = Sums.of(sums.row())
    assert (again.buckets, again.first_buckets, again.consumed, again.usd) == (one, other, tokens, usd)
    both = again.copy()
    both.merge(sums)
    assert (both.consumed, both.buckets) == (2 * tokens, [2 * n for n in one])
    assert again.row() == sums.row()
