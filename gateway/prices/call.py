"""What a call of a backend costs: by our own price list, else by its hardware's hour, else by the catalogue."""

from cache.entry import Usage
from gateway.config import Config, RemoteBackend
from gateway.prices.catalogue import token_cost
from gateway.prices.hardware import Hardware


def charges_by_token(config: Config, backend: str) -> bool:
    """Is it somebody else's, who is paid for each token?"""
    settings = config.backends[backend]
    return isinstance(settings, RemoteBackend) and settings.hourly_cost is None


def call_price(
    config: Config,
    hardware: Hardware,
    backend: str,
    model: str,
    usage: Usage,
    *,
    cached: int,
    ms: float,
    mark: float,
) -> float | None:
    """USD, or None when no price is known. The backend had `cached` of the prompt's tokens; the call has taken `ms`
    since the `mark` of its machine."""
    settings = config.backends[backend]
    by_token = charges_by_token(config, backend)
    url = settings.urls[0] if isinstance(settings, RemoteBackend) else ""
    usd = token_cost(model, usage, prices=config.prices, cached=cached, url=url, catalogue=by_token)
    if usd is not None or settings.hourly_cost is None:
        return usd
    return hardware.cost(
        backend,
        model,
        mark,
        ms=ms,
        output=usage.output,
        hourly=settings.hourly_cost,
        utilization=settings.utilization,
    )
