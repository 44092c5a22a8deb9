"""Tokens are drawn as a plain implementation would draw them, each row as if it were alone."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from backends.local.sampler import Drawn, NoToken, Sampler, draw
from backends.local.work import Sampling

# Probabilities at temperature 1: 0.5, 0.3, 0.15, 0.05, in an order that is not sorted.
SCORES = torch.tensor([0.15, 0.5, 0.05, 0.3]).log() + 7
GREEDY = Sampling(temperature=0)


def tokens(sampling: Sampling, scores: torch.Tensor = SCORES, times: int = 400, choice: int = 0) -> list[int]:
    """From the same scores again and again, as if each were the next step."""
    sampler = Sampler(sampling, choice)
    return [one(scores, sampler).token for _ in range(times)]


def one(scores: torch.Tensor, sampler: Sampler) -> Drawn:
    (drawn,) = draw(scores[None], [sampler])
    assert isinstance(drawn, Drawn), drawn
    return drawn


def reference(scores: torch.Tensor, sampling: Sampling, drawn: Sequence[int] = ()) -> Any:
    """The probability of each token, by sorting everything, in float64."""
    values = scores.double().numpy().copy()
    for token, bias in sampling.logit_bias:
        values[token] += bias
    for token in range(len(values)):
        count = drawn.count(token)
        values[token] -= sampling.presence_penalty * (count > 0) + sampling.frequency_penalty * count
    if sampling.temperature == 0:
        return np.eye(len(values))[values.argmax()]
    values = np.exp((values - values.max()) / sampling.temperature)
    values[values < sampling.min_p] = 0
    order = np.argsort(-values, kind="stable")
    if sampling.top_k:
        values[order[sampling.top_k :]] = 0
    if sampling.top_p < 1:
        sums = values[order].cumsum()
        cut = sums - values[order] >= sampling.top_p * values.sum()
        cut[0] = False
        values[order[cut]] = 0
    return values / values.sum()


def random_scores(size: int, spread: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "spread", "sampling"),
    [
        (4, 1, Sampling()),
        (50, 2, Sampling()),
        (50, 2, Sampling(temperature=0.5)),
        (50, 2, Sampling(top_k=7)),
        (50, 2, Sampling(top_p=0.8)),
        (50, 2, Sampling(min_p=0.1)),
        (50, 2, Sampling(temperature=1.7, min_p=0.02, top_k=30, top_p=0.9)),
        (50, 2, Sampling(logit_bias=((3, 2.0), (7, -100.0)))),
        (3000, 0.3, Sampling(top_p=0.7)),  # the first 256 have not got that much
        (3000, 0.3, Sampling(top_k=2500, top_p=0.9)),
        (3000, 4, Sampling(top_p=0.95)),
    ],
)
def test_shares_are_those_of_a_plain_implementation(size: int, spread: float, sampling: Sampling) -> None:
    scores = random_scores(size, spread)
    expected = reference(scores, sampling)
    drawn = tokens(Sampling(**_fields(sampling) | {"seed": 5}), scores, times=3000)
    assert set(drawn) <= set(expected.nonzero()[0].tolist())
    # In groups of about the same probability, since a share that is expected less than five times says nothing.
    order = np.argsort(-expected, kind="stable")
    groups = np.minimum((expected[order].cumsum() * 20).astype(int), 19)
    counts, shares = np.zeros(20), np.zeros(20)
    np.add.at(shares, groups, expected[order])
    np.add.at(counts, groups, np.bincount(drawn, minlength=size)[order])
    some = shares > 0
    if some.sum() > 1:
        assert chisquare(counts[some], shares[some] / shares[some].sum() * len(drawn)).pvalue > 0.001


def _fields(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in Sampling.__dataclass_fields__}


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (GREEDY, {1}),
        (Sampling(top_k=1), {1}),
        (Sampling(top_k=2), {1, 3}),
        (Sampling(top_k=100), {0, 1, 2, 3}),
        (Sampling(top_p=0), {1}),
        (Sampling(top_p=0.4), {1}),
        (Sampling(top_p=0.6), {1, 3}),
        (Sampling(top_p=0.9), {0, 1, 3}),
        (Sampling(top_p=0.9999), {0, 1, 2, 3}),
        (Sampling(top_p=0.6, top_k=2), {1}),  # top_p counts within the two that are left: 0.5 of 0.8 is over 0.6
        (Sampling(min_p=0.05), {0, 1, 2, 3}),
        (Sampling(min_p=0.2), {0, 1, 3}),  # at least a fifth of the likeliest one's probability
        (Sampling(min_p=0.5), {1, 3}),
        (Sampling(min_p=1), {1}),
        (Sampling(min_p=0.5, temperature=10), {0, 1, 2, 3}),  # measured after the temperature
        (Sampling(temperature=1e-300), {1}),
        (Sampling(temperature=2), {0, 1, 2, 3}),
        (Sampling(logit_bias=((1, -100.0),)), {0, 2, 3}),
        (Sampling(logit_bias=((2, 100.0),)), {2}),
        (Sampling(temperature=0, logit_bias=((2, 100.0),)), {2}),
        (Sampling(temperature=0, logit_bias=((1, -0.5), (3, 0.1))), {3}),
    ],
)
def test_filters(sampling: Sampling, expected: set[int]) -> None:
    assert set(tokens(sampling)) == expected


def test_penalties_grow_with_what_was_drawn() -> None:
    # log 0.5 - log 0.3 = 0.51, log 0.3 - log 0.15 = 0.69
    assert tokens(Sampling(temperature=0, presence_penalty=0.6), times=4) == [1, 3, 1, 1]
    assert tokens(Sampling(temperature=0, frequency_penalty=0.6), times=6) == [1, 3, 1, 3, 1, 0]
    assert tokens(Sampling(temperature=0, frequency_penalty=-0.1), times=6) == [1] * 6
    assert tokens(Sampling(temperature=0, presence_penalty=2, frequency_penalty=2), times=4) == [1, 3, 0, 2]


@st.composite
def samplings(pick: st.DrawFn) -> Sampling:
    return Sampling(
        temperature=pick(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.0])),
        top_p=pick(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
        top_k=pick(st.sampled_from([0, 1, 5, 20, 1000])),
        min_p=pick(st.sampled_from([0.0, 0.1, 1.0])),
        seed=pick(st.integers(-(2**63), 2**63 - 1)),
        presence_penalty=pick(st.sampled_from([0.0, -2.0, 1.5])),
        frequency_penalty=pick(st.sampled_from([0.0, -2.0, 0.5])),
        logit_bias=tuple(pick(st.dictionaries(st.integers(0, 39), st.floats(-100, 100), max_size=4)).items()),
        logprobs=pick(st.sampled_from([None, 0, 3, 20])),
    )


BATCHES = st.lists(samplings(), min_size=1, max_size=6)


@pytest.mark.slow
@given(BATCHES, st.integers(0, 100), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_a_row_is_drawn_as_if_it_were_alone(batch: list[Sampling], seed: int, dtype: torch.dtype) -> None:
    together = [Sampler(sampling, i) for i, sampling in enumerate(batch)]
    alone = [Sampler(sampling, i) for i, sampling in enumerate(batch)]
    for step in range(4):
        scores = random_scores(len(batch) * 40, 3, 1000 * seed + step).reshape(len(batch), 40).to(dtype)
        drawn = draw(scores, together)
        assert drawn == [one(row, sampler) for row, sampler in zip(scores, alone, strict=True)]


@pytest.mark.slow
@given(samplings(), st.integers(0, 100))
def test_only_what_a_plain_implementation_could_draw(sampling: Sampling, seed: int) -> None:
    sampler = Sampler(sampling, 0)
    drawn: list[int] = []
    for step in range(12):
        scores = random_scores(40, 3, 1000 * seed + step)
        expected = reference(scores, sampling, drawn)
        drawn.append(one(scores, sampler).token)
        assert expected[drawn[-1]] > 0 or expected.max() - expected[drawn[-1]] < 1e-6


def test_a_bad_row_does_not_disturb_the_others() -> None:
    scores = torch.stack([SCORES, SCORES.clone(), SCORES.clone(), SCORES, SCORES.clone()])
    scores[1, 2] = math.nan
    scores[2] = -math.inf
    scores[4, 0] = math.inf
    for sampling in (GREEDY, Sampling(seed=3), Sampling(temperature=0, logprobs=2)):
        drawn = draw(scores, [Sampler(sampling, 0) for _ in scores])
        assert [isinstance(result, NoToken) for result in drawn] == [False, True, True, False, True]
        assert drawn[0] == drawn[3] == one(SCORES, Sampler(sampling, 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_scores_on_a_gpu() -> None:
    batch = [GREEDY, Sampling(seed=3, top_p=0.9), Sampling(temperature=0, logprobs=2), GREEDY]
    scores = random_scores(4 * 40, 3).reshape(4, 40)
    scores[3, 7] = math.nan
    there, here = (draw(place, [Sampler(sampling, 0) for sampling in batch]) for place in (scores.cuda(), scores))
    assert there[:3] == here[:3]
    assert isinstance(there[3], NoToken)


def test_no_rows() -> None:
    assert draw(torch.empty(0, 4), []) == []


def test_scores_stay_as_they_are() -> None:
    scores = SCORES[None].clone()
    sampler = Sampler(Sampling(logit_bias=((1, -100.0),), presence_penalty=1, min_p=0.5), 0)
    for _ in range(3):
        draw(scores, [sampler])
    assert torch.equal(scores[0], SCORES)


def test_log_probabilities_are_the_models_own() -> None:
    sampling = Sampling(temperature=0.3, logit_bias=((2, 100.0),), top_k=1, logprobs=2)
    drawn = one(SCORES, Sampler(sampling, 0))
    assert drawn.token == 2
    assert drawn.logprobs is not None
    assert drawn.logprobs.chosen == pytest.approx(math.log(0.05), abs=1e-5)
    assert [token for token, _ in drawn.logprobs.top] == [1, 3]
    assert [logprob for _, logprob in drawn.logprobs.top] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-5)


def test_log_probabilities_of_none_and_of_more_than_there_are() -> None:
    none = one(SCORES, Sampler(Sampling(temperature=0, logprobs=0), 0)).logprobs
    everything = one(SCORES, Sampler(Sampling(temperature=0, logprobs=20), 0)).logprobs
    assert none is not None
    assert none.top == ()
    assert everything is not None
    assert [token for token, _ in everything.top] == [1, 3, 0, 2]


def test_a_log_probability_is_finite() -> None:
    scores = torch.tensor([0.0, -math.inf])
    drawn = one(scores, Sampler(Sampling(temperature=0, logprobs=2), 0))
    assert drawn.logprobs is not None
    assert drawn.logprobs.top == ((0, 0.0), (1, -9999.0))


def test_the_seed_decides() -> None:
    assert tokens(Sampling(seed=7)) == tokens(Sampling(seed=7))
    assert tokens(Sampling(seed=7)) != tokens(Sampling(seed=8))
    assert tokens(Sampling(), times=60) != tokens(Sampling(), times=60)


def test_each_choice_has_its_own_source() -> None:
    assert tokens(Sampling(seed=7), choice=0) != tokens(Sampling(seed=7), choice=1)


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_any_64_bit_seed(seed: int) -> None:
    assert 0 <= tokens(Sampling(seed=seed), choice=15, times=1)[0] < 4
