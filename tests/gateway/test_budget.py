"""What a tier is predicted to take: the 95th percentile of its latest times, as long as they count."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.latency.budget import FRESH_FOR, LATEST, LEAST, Durations


def durations(*seconds: float, at: float = 0.0) -> Durations:
    made = Durations()
    for value in seconds:
        made.add(value, at)
    return made


def test_a_handful_is_needed() -> None:
    assert Durations().p95(0.0) is None
    assert durations(*[1.0] * (LEAST - 1)).p95(0.0) is None
    assert durations(*[1.0] * LEAST).p95(0.0) == 1.0


@given(st.lists(st.floats(0, 100), min_size=LEAST, max_size=LATEST))
def test_one_in_twenty_may_take_longer(seconds: list[float]) -> None:
    p95 = durations(*seconds).p95(0.0)
    assert p95 is not None
    assert p95 in seconds
    assert sum(value <= p95 for value in seconds) >= 0.95 * len(seconds)
    assert sum(value < p95 for value in seconds) <= math.ceil(0.95 * len(seconds))


@pytest.mark.parametrize(("count", "rank"), [(5, 5), (19, 19), (20, 19), (21, 20), (40, 38), (64, 61)])
def test_the_rank(count: int, rank: int) -> None:
    assert durations(*(float(n) for n in range(count, 0, -1))).p95(0.0) == rank


def test_old_times_count_no_more() -> None:
    d = durations(*[9.0] * LEAST, at=100.0)
    assert d.p95(100.0 + FRESH_FOR) == 9.0
    assert d.p95(100.1 + FRESH_FOR) is None
    for _ in range(LEAST):
        d.add(1.0, 170.0)
    assert d.p95(170.0) == 1.0


def test_only_the_latest_are_kept() -> None:
    d = durations(*[9.0] * LATEST, *[1.0] * LATEST)
    assert d.p95(0.0) == 1.0


def test_what_fits() -> None:
    d = durations(*[0.3] * LEAST)
    assert d.fit(0.3, 0.0)
    assert not d.fit(0.29, 0.0)
    assert not d.fit(-1.0, 0.0)
    assert d.fit(None, 0.0), "without a budget everything fits"
    assert d.fit(0.0, FRESH_FOR + 1), "nothing is known any more"
    assert Durations().fit(0.0, 0.0)
