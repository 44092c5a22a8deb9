"""How an engine is, by asking it: until it is ready, and then until it hangs.

A hang must be told from a busy machine. An engine hangs when it says so itself several times in a row (the model comes
to no end of a step), or when it has left several questions in a row unanswered, and all of them for a long time
together. So neither a torch that holds up the engine's event loop for seconds is a hang, nor a pause of this process,
of the engine or of the whole machine: the clock is monotonic, and after the pause the next question is answered.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import httpx

POLL = 0.2  # seconds between two questions to an engine that is not ready
POLL_TIMEOUT = 2.0
WATCH = 1.0  # seconds between two questions to one that is
MISSES = 3


def client(uds: str) -> httpx.AsyncClient:
    """For questions to the engine on this Unix socket."""
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=uds), base_url="http://engine")


async def until_ready(engine: httpx.AsyncClient, tell: Callable[[str], None]) -> None:
    """Return when the engine is ready; `tell` hears in words what it does meanwhile."""
    while True:
        with contextlib.suppress(httpx.HTTPError, ValueError):  # it does not listen yet, or is very busy
            answer = await engine.get("/readyz", timeout=POLL_TIMEOUT)
            if answer.status_code == httpx.codes.OK:
                return
            tell(str(answer.json().get("detail", "starting")))
        await asyncio.sleep(POLL)


async def until_hung(engine: httpx.AsyncClient, hang_after: float) -> str:
    """Return when an engine that was ready hangs; what is wrong, in words. It may leave questions unanswered for
    `hang_after` seconds."""
    missed = stalled = 0
    answered = time.monotonic()
    while True:
        await asyncio.sleep(WATCH)
        try:
            answer = await engine.get("/readyz", timeout=hang_after / MISSES)
        except httpx.HTTPError:
            missed += 1
            if missed >= MISSES and time.monotonic() - answered >= hang_after:
                return f"it has answered nothing for {hang_after:g} s"
            continue
        missed, answered = 0, time.monotonic()
        stalled = stalled + 1 if _is_stalled(answer) else 0
        if stalled >= MISSES:
            return "the model does not come to the end of a step"


def _is_stalled(answer: httpx.Response) -> bool:
    try:
        return answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and answer.json().get("status") == "stalled"
    except (ValueError, AttributeError):
        return False
