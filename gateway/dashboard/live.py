"""The dashboard as it changes: a stream of server-sent events for each page that is open.

Each view is worked out once a second for all who look at it, and not at all while nobody does. A page that does not
read fast enough gets the latest of what it has missed, so nothing gathers for it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from gateway.dashboard.overview import View
from gateway.errors import ApiError
from gateway.flight import stopping
from gateway.hits import Record
from gateway.logs import where
from gateway.wanted import Wanted

if TYPE_CHECKING:
    from gateway.app import Gateway

TICK = 1.0
"""Seconds between two looks."""
HEARTBEAT = 15.0
"""Seconds after which a line is sent that says nothing: proxies cut connections on which nothing moves."""
MAX_STREAMS = 64
FOR_ADMINS = 16
"""Of these streams, those that only who sees the whole gateway may have: no tenant can take them all."""
MAX_DECISIONS = 200
"""Of one tick."""
MAX_LOOKED = 5_000
"""Decisions that are looked at for that."""
RETRY = b"retry: 2000\n\n"
"""Milliseconds until a page asks again when the stream breaks off."""
PASSING = ("at", "gateway")
"""Parts of the overview that are never the same twice, and no news."""

log = structlog.get_logger("refrain")


class Channel:
    """One view, and the latest that there is to say about it. `ticked` is set, and a new one in its place, after each
    look."""

    def __init__(self, newest: str) -> None:
        self.streams = 0
        self.ticked = asyncio.Event()
        self.overview = self.decisions = b""
        self.overviews = self.lists = 0  # how many there were
        self.task: asyncio.Task[None]
        self._same = b""
        self._newest = newest  # the id of the latest decision that was looked at

    def tell(self, overview: dict[str, Any]) -> None:
        """The overview as it is now; no news unless something changed."""
        same = msgspec.json.encode({name: part for name, part in overview.items() if name not in PASSING})
        if same != self._same:
            self._same = same
            self.overview = _event("overview", overview)
            self.overviews += 1

    async def tell_new(self, gateway: "Gateway", view: View) -> None:
        """The decisions that are new, newest first."""
        new, wanted = list[Record](), Wanted(endpoint=view.endpoint, tenant=view.tenant)
        newest = ""
        for number, decision in enumerate(gateway.recorder.ring):
            newest = newest or decision.id
            if decision.id == self._newest or number == MAX_LOOKED or len(new) == MAX_DECISIONS:
                break
            if wanted.accepts(decision):
                new.append(decision)
        self._newest = newest or self._newest
        if new:
            shown = []
            for decision in new:
                shown.append(decision.as_dict())
                await asyncio.sleep(0)  # two hundred of them take a few milliseconds
            self.decisions = _event("decisions", {"decisions": shown})
            self.lists += 1

    def wake(self) -> None:
        ticked, self.ticked = self.ticked, asyncio.Event()
        ticked.set()


class Seat:
    """One stream's place at its channel, to be given back."""

    def __init__(self, live: "Live", view: View, channel: Channel) -> None:
        self._live = live
        self.view = view
        self._channel = channel

    async def events(self, allowed: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        """Until `allowed` says no, which it is asked before anything is sent, or the gateway ends."""
        channel, sent = self._channel, monotonic()
        overviews, lists = 0, channel.lists
        yield RETRY
        while not self._live.closed and await allowed():
            ticked, out = channel.ticked, b""
            if overviews != channel.overviews:
                overviews, out = channel.overviews, channel.overview
            if lists != channel.lists:
                lists, out = channel.lists, out + channel.decisions
            if not out and monotonic() - sent >= HEARTBEAT:
                out = b":\n\n"
            if out:
                yield out
                sent = monotonic()
            if ticked is channel.ticked:
                await ticked.wait()

    def leave(self) -> None:
        self._live.leave(self.view)


class Live:
    """All streams of one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self.closed = False
        self._gateway = gateway
        self._channels: dict[View, Channel] = {}

    @property
    def streams(self) -> int:
        return sum(channel.streams for channel in self._channels.values())

    def join(self, view: View) -> Seat:
        """Raises ApiError 503."""
        if self.closed:
            raise stopping()
        if self.streams >= (MAX_STREAMS if view.whole else MAX_STREAMS - FOR_ADMINS):
            text = "Too many dashboards are open. Close one, or ask /admin/overview now and then."
            raise ApiError(503, text, code="too_many_streams", headers={"retry-after": "10"})
        channel = self._channels.get(view)
        if channel is None:
            newest = next(iter(self._gateway.recorder.ring), None)
            channel = self._channels[view] = Channel(newest.id if newest else "")
            channel.task = asyncio.create_task(self._look(view, channel))
        channel.streams += 1
        return Seat(self, view, channel)

    def leave(self, view: View) -> None:
        channel = self._channels.get(view)
        if channel is not None:
            channel.streams -= 1
            if not channel.streams:
                channel.task.cancel()
                del self._channels[view]

    async def aclose(self) -> None:
        """End all streams."""
        self.closed = True
        tasks = [channel.task for channel in self._channels.values()]
        for channel in self._channels.values():
            channel.task.cancel()
            channel.wake()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, view: View, channel: Channel) -> None:
        gateway = self._gateway
        while True:
            begun = monotonic()
            try:
                channel.tell(await gateway.overviews.make(gateway, view))
                if view.decisions:
                    await channel.tell_new(gateway, view)
            except Exception as error:
                log.error("unexpected error in the dashboard", kind=type(error).__name__, where=where(error))
            channel.wake()
            took = monotonic() - begun
            await asyncio.sleep(max(TICK - took, took))


def _event(name: str, data: dict[str, Any]) -> bytes:
    # JSON has no line ends of its own, so one line is one event.
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
