import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics.histogram import Histogram, coarser
from tests.gateway.values import some


def test_a_value_on_a_bound_counts_below_it() -> None:
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5, 2.0):
        found.add(value)
    assert (found.counts, found.total) == ([2, 2, 1], 7.5)


@some
@given(st.lists(st.floats(0, 10)), st.sets(st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0])))
def test_fewer_bounds_count_as_if_there_had_never_been_more(values: list[float], kept: set[float]) -> None:
    fine, wanted = Histogram((0.5, 1.0, 2.0, 4.0, 8.0)), Histogram(sorted(kept))
    for value in values:
        fine.add(value)
        wanted.add(value)
    assert coarser(fine.bounds, fine.counts, sorted(kept)) == wanted.counts


def test_a_bound_that_was_not_counted_cannot_be_had() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        coarser((1.0, 2.0), [0, 0, 0], (1.5,))
