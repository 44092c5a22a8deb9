"""The picture behind the semantic tier's threshold."""

import pytest

from gateway.similarities import BOUNDS, Similarities


@pytest.mark.parametrize(
    ("similarity", "bar"),
    [(-1.0, 0), (0.5, 0), (0.5000001, 1), (0.52, 1), (0.75, 13), (0.98, 24), (0.99, 25), (1.0, 25), (1.0000002, 25)],
)
def test_each_goes_into_one_bar(similarity: float, bar: int) -> None:
    similarities = Similarities()
    similarities.add(similarity, hit=True)
    shown = similarities.as_dict()
    assert shown["hit"] == [int(n == bar) for n in range(len(BOUNDS))]
    assert sum(shown["miss"]) == 0


def test_hits_and_misses_are_told_apart() -> None:
    similarities = Similarities()
    for hit in (True, False, False):
        similarities.add(0.9, hit=hit)
    shown = similarities.as_dict()
    assert (sum(shown["hit"]), sum(shown["miss"])) == (1, 2)
    assert shown["bounds"] == list(BOUNDS)
    assert (BOUNDS[0], BOUNDS[-1]) == (0.5, 1.0)
    assert similarities.as_dict()["hit"] is not shown["hit"]
