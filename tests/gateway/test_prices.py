import math
from datetime import UTC, datetime

import pytest
from genai_prices import Usage as PricedUsage
from genai_prices import calc_price
from hypothesis import given
from hypothesis import strategies as st

from cache.entry import Usage
from gateway.config import Price
from gateway.prices.catalogue import token_cost
from tests.gateway.values import few

OURS = {
    "my-model": Price(input=0.15, output=0.60),
    "gpt-4o": Price(input=1, output=2),
    "cheap-cache": Price(input=1, output=2, cached_input=0.1),
    "free": Price(input=0, output=0),
}
KNOWN = "gpt-4o-mini"
USAGE = Usage(1_000_000, 2_000_000)


def cost(model: str, usage: Usage = USAGE, *, cached: int = 0, url: str = "", catalogue: bool = True) -> float | None:
    return token_cost(model, usage, prices=OURS, cached=cached, url=url, catalogue=catalogue)


def test_our_own_list_is_per_million_tokens_and_comes_first() -> None:
    assert cost("my-model") == pytest.approx(0.15 + 1.20)
    assert cost("my-model", Usage(1, 0)) == pytest.approx(0.15e-6)
    assert cost("gpt-4o") == pytest.approx(1 + 4)


def test_a_price_of_nothing_is_a_price() -> None:
    assert cost("free") == 0


def test_a_model_of_the_catalogue_has_its_price() -> None:
    price = cost(KNOWN, Usage(1000, 0))
    assert price is not None
    assert 0 < price < 0.01
    assert cost(KNOWN, Usage(3000, 0)) == pytest.approx(3 * price)
    both = cost(KNOWN, Usage(1000, 1000))
    assert both is not None
    assert both > 2 * price  # what a model writes costs more than what it reads


def test_the_catalogue_is_not_asked_where_it_has_nothing_to_say() -> None:
    assert cost(KNOWN, catalogue=False) is None
    assert cost("my-model", catalogue=False) == cost("my-model")


def test_nobody_knows_the_price_of_an_unknown_model() -> None:
    assert cost("a-model-that-nobody-has-heard-of") is None


def test_names_are_compared_whole_in_our_list() -> None:
    assert cost("my-model-2") is None
    assert cost("MY-MODEL") is None


def test_no_tokens_cost_nothing() -> None:
    assert cost("my-model", Usage()) == 0
    assert cost(KNOWN, Usage()) == 0


# Tokens that the provider had cached


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("cheap-cache", 0.6 + 0.4 * 0.1),
        ("my-model", 0.15),  # not said, and the catalogue does not know it
        ("gpt-4o", 1.0),  # the catalogue's price for them is higher than ours for new ones
        ("free", 0.0),
    ],
)
def test_cached_tokens_have_their_own_price(model: str, expected: float) -> None:
    assert cost(model, Usage(1_000_000, 0), cached=400_000) == pytest.approx(expected)


def test_the_catalogues_price_of_cached_tokens_goes_with_our_own_price_of_new_ones() -> None:
    ours = {"gpt-4o": Price(input=2.0, output=8.0)}
    assert token_cost("gpt-4o", Usage(1_000_000), prices=ours, cached=1_000_000) == pytest.approx(1.25)


def test_a_provider_cannot_have_had_more_than_there_was() -> None:
    assert cost("cheap-cache", Usage(10, 0), cached=1000) == pytest.approx(1e-6)


TIERED = ["gemini-2.5-pro", "claude-sonnet-4-5"]


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "deepseek-chat", *TIERED])
@pytest.mark.parametrize("length", [1, 1_000, 199_999, 200_000, 200_001, 1_000_000])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_prices_are_those_of_the_catalogue(model: str, length: int, share: float) -> None:
    """Also beyond a threshold, where all tokens of the call cost more."""
    cached = int(length * share)
    used = PricedUsage(input_tokens=length, output_tokens=700, **({"cache_read_tokens": cached} if cached else {}))
    expected = calc_price(used, model_ref=model, genai_request_timestamp=datetime.now(UTC)).total_price
    assert token_cost(model, Usage(length, 700), prices={}, cached=cached) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("model", TIERED)
def test_a_long_prompt_costs_more_for_each_token(model: str) -> None:
    short, long = (cost(model, Usage(length, 0)) for length in (100_000, 400_000))
    assert short is not None
    assert long is not None
    assert long > 4 * short


def test_a_providers_address_tells_its_models_from_others() -> None:
    model = "text-embedding-3-small"  # not to be found by its name alone
    assert cost(model) is None
    assert cost(model, Usage(1_000_000), url="https://api.openai.com/v1") == pytest.approx(0.02)
    assert cost(KNOWN, url="http://10.0.0.1:8000/v1") == cost(KNOWN)


@few
@given(st.text(max_size=30) | st.sampled_from(["", "*", "gpt-", "claude", "\x00", "../x", "gpt-4o:x", "openai/gpt-4o"]))
def test_any_model_name_has_a_price_or_none(model: str) -> None:
    found = cost(model)
    assert found is None or (math.isfinite(found) and found >= 0)
