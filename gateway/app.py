"""Builds everything from a configuration, and takes it down again."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from fastapi import FastAPI

from backends.base import Backend
from backends.base import State as BackendState
from cache.exact import ExactCache
from cache.retrieval import RetrievalCache
from cache.stores.memory import MemoryStore
from gateway.api import routes
from gateway.api.webhooks import Deliveries
from gateway.asgi import App, Receive, Scope, Send
from gateway.auth import Authenticator, Entrant
from gateway.batch.inside import Inside
from gateway.batch.lane import Lane
from gateway.batch.plain import PlainCalls
from gateway.batch.run import Means
from gateway.batch.store import BatchStore, InUse, batches_path
from gateway.config import Config, watch_config
from gateway.dashboard.assets import assets
from gateway.dashboard.live import Live
from gateway.dashboard.overview import Overviews
from gateway.embedders import MakeEmbedder, SharedEmbedders, embedder_of
from gateway.embeddings.caller import Caller
from gateway.embeddings.gather import Gatherer
from gateway.embeddings.handler import Embeddings
from gateway.fill import Kitchen
from gateway.fleet import Fleet
from gateway.flights import Flights
from gateway.front import Front
from gateway.identity import Identity
from gateway.latency.models import LatencyModels
from gateway.ledger.ledger import ledger_path
from gateway.metrics.labels import ModelLabels, is_ours
from gateway.metrics.lag import Lag
from gateway.normalize import Api
from gateway.pipeline import Pipeline
from gateway.prices.bill import Learners
from gateway.prices.catalogue import catalogue_name, load_catalogue
from gateway.prices.hardware import Hardware
from gateway.prices.search import SearchCosts
from gateway.reception import Reception
from gateway.recorder import Recorder
from gateway.retrieval.changes import Changes
from gateway.retrieval.finder import Finder
from gateway.retrieval.grounds import Grounding
from gateway.retrieval.matching import Matching
from gateway.retrieval.retrievers import Retrievers
from gateway.retrieval.searches import Searches
from gateway.semantics import Semantics
from gateway.sessions import Sessions
from gateway.snapshot import Snapshot
from gateway.state import State, StateError, state_path

COUNTERS_EVERY = 10.0
"""Seconds between two writings of what is used of the limits: so much of it may be lost when the process is killed."""

ENVELOPE = 64 * 1024
"""Bytes that a line of a batch may have beyond its body."""

log = structlog.get_logger("refrain")


class Gateway:
    """The parts of one gateway. `clock` is wall-clock seconds, `embedders` makes the semantic tier's embedder; both may
    be injected."""

    def __init__(
        self, config: Config, *, clock: Callable[[], float] = time.time, embedders: MakeEmbedder = embedder_of
    ) -> None:
        self.clock = clock
        self.recorder = Recorder(config.decisions.ring, clock, self._knows_model)
        front = MemoryStore(config.store.memory, now=clock)
        self.cache = ExactCache(front, max_entry=config.store.max_entry)
        self.fleet = Fleet()
        self._generation = 0
        self.identity = Identity(clock)
        self.sessions = Sessions(clock)
        self.overviews = Overviews(self.recorder.ledger, clock)
        self.live = Live(self)
        self.state: State
        self._counting: asyncio.Task[None]
        self._saved: list[tuple[str, int, float]] = []
        self._snapshot = Snapshot.of(config, 0, {}, Authenticator(True, {}))  # nobody may come in before the start
        shared = SharedEmbedders(embedders)
        self.semantics = Semantics(self.cache, clock, shared)
        self.changes = Changes(
            self.cache,
            self.semantics,
            clock,
            state=lambda: self.state,
            retrievers=lambda: self._snapshot.retrievers,
        )
        paid_by = SearchCosts().paid_by(self.recorder.charge)
        self.retrievers = Retrievers(shared, self.changes.forget, paid_by)
        self.deliveries = Deliveries(clock)
        self.lag = Lag()
        self.model_labels = ModelLabels()
        self.started = clock()
        self.latency = LatencyModels()
        self.hardware = Hardware(decode_tps=self.latency.decode_tps)
        learners = Learners(self.latency, self.recorder.observed, self.hardware)
        kitchen = Kitchen(self.cache, self.semantics, clock, self.snapshot, learners)
        self.flights = Flights(kitchen, self.recorder)
        caller = Caller(self.cache, self.recorder, clock, self.snapshot, learners)
        self.embeddings = Embeddings(self.cache, Gatherer(self.cache, caller, clock), clock)
        self.reception = Reception(self.recorder, self.snapshot, clock)
        found = RetrievalCache(self.cache, clock)
        self.finder = Finder(found, Matching(found, self.semantics, front, paid_by))
        self.searches = Searches(self.finder, front)
        grounding = Grounding(self.finder)
        self.lane: Lane | None = None  # where there is a disk to keep batches on
        later = PlainCalls(lambda: self.lane, clock)
        self.pipeline = Pipeline(
            self.cache, grounding, self.flights, self.semantics, self.recorder, self.reception, later, clock
        )

    def snapshot(self) -> Snapshot:
        """The configuration in force."""
        return self._snapshot

    async def start(self) -> None:
        """Raises StoreError or StateError where there can be no store."""
        config = self._snapshot.config
        self.state = await State.open(state_path(config.store.url, config.store.durable_url))
        try:
            await self._start(config)
        except BaseException:
            await self.recorder.ledger.aclose()
            await self.state.aclose()
            raise

    async def _start(self, config: Config) -> None:
        await self.identity.open(self.state)
        self.semantics.recall(await self.state.wrong_pairs())
        self.retrievers.recall(await self.state.erased())
        await asyncio.to_thread(load_catalogue)
        await asyncio.to_thread(assets)
        await self.recorder.ledger.open(ledger_path(config.store.url, config.store.durable_url))
        await self.cache.open(config.store.url, max_bytes=config.store.max_bytes, now=self.clock)
        await self.apply(config)
        self._counting = asyncio.create_task(self._keep_counters())
        self.lag.start()
        if (path := batches_path(config.store.url, config.store.durable_url)) is not None:
            await self._open_lane(path)

    async def _open_lane(self, path: Path) -> None:
        try:
            store = await BatchStore.open(path)
        except InUse as error:
            log.warning("there is no batch lane here", reason=str(error))
            return
        means = Means(store, Inside(self._serve), self.snapshot, self.clock, self.cache.flush)
        self.lane = Lane(means, lambda: self._snapshot.config.server.max_body + ENVELOPE)
        try:
            await self.lane.start()
        except BaseException:
            await self.stop()
            raise

    async def _serve(
        self, api: Api, endpoint: str, scope: Scope, receive: Receive, send: Send, entrant: Entrant
    ) -> None:
        """A request of the batch lane."""
        if api == "embeddings":
            await self.reception(self.embeddings, api, endpoint, scope, receive, send, entrant=entrant)
        else:
            await self.pipeline(api, endpoint, scope, receive, send, entrant=entrant)

    async def apply(self, config: Config) -> None:
        """Put a configuration in force, atomically: a request sees the old one or the new one, never both."""
        backends: Mapping[str, Backend] = await self.fleet.apply(config)
        retrievers = await self.retrievers.apply(config)
        self.recorder.ring.resize(config.decisions.ring)
        self._generation += 1
        auth = self.identity.authenticator(config.auth)
        self._snapshot = Snapshot.of(config, self._generation, backends, auth, retrievers)
        await self.semantics.apply(config)

    def _knows_model(self, model: str) -> bool:
        """Do the configuration or the catalogue have a model of just this name?"""
        return is_ours(model, self._snapshot.config) or catalogue_name(model) == model

    def backends(self) -> dict[str, BackendState]:
        return {name: b.state() for name, b in self._snapshot.backends.items()}

    def starting(self) -> dict[str, str]:
        """What the backends that are not ready yet are doing."""
        return {name: b.detail for name, b in self._snapshot.backends.items() if b.state() == "starting"}

    async def stop(self) -> None:
        await self.live.aclose()
        if self.lane is not None:
            await self.lane.aclose()
        await self.flights.aclose()
        await self.semantics.aclose()
        await self.retrievers.aclose()
        await self.changes.aclose()  # after those who call it
        self._counting.cancel()
        self.lag.stop()
        await self.fleet.aclose()
        await self.identity.aclose()
        await self.cache.aclose()
        await self._save_counters()
        await self.recorder.ledger.aclose()
        await self.state.aclose()

    async def _keep_counters(self) -> None:
        while True:
            await asyncio.sleep(COUNTERS_EVERY)
            await self._save_counters()

    async def _save_counters(self) -> None:
        rows = self.identity.meters.windows.rows()
        if rows == self._saved:
            return
        try:
            await self.state.save_counters(rows)
            self._saved = rows
        except StateError as error:
            log.warning("the use of limits could not be written", reason=str(error))


def create_app(
    config: Config,
    *,
    path: Path | None = None,
    server: Mapping[str, object] | None = None,
    clock: Callable[[], float] = time.time,
    embedders: MakeEmbedder = embedder_of,
    announce: Callable[[Gateway], Coroutine[Any, Any, None]] | None = None,
) -> App:
    """The ASGI application. With `path`, changes of that file are applied while it runs; `server` are the settings of
    that section which the command line has set, and which win over the file. `announce` runs beside the start."""
    gateway = Gateway(config, clock=clock, embedders=embedders)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        beside = []
        if path is not None:
            beside.append(asyncio.create_task(watch_config(path, config, gateway.apply, server=server)))
        if announce is not None:
            beside.append(asyncio.create_task(announce(gateway)))
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await gateway.stop()

    # No OpenAPI pages: they would describe the gateway to whoever asks.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.gateway = gateway
    routes.install(app, gateway)
    return Front(routes.Direct(app, gateway), gateway.cache.front, gateway.recorder, gateway.snapshot, clock)
