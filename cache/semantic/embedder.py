"""The local embedder: a model in a process of its own, so that the gateway's event loop never waits for torch.

- The process is restarted when it dies or hangs, with longer and longer pauses. Whatever waited for it fails at once,
  as "unavailable": a caller with a deadline of milliseconds has no use for a model that loads for seconds.
- One batch is with the process at a time; what comes meanwhile is the next batch. So nothing is run whose callers
  have given up, and a crowd costs a few calls of the model instead of one each.
- A process that comes back with another model (its files were replaced) is refused: stored vectors would be of the old.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

import numpy as np

from cache.semantic.embedder_base import Embedder, EmbedderError, Reason, State
from cache.semantic.embedder_process import EmbedderProcess
from cache.semantic.embedder_queue import Full, Result, TextQueue
from cache.semantic.embedder_wire import Broken, Embed, Failed, Loading, Ready, Vectors

__all__ = ["Embedder", "EmbedderError", "LocalEmbedder", "Reason", "State"]

BATCH = 32
"""Texts run at once."""
MAX_WAITING = 256
"""Texts that may wait; more would all come after their deadlines."""
MAX_CHARACTERS = 65536
"""Of one text; it is not even counted in tokens beyond that."""
HANG = 30.0  # seconds for one batch
FIRST_BACKOFF, MAX_BACKOFF = 0.5, 30.0
RETRY = 300.0  # seconds after which a model that could not be loaded is tried again
HEALTHY = 60.0  # a process that was ready for so many seconds starts with the first backoff again

_log = logging.getLogger(__name__)


def backoff(crashes: int) -> float:
    """Seconds to wait before the next start, after so many crashes in a row (1 or more)."""
    return min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(crashes - 1, 16))


class LocalEmbedder:
    """`model` is "all-MiniLM-L6-v2" (from its package, where that is installed), or the name or folder of any model
    that sentence-transformers loads. `hang` is in seconds."""

    def __init__(self, model: str, *, hang: float = HANG, max_waiting: int = MAX_WAITING) -> None:
        self._model = model
        self._hang = hang
        self._queue = TextQueue(max_waiting)
        self._task: asyncio.Task[None] | None = None
        self._process: EmbedderProcess | None = None
        self._state: State = "starting"
        self._detail = "not started"
        self._identity = ""
        self._dimensions = 0
        self._ready_at = 0.0  # when the process became ready (monotonic); 0 is not yet

    def __repr__(self) -> str:
        return f"LocalEmbedder({self._model!r}, {self._state})"

    @property
    def state(self) -> State:
        return self._state

    @property
    def detail(self) -> str:
        return self._detail

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def dimensions(self) -> int:
        return self._dimensions

    @property
    def pid(self) -> int | None:
        """Of the running process; None between two."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        self._set("starting", "starting")
        self._task = asyncio.create_task(self._watch())

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        if self._state != "ready":
            raise EmbedderError(self._state, self._detail)
        if not texts:
            return np.zeros((0, self._dimensions), np.float32)
        for text in texts:
            _check(text)
        try:
            rows = self._queue.add(texts)
        except Full:
            raise EmbedderError("busy", "too many texts wait for the model") from None
        try:
            async with asyncio.timeout(deadline):
                return np.stack(await asyncio.gather(*rows))
        except TimeoutError:
            raise EmbedderError("deadline", "the model did not answer in time") from None
        finally:
            for row in rows:  # nobody waits for the others any more
                row.cancel()

    async def aclose(self) -> None:
        """End the process. Harmless when called twice."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._set("failed", "stopped")

    async def _watch(self) -> None:
        """One process after the other, until cancelled."""
        crashes = 0
        while True:
            self._ready_at = 0.0
            try:
                how = await self._run(await EmbedderProcess.spawn(self._model))
            except _Refused as error:
                how, pause = str(error), RETRY
            except OSError as error:
                how, pause = f"the embedding process cannot be started: {error.strerror}", MAX_BACKOFF
            else:
                healthy = bool(self._ready_at) and time.monotonic() - self._ready_at >= HEALTHY
                crashes = 1 if healthy else crashes + 1
                pause = backoff(crashes)
            self._set("starting" if self._ready_at else "failed", how)
            _log.warning("%s; next start in %g s", how, pause)
            await asyncio.sleep(pause)

    async def _run(self, process: EmbedderProcess) -> str:
        """Serve by one process to its end, in words; end it when cancelled. Raises _Refused."""
        self._process = process
        turn = asyncio.Event()  # set when the process has nothing to do
        listening = asyncio.create_task(self._listen(process, turn))
        feeding = asyncio.create_task(self._feed(process, turn))
        how = ""
        try:
            await asyncio.wait({listening, feeding}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done() and isinstance(feeding.exception(), TimeoutError):
                how = f"the embedding process did not answer within {self._hang:g} s"
        finally:
            self._set("starting" if self._identity else self._state, how or "the embedding process has ended")
            self._queue.fail(lambda: EmbedderError("unavailable", self._detail))
            for task in (listening, feeding):
                task.cancel()
            await asyncio.wait({listening, feeding})
            ended = await process.end()
            self._process = None
        for task in (listening, feeding):
            error = None if task.cancelled() else task.exception()
            if isinstance(error, _Refused):
                raise error
            if error is not None and not isinstance(error, _ENDINGS):
                _log.error("the embedding process was given up", exc_info=error)
        return how or ended

    async def _listen(self, process: EmbedderProcess, turn: asyncio.Event) -> None:
        """Act on what the process says, until it ends. Raises what `receive` does, and _Refused."""
        while True:
            match await process.receive():
                case Loading(detail):
                    if self._state == "starting":
                        self._detail = detail
                case Failed(message):
                    raise _Refused(message)
                case Ready(identity, dimensions):
                    self._accept(identity, dimensions)
                    turn.set()
                case Vectors(data, problems):
                    rows = np.frombuffer(data, np.float32).reshape(-1, self._dimensions)
                    self._queue.done([_result(row, problems.get(i)) for i, row in enumerate(rows)])
                    turn.set()

    def _accept(self, identity: str, dimensions: int) -> None:
        if self._identity not in ("", identity):
            raise _Refused(f"the files of the model '{self._model}' have changed: restart the gateway to use them")
        self._identity, self._dimensions = identity, dimensions
        self._ready_at = time.monotonic()
        self._set("ready", "ready")
        _log.info("embedding model %s is ready, %d dimensions", identity, dimensions)

    async def _feed(self, process: EmbedderProcess, turn: asyncio.Event) -> None:
        """Give the process one batch after the other. Raises ConnectionError, and TimeoutError when it hangs."""
        await turn.wait()
        while True:
            texts = await self._queue.take(BATCH)
            turn.clear()
            async with asyncio.timeout(self._hang):
                await process.send(Embed(texts))
                await turn.wait()

    def _set(self, state: State, detail: str) -> None:
        self._state, self._detail = state, detail


class _Refused(Exception):
    """The model cannot serve, whatever the number of tries. The message says why."""


_ENDINGS = (asyncio.IncompleteReadError, ConnectionError, Broken, TimeoutError)


def _check(text: str) -> None:
    """Raises EmbedderError for what would spoil a batch."""
    if len(text) > MAX_CHARACTERS:
        raise EmbedderError("too_long", f"the text has over {MAX_CHARACTERS} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EmbedderError("failed", "the text is not valid Unicode") from None


_PROBLEMS: dict[str, tuple[Reason, str]] = {
    "too_long": ("too_long", "the text has more tokens than the model takes"),
    "bad_vector": ("bad_vector", "the model made no usable vector of the text"),
    "failed": ("failed", "the model failed on the text"),
}


def _result(row: np.ndarray, problem: str | None) -> Result:
    if problem is None:
        return row
    reason, message = _PROBLEMS[problem]
    return lambda: EmbedderError(reason, message)
