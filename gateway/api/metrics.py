"""GET /metrics, for Prometheus."""

import asyncio
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.roles import enter_admin
from gateway.metrics.page import CONTENT_TYPE
from gateway.metrics.render import Queue, Seen, render

if TYPE_CHECKING:
    from gateway.app import Gateway


async def metrics(gateway: "Gateway", request: Request) -> Response:
    await enter_admin(gateway, request)
    recorder, flights, config = gateway.recorder, gateway.flights, gateway.snapshot().config
    once = gateway.embeddings.gatherer.once
    seen = Seen(
        rows=list(recorder.ledger.totals()),
        errors=dict(recorder.ledger.errors),
        observed=recorder.observed.copy(),
        stores=await gateway.cache.stats(),
        ready={name: state == "ready" for name, state in gateway.backends().items()},
        queues={name: Queue(dict(gate.running), gate.waiting) for name, gate in gateway.fleet.gates().items()},
        refused=dict(gateway.fleet.refused),
        retrievers={name: r.state == "ready" for name, r in gateway.snapshot().retrievers.items()},
        learnt=gateway.latency.as_dict(),
        semantic=gateway.semantics.stats(),
        flights=flights.count + once.calls,
        listeners=flights.listening + once.waiting,
        batches={} if gateway.lane is None else gateway.lane.states(),
        lines={} if gateway.lane is None else dict(gateway.lane.lines),
        decisions=len(recorder.ring),
        lag=gateway.lag.seconds,
        version=_version(),
        started=gateway.started,
        label=lambda model: gateway.model_labels.label(model, config),
    )
    # Thousands of lines where there are many models, and the event loop has better things to do.
    return Response(await asyncio.to_thread(render, seen), media_type=CONTENT_TYPE)


@cache
def _version() -> str:
    return version("refrain-gateway")
