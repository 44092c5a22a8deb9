"""What tokens cost, in USD: by our own price list, else by the public catalogue.

The catalogue's prices may hold for some hours of the day only, and may change with the length of the prompt: beyond a
threshold all tokens of the call have the higher price.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache

from genai_prices import Usage as PricedUsage
from genai_prices import calc_price
from genai_prices.types import ModelInfo, TieredPrices

from cache.entry import Usage
from gateway.config import Price

MILLION = 1_000_000


def token_cost(
    model: str, usage: Usage, *, prices: Mapping[str, Price], cached: int = 0, url: str = "", catalogue: bool = True
) -> float | None:
    """USD of one call, or None when no price is known. `cached` of the prompt's tokens were in the provider's cache;
    `url` is the provider's, which the catalogue may know; `catalogue`: may it be asked?"""
    cached = min(cached, usage.input)
    own = prices.get(model)
    known = _known(model, url) if catalogue and (own is None or (cached and own.cached_input is None)) else None
    if own is not None:
        again = own.cached_input
        if again is None:
            again = own.input if known is None else min(own.input, _rates(known, usage.input)[1])
        return _sum(usage, cached, own.input, again, own.output)
    return None if known is None else _sum(usage, cached, *_rates(known, usage.input))


def catalogue_name(model: str) -> str | None:
    """What the catalogue calls this model: it knows dated and suffixed names, too."""
    known = _known(model, "")
    return None if known is None else known.id


def load_catalogue() -> None:
    """Read the catalogue now, for half a second, rather than under the first request."""
    _known("gpt-4o", "")


def _sum(usage: Usage, cached: int, new: float, again: float, output: float) -> float:
    return ((usage.input - cached) * new + cached * again + usage.output * output) / MILLION


def _rates(model: ModelInfo, length: int) -> tuple[float, float, float]:
    """USD per million tokens of a prompt of that length, now: new ones, cached ones, written ones."""
    prices = model.get_prices(datetime.now(UTC))
    new, again, output = prices.input_mtok, prices.cache_read_mtok, prices.output_mtok
    return _rate(new, length), _rate(new if again is None else again, length), _rate(output, length)


def _rate(price: Decimal | TieredPrices | None, length: int) -> float:
    if isinstance(price, TieredPrices):
        return float(next((tier.price for tier in reversed(price.tiers) if length > tier.start), price.base))
    return float(price or 0)


@lru_cache(maxsize=1024)
def _known(model: str, url: str) -> ModelInfo | None:
    """What the catalogue has for this model: at this provider, else at the one that the name speaks of."""
    for place in (url, None) if url else (None,):
        try:
            return calc_price(PricedUsage(), model_ref=model, provider_api_url=place).model
        except LookupError:
            pass
    return None
