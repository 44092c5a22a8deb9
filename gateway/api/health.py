"""Is it alive, is it ready? Open to everyone, so they say states and nothing else."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from gateway.app import Gateway


async def healthz(gateway: "Gateway", request: Request) -> Response:
    """The process answers."""
    return JSONResponse({"status": "ok"})


async def readyz(gateway: "Gateway", request: Request) -> Response:
    """200 `ready`, 200 `degraded` (a cache is ill or documents cannot be searched, answers still come), 503 `starting`
    or `down` (no backend)."""
    states = set(gateway.backends().values())
    if states and "ready" not in states:
        return JSONResponse({"status": "starting" if "starting" in states else "down"}, 503)
    stores = await gateway.cache.stats()
    down = "down" in states or any(r.state != "ready" for r in gateway.snapshot().retrievers.values())
    ill = down or gateway.semantics.ill or not all(s.healthy for s in stores.values())
    return JSONResponse({"status": "degraded" if ill else "ready"})
