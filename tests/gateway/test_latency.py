"""The latency models of a gateway: what they learn and say, that they follow a change, and that they stay small."""

import random
import sys
from typing import Any

import pytest

from gateway.latency.fit import Speed
from gateway.latency.models import CALLS, ERRORS, MAX_MODELS, MAX_TOKENS, LatencyModels

FAST, SLOW = Speed(20.0, 0.5, 10.0), Speed(60.0, 1.5, 30.0)


def teach(
    models: LatencyModels, speed: Speed, calls: int, *, name: str = "m", seed: int = 1, noise: float = 0.03
) -> None:
    """So many calls of various lengths, every other one a stream."""
    rng = random.Random(seed)
    for number in range(calls):
        prompt, output = rng.randrange(20, 1500), rng.randrange(5, 300)
        first = (speed.overhead + speed.prefill * prompt) * (1 + rng.gauss(0, noise))
        ms = first + speed.decode * output * (1 + rng.gauss(0, noise))
        first_ms = first if number % 2 else None
        models.learn("b", name, input=prompt, cached=0, output=output, first_ms=first_ms, ms=ms, size=200 + 4 * prompt)


def told(models: LatencyModels, name: str = "m") -> dict[str, Any]:
    return models.as_dict()["b"][name]


def test_nothing_is_said_before_the_first_call() -> None:
    models = LatencyModels()
    assert models.predict("b", "m", 100, 50) is None
    assert models.expect("b", "m", 100, None) is None
    assert models.decode_tps("b", "m") is None
    assert models.as_dict() == {}


def test_what_it_knows_after_some_calls() -> None:
    models = LatencyModels()
    teach(models, FAST, 60)
    found = told(models)
    assert found.keys() == {"overhead_ms", "prefill_tps", "decode_tps", "samples", "error"}
    assert found["overhead_ms"] == pytest.approx(20, abs=15)
    assert found["prefill_tps"] == pytest.approx(2000, rel=0.1)
    assert found["decode_tps"] == pytest.approx(100, rel=0.1)
    assert models.decode_tps("b", "m") == found["decode_tps"]
    assert found["samples"] == 60
    assert 0 < found["error"] < 0.1
    assert models.predict("b", "m", 1000, 100) == pytest.approx(FAST.ms(1000, 100), rel=0.05)


def test_each_backend_and_model_is_its_own() -> None:
    models = LatencyModels()
    teach(models, FAST, 20, name="fast")
    teach(models, SLOW, 20, name="slow")
    models.learn("other", "fast", input=10, cached=0, output=10, first_ms=None, ms=9.0)
    assert models.predict("b", "fast", 500, 100) == pytest.approx(FAST.ms(500, 100), rel=0.1)
    assert models.predict("b", "slow", 500, 100) == pytest.approx(SLOW.ms(500, 100), rel=0.1)
    assert {name: set(found) for name, found in models.as_dict().items()} == {"b": {"fast", "slow"}, "other": {"fast"}}


def test_one_call_is_enough_for_a_first_guess() -> None:
    models = LatencyModels()
    models.learn("b", "m", input=100, cached=0, output=50, first_ms=None, ms=600.0)
    assert models.predict("b", "m", 100, 50) == pytest.approx(600, rel=0.05)
    assert told(models)["error"] is None


def test_what_the_backend_had_of_a_prompt_takes_no_time() -> None:
    models = LatencyModels()
    rng = random.Random(1)
    for _ in range(40):
        prompt, cached, output = rng.randrange(500, 1500), rng.randrange(0, 400), rng.randrange(5, 100)
        ms = FAST.ms(prompt - cached, output)
        models.learn("b", "m", input=prompt, cached=cached, output=output, first_ms=None, ms=ms)
    assert told(models)["error"] < 0.02
    assert models.predict("b", "m", 1000, 50) == pytest.approx(FAST.ms(1000, 50), rel=0.03)


def test_the_error_is_that_of_what_was_said_before() -> None:
    """Not that of the fit, which meets in the middle."""
    models = LatencyModels()
    for ms in (600.0, 1200.0):
        models.learn("b", "m", input=100, cached=0, output=50, first_ms=None, ms=ms)
    assert told(models)["error"] == pytest.approx(0.5, abs=0.02)


