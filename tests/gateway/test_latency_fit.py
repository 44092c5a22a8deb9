"""The fit: speeds found in calls that follow the formula, whatever some of them do."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.latency.fit import CUT, PRIOR, Speed, fit, least


class Calls(NamedTuple):
    prompt: np.ndarray
    output: np.ndarray
    first: np.ndarray
    ms: np.ndarray
    weights: np.ndarray

    def fitted(self) -> Speed:
        return fit(*self)

    def error(self, speed: Speed) -> float:
        """The median relative error of what it says of these calls."""
        return float(np.median(np.abs([speed.ms(*call) for call in zip(*self[:2], strict=True)] - self.ms) / self.ms))


def calls(speed: Speed, count: int, *, noise: float = 0.0, streamed: float = 0.5, seed: int = 1) -> Calls:
    """Such calls, of various lengths."""
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(20, 1500, count).astype(float), rng.integers(5, 300, count).astype(float)
    first = (speed.overhead + speed.prefill * prompt) * (1 + noise * rng.standard_normal(count))
    ms = first + speed.decode * output * (1 + noise * rng.standard_normal(count))
    return Calls(prompt, output, np.where(rng.random(count) < streamed, first, np.nan), ms, np.ones(count))


SPEEDS = {
    "small local model": Speed(10.0, 1.0, 25.0),
    "provider": Speed(300.0, 0.05, 12.0),
    "slow to begin": Speed(2000.0, 0.1, 30.0),
    "stand-in": Speed(1.0, 0.001, 0.01),
    "slow": Speed(50.0, 20.0, 900.0),
}


@pytest.mark.parametrize("streamed", [0.0, 0.5, 1.0], ids=["whole", "mixed", "streams"])
@pytest.mark.parametrize("speed", SPEEDS.values(), ids=SPEEDS.keys())
def test_what_follows_the_formula_is_found(speed: Speed, streamed: float) -> None:
    seen = calls(speed, 50, noise=0.05, streamed=streamed)
    fresh = calls(speed, 50, seed=2)
    assert fresh.error(seen.fitted()) < 0.05


def test_the_three_are_told_apart() -> None:
    speed = SPEEDS["provider"]
    assert tuple(calls(speed, 50).fitted()) == pytest.approx(tuple(speed), rel=0.1)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_calls_that_stalled_move_nothing(share: float) -> None:
    speed = SPEEDS["small local model"]
    seen, rng = calls(speed, 60, noise=0.05), np.random.default_rng(3)
    stalled = rng.random(60) < share
    queued = seen._replace(ms=seen.ms + np.where(stalled, 3_000 + rng.exponential(60_000, 60), 0.0))
    assert calls(speed, 50, seed=2).error(queued.fitted()) < 0.04


def test_calls_that_took_no_time_move_nothing() -> None:
    """As from a cache between us and the backend, which says nothing of it."""
    speed = SPEEDS["provider"]
    seen = calls(speed, 60, noise=0.05)
    early = np.arange(60) % 5 == 0
    cached = seen._replace(ms=np.where(early, 3.0, seen.ms), first=np.where(early, np.nan, seen.first))
    assert calls(speed, 50, seed=2).error(cached.fitted()) < 0.05


def test_streams_that_come_in_one_piece_at_the_end() -> None:
    speed = SPEEDS["small local model"]
    seen = calls(speed, 60, noise=0.02, streamed=1.0)
    buffered = seen._replace(first=seen.ms * 0.99)
    assert calls(speed, 50, seed=2).error(buffered.fitted()) < 0.1


def test_older_calls_count_as_much_as_they_are_said_to() -> None:
    before, after = calls(Speed(10, 1, 25), 64), calls(Speed(10, 2, 50), 64, seed=2)
    both = Calls(*(np.concatenate(pair) for pair in zip(before, after, strict=True)))
    weights = 0.5 ** (np.arange(128)[::-1] / 32)
    assert after.error(both._replace(weights=weights).fitted()) < 0.02


def test_of_calls_that_are_all_alike_the_sum_is_known_and_the_parts_are_as_before() -> None:
    like_the_prior = Speed(*PRIOR)
    same = Calls(*(np.full(20, x) for x in (100.0, 50.0, np.nan, like_the_prior.ms(100, 50), 1.0)))
    assert tuple(same.fitted()) == pytest.approx(tuple(like_the_prior))
    faster = same._replace(ms=same.ms / 2)
    found = faster.fitted()
    assert found.ms(100, 50) == pytest.approx(faster.ms[0], rel=0.02)
    assert all(0 < part <= prior for part, prior in zip(found, PRIOR, strict=True))


@pytest.mark.parametrize("speed", SPEEDS.values(), ids=SPEEDS.keys())
def test_one_call_is_enough_for_others_like_it(speed: Speed) -> None:
    one = calls(speed, 1, streamed=0.0)
    assert one.error(one.fitted()) < 0.25


NUMBERS = st.floats(0, 1e7)
TIMES = st.floats(1e-3, 1e7)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.none() | st.floats(0, 1), TIMES), min_size=1, max_size=20))
def test_whatever_the_calls_nothing_is_negative_or_no_number(
    seen: list[tuple[float, float, float | None, float]],
) -> None:
    prompt, output, part, ms = (np.array([np.nan if x is None else x for x in row]) for row in zip(*seen, strict=True))
    found = fit(prompt, output, part * ms, ms, np.ones(len(seen)))
    assert all(np.isfinite(x) and x >= 0 for x in found)


@given(st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=3, max_size=8), st.integers(0, 10**6))
def test_least_is_the_least(rows: list[list[float]], seed: int) -> None:
    """No point near it or elsewhere that is allowed costs less."""
    a = np.array(rows)
    rng = np.random.default_rng(seed)
    b = rng.uniform(-10, 10, len(rows))
    matrix, right = a.T @ a + 1e-3 * np.eye(3), a.T @ b
    found = np.array(least(matrix.tolist(), right.tolist()))
    assert (found >= 0).all()

    def cost(x: np.ndarray) -> np.ndarray:
        return np.einsum("...i,ij,...j->...", x, matrix, x) - 2 * x @ right

    scales = 10.0 ** rng.integers(-6, 2, (200, 1))
    others = np.maximum(0.0, found + rng.standard_normal((200, 3)) * scales)
    assert cost(found) <= cost(others).min() + 1e-6 * (1 + abs(cost(found)))


def test_the_cut_is_beyond_what_ordinary_noise_does() -> None:
    """Of errors that are normally distributed hardly one is so far out."""
    errors = np.abs(np.random.default_rng(1).standard_normal(100_000))
    assert (errors > CUT * np.median(errors)).mean() < 1e-3
