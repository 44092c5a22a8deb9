"""What the dashboard shows at a glance, for one range of time, one endpoint or all, one tenant or all."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.dashboard.tally import ALL, Window, as_dict, window
from gateway.ledger.ledger import Ledger, LedgerError, Summary
from gateway.ledger.table import NOTHING

if TYPE_CHECKING:
    from gateway.app import Gateway

MAX_CHOICES = 1000


class View(NamedTuple):
    """What is looked at. `whole`: by somebody who may see the whole gateway, not just this tenant; `decisions`: a live
    view has the new ones, too."""

    range: str
    endpoint: str | None
    tenant: str | None
    whole: bool
    decisions: bool = True


class Overviews:
    """Makes overviews, one at a time: a hundred people who look at once share the work, and leave room for requests.
    `clock` is wall-clock seconds."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._making = asyncio.Lock()

    async def make(self, gateway: "Gateway", view: View) -> dict[str, Any]:
        """The overview as it is now, as JSON objects."""
        async with self._making:
            span, summary = await self._read(view)
            stores = await gateway.cache.stats() if view.whole else {}
        out = {"at": self._clock(), **as_dict(summary, span)}
        joined = out["totals"]["requests"].get("joined", 0)
        latency = gateway.latency.as_dict() if view.whole else {}
        backends = gateway.snapshot().backends.items()
        once = gateway.embeddings.gatherer.once
        # What concerns the whole gateway is not for those who see one tenant of it.
        return out | {
            "flights": {
                "open": gateway.flights.count + once.calls if view.whole else None,
                "listening": gateway.flights.listening + once.waiting if view.whole else None,
                "joined": joined,
            },
            "semantic": gateway.semantics.stats() if view.whole else {},
            "stores": {layer: asdict(stats) for layer, stats in stores.items()},
            "backends": {
                name: {"state": b.state(), "detail": b.detail, "models": latency.get(name, {})}
                if view.whole
                else {"state": b.state(), "detail": None, "models": {}}
                for name, b in backends
            },
            "retrievers": {name: r.stats() for name, r in gateway.snapshot().retrievers.items()} if view.whole else {},
            "choices": self._choices(gateway, view),
            "gateway": {
                "version": _version(),
                "uptime": round(self._clock() - gateway.started, 1) if view.whole else None,
                "loop_lag_ms": round(gateway.lag.ms, 2) if view.whole else None,
            },
        }

    async def _read(self, view: View) -> tuple[Window, Summary]:
        """Nothing at all, while the ledger cannot be asked."""
        now, whose = self._clock(), {"tenant": view.tenant, "endpoint": view.endpoint}
        try:
            first = await self._ledger.first_day(**whose) if view.range == ALL else None
            span = window(view.range, now, first)
            return span, await self._ledger.summary(span.start, span.end, span.step, **whose)
        except LedgerError:
            return window(view.range, now), NOTHING

    def _choices(self, gateway: "Gateway", view: View) -> dict[str, list[str]]:
        """What one can choose to look at: whatever was ever asked, and for the whole gateway what may be."""
        endpoints, tenants = set[str](), set[str]()
        for key in self._ledger.keys(None if view.whole else view.tenant):
            endpoints.add(key.endpoint)
            tenants.add(key.tenant)
        if view.whole:
            endpoints.update(gateway.snapshot().endpoints)
            tenants.update(key.principal.tenant for key in gateway.identity.keys)
        return {"endpoints": sorted(endpoints - {""})[:MAX_CHOICES], "tenants": sorted(tenants - {""})[:MAX_CHOICES]}


@cache
def _version() -> str:
    return version("refrain-gateway")
