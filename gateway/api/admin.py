"""The admin API that only looks: stats. A `tenant_admin` sees its own tenant only."""

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.roles import enter, own_tenant
from gateway.ledger.stats import stats as ledger_stats

if TYPE_CHECKING:
    from gateway.app import Gateway


async def stats(gateway: "Gateway", request: Request) -> Response:
    principal = await enter(gateway, request)
    # Of thousands of keys it takes a while, and the sums are never changed.
    out = await asyncio.to_thread(ledger_stats, list(gateway.recorder.ledger.totals(own_tenant(principal))))
    stores = await gateway.cache.stats()
    out["tiers"] = {}
    if principal.is_admin:
        out["tiers"]["exact"] = {name: _store(s) for name, s in stores.items()}
        out["tiers"]["retrieval"] = {name: r.stats() for name, r in gateway.snapshot().retrievers.items()}
    out["backends"] = _backends(gateway, full=principal.is_admin)
    out["semantic"] = gateway.semantics.stats() if principal.is_admin else {}
    return JSONResponse(out)


def _backends(gateway: "Gateway", *, full: bool) -> dict[str, Any]:
    """`full`: with what concerns all tenants."""
    out: dict[str, Any] = {name: {"state": state} for name, state in gateway.backends().items()}
    if full:
        config, speeds = gateway.snapshot().config.backends, gateway.latency.as_dict()
        for name, backend in out.items():
            backend["utilization"] = gateway.hardware.utilization(name, config[name].utilization)
            backend["models"] = speeds.get(name, {})
    return out


def _store(stats: Any) -> dict[str, Any]:
    return {
        name: getattr(stats, name)
        for name in ("entries", "bytes", "max_bytes", "evicted", "corrupt", "dropped", "healthy")
    }
