"""The backends in use: built from the configuration, kept over a reload where nothing about them changed, and closed
only when the last call on them has ended."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from functools import partial

from backends.base import Backend, Call, Priority, Reply, State
from backends.local.backend import LocalBackend
from backends.remote import RemoteBackend
from gateway.config import Config
from gateway.config import LocalBackend as LocalConfig
from gateway.config import RemoteBackend as RemoteConfig
from gateway.gate import Gate, Limits, Place

RETIRE_AFTER = 1.0
"""Seconds after which a backend that a reload has replaced is closed, or later: when its last call has ended."""
BATCH_ALONE = 8
"""Batch calls at once on a backend whose calls nothing else limits."""

BackendConfig = LocalConfig | RemoteConfig


class Fleet:
    """`refused` counts the calls that no backend was sent, by backend, class and reason."""

    def __init__(self) -> None:
        self.refused: Counter[tuple[str, Priority, str]] = Counter()
        self._running: dict[str, tuple[BackendConfig, Managed]] = {}
        self._retired: dict[Managed, asyncio.Task[None]] = {}

    async def apply(self, config: Config) -> Mapping[str, Backend]:
        """Start what is new or changed, retire what is gone; gives the backends by name."""
        wanted = {name: config.backends[name] for name in used_backends(config)}
        kept = {
            name: known
            for name, known in self._running.items()
            if name in wanted and _matter(wanted[name]) == _matter(known[0])
        }
        fresh: dict[str, tuple[BackendConfig, Managed]] = {}
        try:
            for name in wanted.keys() - kept.keys():
                gate = Gate(name, limits(wanted[name]), partial(self._refuse, name))
                fresh[name] = (wanted[name], Managed(build(name, wanted[name]), gate))
                await fresh[name][1].start()
        except BaseException:
            # The running configuration stays, so whatever was begun for the new one goes.
            await asyncio.gather(*(managed.aclose() for _, managed in fresh.values()))
            raise
        for name, (_, managed) in self._running.items():
            if name not in kept:
                self._retire(managed)
        for name, (_, managed) in kept.items():
            managed.gate.limit(limits(wanted[name]))
        self._running = kept | fresh
        return {name: managed for name, (_, managed) in self._running.items()}

    def gates(self) -> dict[str, Gate]:
        """Those of the backends in use, by name."""
        return {name: managed.gate for name, (_, managed) in self._running.items()}

    async def aclose(self) -> None:
        for task in self._retired.values():
            task.cancel()
        await asyncio.gather(*self._retired.values(), return_exceptions=True)
        running = [managed for _, managed in self._running.values()]
        await asyncio.gather(*(managed.aclose() for managed in [*running, *self._retired]))

    def _refuse(self, name: str, priority: Priority, reason: str) -> None:
        self.refused[name, priority, reason] += 1

    def _retire(self, managed: "Managed") -> None:
        self._retired[managed] = asyncio.create_task(self._close_when_idle(managed))

    async def _close_when_idle(self, managed: "Managed") -> None:
        # A request that took the old snapshot may be about to call: parsing and the store come between.
        await asyncio.sleep(RETIRE_AFTER)
        await managed.idle()
        await managed.aclose()
        del self._retired[managed]


def used_backends(config: Config) -> Iterable[str]:
    """The backends that some request can reach; a configured one that none can is not started."""
    names = list(config.models.values())
    for endpoint in config.endpoints.values():
        names += [*([] if endpoint.backend is None else [endpoint.backend]), *endpoint.fallback]
    return dict.fromkeys(names)


def _matter(settings: BackendConfig) -> tuple[object, ...]:
    """The settings that `build` uses: where others change, such as a price, a running engine goes on."""
    timeouts = settings.timeouts
    if isinstance(settings, LocalConfig):
        limits = (settings.max_running, settings.max_queue, settings.kv_memory)
        return ("local", settings.model, settings.precision, settings.quantize, limits, timeouts)
    return ("remote", settings.urls[0], settings.api_key, timeouts)


def limits(settings: BackendConfig) -> Limits:
    """How many calls at once. A local engine has a queue of its own, in which interactive requests wait."""
    if isinstance(settings, LocalConfig):
        return Limits(None, settings.max_running, settings.max_queue)
    most = settings.max_running
    return Limits(most, BATCH_ALONE if most is None else max(1, most // 2), settings.max_queue)


def build(name: str, settings: BackendConfig) -> Backend:
    timeouts = settings.timeouts
    if isinstance(settings, LocalConfig):
        return LocalBackend(
            name,
            model=settings.model,
            precision=settings.precision,
            quantize=settings.quantize,
            max_running=settings.max_running,
            max_queue=settings.max_queue,
            kv_memory=settings.kv_memory,
            first_byte_timeout=timeouts.first_byte,
            between_chunks_timeout=timeouts.between_chunks,
        )
    return RemoteBackend(
        name,
        base_url=settings.urls[0],
        api_key=settings.api_key.get_secret_value() if settings.api_key is not None else None,
        connect_timeout=timeouts.connect,
        first_byte_timeout=timeouts.first_byte,
        between_chunks_timeout=timeouts.between_chunks,
    )


class Managed:
    """A backend behind its gate, that knows how many calls are on it or wait for it."""

    def __init__(self, backend: Backend, gate: Gate) -> None:
        self._backend = backend
        self.gate = gate
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.name = backend.name
        self.revision = backend.revision
        self.private = backend.private

    async def start(self) -> None:
        await self._backend.start()

    async def send(self, call: Call) -> Reply:
        self._calls += 1
        self._idle.clear()
        place = None
        try:
            if call.method == "POST":  # a question about its models is no work
                place = await self.gate.enter(call)
            return _Counted(await self._backend.send(call), self, place)
        except BaseException:
            self.ended(place)
            raise

    def ended(self, place: Place | None) -> None:
        if place is not None:
            place.leave()
        self._calls -= 1
        if self._calls == 0:
            self._idle.set()

    def state(self) -> State:
        return self._backend.state()

    @property
    def detail(self) -> str:
        return self._backend.detail

    async def idle(self) -> None:
        """Return when no call is on it."""
        await self._idle.wait()

    async def aclose(self) -> None:
        await self._backend.aclose()


class _Counted:
    def __init__(self, reply: Reply, owner: Managed, place: Place | None) -> None:
        self._reply = reply
        self._owner = owner
        self._place = place
        self._open = True
        self.status = reply.status
        self.headers = reply.headers

    async def read(self) -> bytes:
        return await self._reply.read()

    def chunks(self) -> AsyncGenerator[bytes, None]:
        return self._reply.chunks()

    async def aclose(self) -> None:
        try:
            await self._reply.aclose()
        finally:
            if self._open:
                self._open = False
                self._owner.ended(self._place)
