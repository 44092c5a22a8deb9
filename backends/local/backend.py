"""The local engine as the gateway sees it: a remote server that we start, watch and restart."""

from dataclasses import replace

import structlog

from backends.base import BackendStarting, Call, ConnectFailed, Priority, Reply, State
from backends.local.limits import KV_MEMORY, MAX_QUEUE, MAX_RUNNING
from backends.local.models import revision
from backends.local.precision import check_quantization, resolve_precision
from backends.remote import RemoteBackend
from backends.supervisor import HANG_AFTER, Supervisor

START_WAIT = 20.0  # seconds that a call waits for an engine that is starting
NOTICE = 1.0  # seconds within which the supervisor knows of an engine that has ended
RETRY_AFTER = 5.0
BATCH_PATIENCE = 86_400.0  # seconds for each phase of a batch call
SALT, PARTY, PRIORITY = "x-refrain-prefix-salt", "x-refrain-party", "x-refrain-priority"

log = structlog.get_logger("engine")


class LocalBackend:
    """Serves `model` at `precision` (auto, fp32, bf16) with weights quantized to `quantize` (none, int8, int4). At most
    `max_running` choices are written at once and `max_queue` requests of each priority wait behind them, beyond that it
    answers 429; `kv_memory` bytes hold their keys and values and the prefix cache.

    Raises ValueError for a precision or quantization that cannot be. A model that cannot be found or loaded makes the
    backend "down", with the reason in `detail`."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        precision: str = "auto",
        quantize: str = "none",
        max_running: int = MAX_RUNNING,
        max_queue: int = MAX_QUEUE,
        kv_memory: int = KV_MEMORY,
        first_byte_timeout: float = 300.0,
        between_chunks_timeout: float = 60.0,
    ) -> None:
        self.name = name
        self.private: tuple[str, ...] = ()
        # Resolved here and handed on, so that the revision and the engine cannot disagree.
        resolved = resolve_precision(precision)
        self.revision = revision(model, resolved, check_quantization(quantize))
        arguments: dict[str, object] = {
            "model": model,
            "precision": resolved,
            "quantize": quantize,
            "max-running": max_running,
            "max-queue": max_queue,
            "kv-memory": kv_memory,
        }
        self._supervisor = Supervisor(
            # It answers for every name: which models are its own, the gateway has decided.
            ["--any-model", *(f"--{name}={value}" for name, value in arguments.items())],
            # What the engine says on its way is `detail` as well, where whoever waits can see it.
            log=lambda line: log.debug("engine", backend=name, line=line),
            warn=lambda line: log.warning("engine ended", backend=name, reason=line),
            hang_after=HANG_AFTER,
        )
        self._first_byte = first_byte_timeout
        self._between_chunks = between_chunks_timeout
        self._remotes: dict[Priority, RemoteBackend] = {}  # empty while there is no engine

    @property
    def detail(self) -> str:
        """What the engine is doing, in words: "converting SmolLM2-135M-Instruct 40%"."""
        return self._supervisor.detail

    @property
    def pid(self) -> int | None:
        """Of the engine process; None between two."""
        return self._supervisor.pid

    async def start(self) -> None:
        """Start the engine, without waiting for it. Raises OSError where no process can be started."""
        await self._supervisor.start()
        # Batch calls wait in the engine for as long as others come before them; one that hangs is found by its pulse.
        patience: dict[Priority, float] = {"interactive": self._first_byte, "batch": BATCH_PATIENCE}
        for priority, seconds in patience.items():
            self._remotes[priority] = RemoteBackend(
                self.name,
                base_url="http://engine/v1",
                uds=self._supervisor.uds,
                first_byte_timeout=seconds,
                between_chunks_timeout=self._between_chunks if priority == "interactive" else BATCH_PATIENCE,
                revision=self.revision,
            )
            await self._remotes[priority].start()

    async def wait_ready(self, seconds: float) -> bool:
        """Whether the engine is ready, within so many seconds."""
        return await self._supervisor.wait_ready(seconds)

    async def send(self, call: Call) -> Reply:
        """As Backend.send. Waits a while for an engine that is starting; raises BackendStarting after that, and
        ConnectFailed for one that is down."""
        headers = ((SALT, call.prefix_salt), (PARTY, call.party), (PRIORITY, call.priority))
        call = replace(call, headers=(*call.headers, *((name, value) for name, value in headers if value)))
        remote = await self._ready(call.priority)
        try:
            return await remote.send(call)
        except ConnectFailed:
            # The engine has ended a moment ago, and nothing was sent: the next one can have it.
            if not await self._supervisor.wait_unready(NOTICE):
                raise
        remote = await self._ready(call.priority)
        return await remote.send(call)

    async def _ready(self, priority: Priority) -> RemoteBackend:
        if self._remotes and await self._supervisor.wait_ready(START_WAIT):
            return self._remotes[priority]
        if self.state() == "down":
            # The reason may name a path of this machine, which is not for every client.
            raise ConnectFailed("The local engine is down. The gateway's log says why.")
        raise BackendStarting("The local engine is starting. Try again shortly.", retry_after=RETRY_AFTER)

    def state(self) -> State:
        return self._supervisor.state

    async def aclose(self) -> None:
        """End the engine, which tells the clients of running streams, then the connections to it."""
        await self._supervisor.aclose()
        for remote in self._remotes.values():
            await remote.aclose()
        self._remotes = {}
