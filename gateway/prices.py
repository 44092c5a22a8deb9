"""What an upstream call cost, in USD: our own price list, then own hardware by the hour, then the public catalogue."""

from collections.abc import Mapping
from functools import lru_cache

from genai_prices import Usage as PricedUsage
from genai_prices import calc_price

from cache.entry import Usage
from gateway.config import Price

MILLION = 1_000_000
HOUR_MS = 3_600_000


def call_cost(
    model: str, usage: Usage, ms: float, *, prices: Mapping[str, Price], hourly_cost: float | None
) -> float | None:
    """USD of one call that took `ms`, or None when no price is known. `hourly_cost` prices the machine's time."""
    if (own := prices.get(model)) is not None:
        return (usage.input * own.input + usage.output * own.output) / MILLION
    if hourly_cost is not None:
        return hourly_cost * ms / HOUR_MS
    rates = _catalogue_rates(model)
    return None if rates is None else usage.input * rates[0] + usage.output * rates[1]


def load_catalogue() -> None:
    """Read the catalogue now, for half a second, rather than under the first request."""
    _catalogue_rates("gpt-4o")


@lru_cache(maxsize=1024)
def _catalogue_rates(model: str) -> tuple[float, float] | None:
    # The catalogue prices one call at a time, in 0.4 ms; its flat rates are read off once per model.
    try:
        one_in = calc_price(PricedUsage(input_tokens=1000, output_tokens=0), model_ref=model)
        one_out = calc_price(PricedUsage(input_tokens=0, output_tokens=1000), model_ref=model)
    except LookupError:
        return None
    return float(one_in.total_price) / 1000, float(one_out.total_price) / 1000
