import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.entry import Usage
from gateway.config import Price
from gateway.prices import call_cost
from tests.gateway.values import few

OURS = {
    "my-model": Price(input=0.15, output=0.60),
    "gpt-4o": Price(input=1, output=2),
    "free": Price(input=0, output=0),
}
KNOWN = "gpt-4o-mini"
USAGE = Usage(1_000_000, 2_000_000)


def cost(model: str, usage: Usage = USAGE, *, ms: float = 0, hourly: float | None = None) -> float | None:
    return call_cost(model, usage, ms, prices=OURS, hourly_cost=hourly)


def test_our_own_list_is_per_million_tokens_and_comes_first() -> None:
    assert cost("my-model") == pytest.approx(0.15 + 1.20)
    assert cost("my-model", Usage(1, 0)) == pytest.approx(0.15e-6)
    assert cost("gpt-4o", hourly=100, ms=3_600_000) == pytest.approx(1 + 4)


def test_a_price_of_nothing_is_a_price() -> None:
    assert cost("free", hourly=100, ms=3_600_000) == 0


def test_own_hardware_is_paid_by_the_hour() -> None:
    assert cost("smollm", hourly=0.20, ms=3_600_000) == pytest.approx(0.20)
    assert cost("smollm", hourly=0.36, ms=1_000) == pytest.approx(0.0001)
    assert cost(KNOWN, hourly=0.20, ms=0) == 0
    assert cost("smollm", hourly=0, ms=1_000) == 0


def test_a_model_of_the_catalogue_has_its_price() -> None:
    price = cost(KNOWN, Usage(1000, 0))
    assert price is not None
    assert 0 < price < 0.01
    assert cost(KNOWN, Usage(3000, 0)) == pytest.approx(3 * price)
    both = cost(KNOWN, Usage(1000, 1000))
    assert both is not None
    assert both > 2 * price  # what a model writes costs more than what it reads


def test_nobody_knows_the_price_of_an_unknown_model() -> None:
    assert cost("a-model-that-nobody-has-heard-of") is None


def test_names_are_compared_whole_in_our_list() -> None:
    assert cost("my-model-2") is None
    assert cost("MY-MODEL") is None


def test_no_tokens_cost_nothing() -> None:
    assert cost("my-model", Usage()) == 0
    assert cost(KNOWN, Usage()) == 0


@few
@given(st.text(max_size=30) | st.sampled_from(["", "*", "gpt-", "claude", "\x00", "../x", "gpt-4o:x", "openai/gpt-4o"]))
def test_any_model_name_has_a_price_or_none(model: str) -> None:
    found = cost(model)
    assert found is None or (math.isfinite(found) and found >= 0)
