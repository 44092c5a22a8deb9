"""Joining: which requests share an upstream call in progress.

Requests share one when they would be answered from one cache entry, and would store it alike: same key (so same
scope, endpoint, model, backend), same `x-refrain-ttl` and tags, same configuration, and same class of calls: who
waits for an answer is not made to wait for the batch lane's turn. Never:

- requests that no cache may serve, whose answers are each client's own;
- an explicit temperature above 0 without a seed: asking five times means wanting five;
- keys whose last answer could not be stored, for a while: such answers may come in parallel, nothing is lost (Varnish
  calls it hit-for-miss);
- a request for a fresh answer (`no-cache`), or for a younger one than the flight's;
- a flight that a purge has met: its answer is older than the purge.
"""

import asyncio
from dataclasses import replace

from backends.base import Priority
from cache.entry import Entry
from gateway.ask import Ask
from gateway.cacheability import wants_its_own
from gateway.directives import Directives
from gateway.fallback import Chain
from gateway.fill import Fill, Kitchen
from gateway.flight import Flight, stopping
from gateway.listener import Listener
from gateway.recorder import Recorder
from gateway.remembered import Remembered
from gateway.visit import Visit

UNCACHEABLE_FOR = 120.0
"""Seconds for which an answer that could not be stored is remembered."""
REFRESH_PAUSE = 5.0
"""Seconds after a failed refresh before another one of that key is tried."""
MAX_REFRESHES = 32
"""Refreshes at one time: nobody waits for them, so nothing else keeps their number down."""
PASSING = frozenset({"purged_meanwhile", "policy_changed", "store_unavailable", "ttl_zero"})
"""Reasons for not storing an answer that say nothing about the next one."""

Ident = tuple[bytes, float | None, tuple[str, ...], int, Priority]


class Flights:
    """All flights of one gateway."""

    def __init__(self, kitchen: Kitchen, recorder: Recorder) -> None:
        self._kitchen = kitchen
        self._recorder = recorder
        self._open: dict[Ident, Flight] = {}  # those that others may join
        self._all: set[Flight] = set()
        self._refreshing: set[bytes] = set()
        self._uncacheable = Remembered(UNCACHEABLE_FOR, kitchen.clock)
        self._not_refreshed = Remembered(REFRESH_PAUSE, kitchen.clock)
        self._closed = False

    @property
    def count(self) -> int:
        return len(self._all)

    @property
    def listening(self) -> int:
        return sum(len(flight.listeners) for flight in self._all)

    def board(self, visit: Visit, ask: Ask) -> Listener:
        """Join the flight for this request, or lead one. Raises ApiError when the gateway is shutting down."""
        if self._closed:
            raise stopping()
        shared = self._sharable(ask)
        ident = _ident(visit, ask)
        flight = self._open.get(ident) if shared else None
        if flight is not None and flight.shared and not flight.fill.outdated():
            if self._young_enough(flight, ask) and (flight.fill.calling or _content_with(flight.ask, ask)):
                visit.decision.outcome = "joined"
                return flight.join(visit, ask)
            shared = (
                not ask.directives.no_cache
            )  # who wants an answer of its own leaves the one in the air to be joined
        storable = ask.bypass is None and ask.directives.ttl != 0
        lasting = storable and ask.endpoint.config.finish
        return self._launch(visit, ask, ident if shared else None, lasting=lasting).join(visit, ask)

    def refresh(self, visit: Visit, ask: Ask, entry: Entry) -> None:
        """Have a new answer fetched for this entry, beside the requests that it serves; one at a time for each key."""
        key = entry.key
        if self._closed or any(key in keys for keys in (self._refreshing, self._not_refreshed, self._uncacheable)):
            return
        if len(self._refreshing) >= MAX_REFRESHES:
            return  # a later request will have it refreshed
        # It replaces the entry for everybody, so it is not this request's to say how long and under which tags.
        ask = replace(ask, directives=Directives(tags=entry.tags))
        ident = _ident(visit, ask)
        if ident in self._open:
            return
        self._refreshing.add(key)
        self._launch(visit, ask, ident if self._sharable(ask) else None, lasting=True, refresh=True)

    async def aclose(self) -> None:
        """End what is still in the air; whoever listens is told."""
        self._closed = True
        flights = list(self._all)
        for flight in flights:
            flight.stop()
        await asyncio.gather(*(flight.task for flight in flights), return_exceptions=True)

    def _sharable(self, ask: Ask) -> bool:
        return (
            ask.bypass is None
            and ask.directives.ttl != 0
            and not wants_its_own(ask.body)
            and ask.key not in self._uncacheable
        )

    def _young_enough(self, flight: Flight, ask: Ask) -> bool:
        asked = ask.directives
        if asked.no_cache:
            return False
        return asked.max_age is None or self._kitchen.clock() - flight.fill.made <= asked.max_age

    def _launch(self, visit: Visit, ask: Ask, ident: Ident | None, *, lasting: bool, refresh: bool = False) -> Flight:
        def on_end(flight: Flight) -> None:
            if ident is not None and self._open.get(ident) is flight:
                del self._open[ident]
            if refresh:
                self._refreshing.discard(ask.key)
                if flight.filled is None:
                    self._not_refreshed.add(ask.key)
            self._learn(ask, flight)

        def begin_fill(visit: Visit, ask: Ask, former: Fill | None) -> Fill:
            chain = None if refresh else Chain.of(ask)
            return Fill(self._kitchen, visit, ask, anew=refresh, former=former, chain=chain)

        shared = ident is not None
        flight = Flight(begin_fill, self._recorder, visit, ask, shared=shared, lasting=lasting, on_end=on_end)
        if ident is not None:
            self._open[ident] = flight
        self._all.add(flight)
        flight.task.add_done_callback(lambda _: self._all.discard(flight))
        return flight

    def _learn(self, ask: Ask, flight: Flight) -> None:
        """Remember whether answers under this key can be stored, as far as this one tells."""
        if ask.bypass is not None or flight.fill.fallback:
            return
        if flight.outgrown:
            self._uncacheable.add(ask.key)
        elif flight.filled is not None:
            why = flight.filled.not_stored
            if why is None:
                self._uncacheable.discard(ask.key)
            elif why not in PASSING:
                self._uncacheable.add(ask.key)


def _content_with(leader: Ask, ask: Ask) -> bool:
    """Would it take whatever answer of another question the leader may be given?"""
    theirs, mine = leader.directives, ask.directives
    young = mine.max_age is None or (theirs.max_age is not None and theirs.max_age <= mine.max_age)
    return young and "semantic" in mine.tiers


def _ident(visit: Visit, ask: Ask) -> Ident:
    return (ask.key, ask.directives.ttl, ask.directives.tags, visit.snapshot.generation, visit.priority(ask))
