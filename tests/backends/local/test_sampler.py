"""The next token."""

import pytest
import torch

from backends.local.sampler import random_source, sample
from backends.local.work import Sampling

# Probabilities at temperature 1: 0.5, 0.3, 0.15, 0.05, in an order that is not sorted.
SCORES = torch.tensor([0.15, 0.5, 0.05, 0.3]).log() + 7


def draw(sampling: Sampling, times: int = 400, seed: int = 1) -> list[int]:
    source = random_source(seed, 0)
    return [sample(SCORES, sampling, source) for _ in range(times)]


def test_greedy_takes_the_best() -> None:
    assert set(draw(Sampling(temperature=0))) == {1}


def test_frequencies_follow_the_scores() -> None:
    drawn = draw(Sampling(), times=4000)
    shares = [drawn.count(token) / len(drawn) for token in range(4)]
    assert shares == pytest.approx([0.15, 0.5, 0.05, 0.3], abs=0.03)


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [
        (Sampling(top_k=1), {1}),
        (Sampling(top_k=2), {1, 3}),
        (Sampling(top_k=100), {0, 1, 2, 3}),
        (Sampling(top_p=0), {1}),
        (Sampling(top_p=0.4), {1}),
        (Sampling(top_p=0.6), {1, 3}),
        (Sampling(top_p=0.9), {0, 1, 3}),
        (Sampling(top_p=0.6, top_k=2), {1}),  # top_p counts within the two that are left: 0.5 of 0.8 is over 0.6
        (Sampling(temperature=1e-30), {1}),
        (Sampling(temperature=2), {0, 1, 2, 3}),
    ],
)
def test_filters(sampling: Sampling, tokens: set[int]) -> None:
    assert set(draw(sampling)) == tokens


def test_the_seed_decides() -> None:
    assert draw(Sampling(), seed=7) == draw(Sampling(), seed=7)
    assert draw(Sampling(), seed=7) != draw(Sampling(), seed=8)


def test_each_choice_has_its_own_source() -> None:
    drawn = [
        [sample(SCORES, Sampling(), source) for _ in range(40)] for source in (random_source(7, 0), random_source(7, 1))
    ]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_any_64_bit_seed(seed: int) -> None:
    assert 0 <= sample(SCORES, Sampling(), random_source(seed, 15)) < 4


def test_without_a_seed_answers_differ() -> None:
    drawn = [
        [sample(SCORES, Sampling(), source) for _ in range(60)]
        for source in (random_source(None, 0), random_source(None, 0))
    ]
    assert drawn[0] != drawn[1]


def test_half_precision_scores() -> None:
    assert sample(SCORES.bfloat16(), Sampling(top_p=0.9), random_source(1, 0)) in (0, 1, 3)
