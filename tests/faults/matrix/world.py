"""A gateway and its upstreams for a case to happen in."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

import aiohttp

from tests.faults.matrix.cases import Mode
from tests.faults.matrix.nobody import Door, Shut
from tests.support.gateway import ADMIN, KEYS, running
from tests.support.traffic import Json
from tests.support.upstream import Upstream, upstream

SLOW = "{connect: 5s, first_byte: 10s, between_chunks: 10s}"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
HASTY = "{connect: 1s, first_byte: 1s, between_chunks: 500ms}"


class NotThere(AssertionError):
    """Not all who are to be in a flight are."""


@dataclass
class World:
    url: str
    http: aiohttp.ClientSession
    """The gateway's clients."""
    up: Upstream
    door: Door
    shut: Shut

    @property
    def calls(self) -> int:
        """Calls that have come to the upstream."""
        return self.up.calls + self.door.calls

    async def gauges(self) -> tuple[int, int]:
        """Flights in progress, and the clients in them."""
        async with self.http.get("/metrics", headers=AS_ADMIN) as response:
            text = await response.text()

        def value(name: str) -> int:
            found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
            assert found, f"there is no {name} in /metrics"
            return int(float(found[1]))

        return value("refrain_flights"), value("refrain_flight_listeners")

    async def listening(self, clients: int) -> None:
        """Wait until so many clients are in the flight."""

        missing = NotThere(f"there are not {clients} clients in one flight")

        async def are() -> bool:
            flights, listeners = await self.gauges()
            if clients > 1 and not flights:
                raise missing  # it has ended, and they will not come any more
            return (flights, listeners) == (1, clients)

        await eventually(are, missing)

    async def called(self, calls: int) -> None:
        """Wait until so many calls have come to the upstream."""

        async def have() -> bool:
            return self.calls == calls

        await eventually(have, NotThere(f"there are not {calls} calls"))

    async def nothing_left(self) -> None:
        """Wait until no flight is in progress and no call of the upstream is open."""

        async def gone() -> bool:
            return self.up.open == 0 and await self.gauges() == (0, 0)

        await eventually(gone, AssertionError("a flight or a call is left over"))

    async def tokens(self) -> Json:
        """What the books say of all requests so far."""
        async with self.http.get("/admin/stats", headers=AS_ADMIN) as response:
            return dict((await response.json())["tokens"])


async def eventually(what: Callable[[], Awaitable[bool]], otherwise: AssertionError) -> None:
    deadline = monotonic() + 5
    while not await what():
        if monotonic() > deadline:
            raise otherwise
        await asyncio.sleep(0.003)


@asynccontextmanager
async def world(mode: Mode, *, upstream_port: int | None = None) -> AsyncIterator[World]:
    """With `upstream_port` the backends are there, and not the scripted upstream."""
    # The servers have loops of their own: all that blocks here is their start and their end.
    shut = Shut()
    with upstream() as up:
        port = upstream_port or up.port
        async with Door(port) as door:
            with running(config_text(mode, port, door.port, shut.port)) as gateway:
                async with aiohttp.ClientSession(gateway.url) as http:
                    yield World(gateway.url, http, up, door, shut)


def config_text(mode: Mode, port: int, door: int, shut: int) -> str:
    """One endpoint for each backend, named like it."""
    backends = {"patient": (port, SLOW), "hasty": (port, HASTY), "door": (door, SLOW), "shut": (shut, SLOW)}
    listed = "".join(
        f'  {name}: {{kind: remote, base_url: "http://127.0.0.1:{at}/v1", timeouts: {timeouts}}}\n'
        for name, (at, timeouts) in backends.items()
    )
    endpoints = "".join(f"  {name}: {{mode: {mode}, share: tenant, backend: {name}}}\n" for name in backends)
    return f"""
backends:
{listed}
models: {{"*": patient}}
store: {{url: "memory://"}}
{KEYS}
endpoints:
{endpoints}
"""