def test_of_errors_only_the_latest_count() -> None:
    models = LatencyModels()
    teach(models, FAST, 50, noise=0.5)
    noisy = told(models)["error"]
    teach(models, FAST, ERRORS, seed=2, noise=0.01)
    assert told(models)["error"] < 0.05 < noisy


def test_it_follows_a_backend_that_has_changed() -> None:
    models = LatencyModels()
    teach(models, FAST, 200)
    teach(models, SLOW, CALLS // 2, seed=2)
    assert models.predict("b", "m", 700, 150) == pytest.approx(SLOW.ms(700, 150), rel=0.1)


def test_stalls_are_not_learnt() -> None:
    models = LatencyModels()
    teach(models, FAST, 50)
    before = told(models)
    for _ in range(5):
        models.learn("b", "m", input=100, cached=0, output=10, first_ms=None, ms=60_000.0)
    teach(models, FAST, 1, seed=7)
    assert told(models)["decode_tps"] == pytest.approx(before["decode_tps"], rel=0.05)
    assert models.predict("b", "m", 700, 150) == pytest.approx(FAST.ms(700, 150), rel=0.05)


def test_a_call_is_foretold_from_the_size_of_its_body() -> None:
    models = LatencyModels()
    teach(models, FAST, 60)
    usual = models.expect("b", "m", 3000, None)
    assert usual == pytest.approx(FAST.ms(700, 150), rel=0.25)
    assert models.expect("b", "m", 3000, 1_000_000) == usual
    short = models.expect("b", "m", 3000, 1)
    assert short == pytest.approx(FAST.ms(700, 1), rel=0.25)
    longer = models.expect("b", "m", 6000, 1)
    assert short is not None
    assert longer is not None
    assert longer > short


@pytest.mark.parametrize(
    "call",
    [
        {"ms": 0.0},
        {"ms": -1.0},
        {"ms": float("nan")},
        {"ms": float("inf")},
        {"input": 0, "output": 0},
        {"input": 2**53},
        {"output": MAX_TOKENS * 2},
        {"output": float("inf")},
    ],
    ids=lambda call: "-".join(f"{k}={v:g}" for k, v in call.items()),
)
def test_what_makes_no_sense_is_left_alone(call: dict[str, Any]) -> None:
    models = LatencyModels()
    models.learn("b", "m", **{"input": 10, "cached": 0, "output": 10, "first_ms": 1.0, "ms": 5.0, **call})
    assert models.as_dict() == {}


@pytest.mark.parametrize("first", [-5.0, 700.0, float("nan"), float("inf")])
def test_a_first_byte_before_the_call_or_after_its_end_is_none(first: float) -> None:
    one, other = LatencyModels(), LatencyModels()
    one.learn("b", "m", input=100, cached=0, output=50, first_ms=first, ms=600.0)
    other.learn("b", "m", input=100, cached=0, output=50, first_ms=None, ms=600.0)
    assert one.as_dict() == other.as_dict()


def test_more_cached_tokens_than_there_are_is_all_of_them() -> None:
    models = LatencyModels()
    models.learn("b", "m", input=10, cached=500, output=10, first_ms=None, ms=50.0)
    assert models.predict("b", "m", 0, 10) == pytest.approx(50, rel=0.2)


def test_a_backend_that_takes_no_time_has_no_speed_rather_than_an_endless_one() -> None:
    models = LatencyModels()
    for tokens in range(1, 60):
        models.learn("b", "m", input=tokens, cached=0, output=tokens, first_ms=1.0, ms=1.0)
    found = told(models)
    assert (found["prefill_tps"], found["decode_tps"]) == (None, None)
    assert found["overhead_ms"] == pytest.approx(1, rel=0.05)


def test_of_too_many_models_the_one_called_longest_ago_is_forgotten() -> None:
    models = LatencyModels()
    for number in range(MAX_MODELS):
        teach(models, FAST, 1, name=str(number))
    teach(models, FAST, 1, name="0")
    teach(models, FAST, 1, name="new")
    known = set(models.as_dict()["b"])
    assert len(known) == MAX_MODELS
    assert {"0", "new"} <= known
    assert "1" not in known


def test_memory_does_not_grow_with_the_calls() -> None:
    models = LatencyModels()
    teach(models, FAST, 1)
    [one] = models._models.values()
    held = one._calls.nbytes
    teach(models, FAST, 1000)
    assert one._calls.nbytes == held <= 3 * 1024
    assert len(one._errors) == ERRORS
    assert sys.getsizeof(one._errors) < 2048
