"""The engine apart from HTTP: the model that it loads, and the way of a request to the model's thread."""

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from backends.local import limits
from backends.local.cpu import worker_threads
from backends.local.errors import RequestError
from backends.local.metrics import Metrics
from backends.local.models import find
from backends.local.params import ChatRequest, TextRequest
from backends.local.precision import resolve_precision
from backends.local.progress import StartProgress
from backends.local.scheduler import Job, QueueFull, Scheduler
from backends.local.work import Event, Work

if TYPE_CHECKING:
    from backends.local.load import LoadedModel

# What a client that finds a full queue is told to wait: about the time of one short answer.
QUEUE_RETRY_AFTER = 5
LOADING_RETRY_AFTER = 2


@dataclass(frozen=True, slots=True)
class Ready:
    loaded: "LoadedModel"
    scheduler: Scheduler


class Service:
    """Raises ModelNotFound or ValueError at once for a model or precision that cannot be."""

    def __init__(self, *, model: str, precision: str, max_queue: int) -> None:
        self._source = find(model)
        self._precision = resolve_precision(precision)
        self._max_queue = max_queue
        self._ready: Ready | None = None
        # One thread: a fast tokenizer may not be entered twice.
        self._tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self.progress = StartProgress()
        self.metrics = Metrics()
        self.name = self._source.name
        self.system_fingerprint = f"{self.name}-{self._precision}"
        self.created = int(time.time())

    @property
    def ready(self) -> bool:
        return self._ready is not None

    def load(self) -> None:
        """Blocks for seconds; call it in a thread. Raises ModelNotFound."""
        self.progress("importing torch")
        from backends.local.completion import complete
        from backends.local.load import load

        start = time.perf_counter()
        loaded = load(self._source, self._precision, worker_threads(), self.progress)
        scheduler = Scheduler(partial(complete, loaded), max_queue=self._max_queue, metrics=self.metrics, log=log)
        self._ready = Ready(loaded, scheduler)
        self.progress.finish(f"{self.system_fingerprint} is ready after {time.perf_counter() - start:.1f} s")

    async def work(self, request: ChatRequest | TextRequest) -> Work:
        """The request in tokens. Raises RequestError: not ready, a prompt the model cannot take, too long."""
        if self._ready is None:
            raise RequestError(
                f"The local model is starting ({self.progress.detail}). Try again shortly.",
                status=503,
                type="server_error",
                code="engine_starting",
                retry_after=LOADING_RETRY_AFTER,
            )
        loaded = self._ready.loaded
        loop = asyncio.get_running_loop()
        if isinstance(request, ChatRequest):
            param, default = "messages", limits.CHAT_DEFAULT
            prompt = await loop.run_in_executor(self._tokenizing, loaded.tokenizer.encode_chat, request.messages)
        else:
            param, default = "prompt", limits.TEXT_DEFAULT
            prompt = await loop.run_in_executor(self._tokenizing, loaded.tokenizer.encode_text, request.prompt)
        if not prompt:
            raise RequestError(f"'{param}' holds no text that the model can read.", param=param, code="invalid_value")
        options = request.options
        return Work(
            prompt=tuple(prompt),
            sampling=options.sampling,
            n=options.n,
            max_tokens=limits.max_tokens(
                prompt=len(prompt), asked=options.max_tokens, context=loaded.context, default=default, param=param
            ),
            stops=options.stops,
        )

    def submit(self, work: Work, emit: Callable[[Event], None]) -> Job:
        """Queue the work. Raises RequestError (429) where too many wait."""
        try:
            return self._scheduler().submit(work, emit)
        except QueueFull as error:
            raise RequestError(
                "Too many requests are waiting for the local model. Try again later.",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=QUEUE_RETRY_AFTER,
            ) from error

    def cancel(self, job: Job) -> None:
        self._scheduler().cancel(job)

    def close(self, timeout: float) -> None:
        if self._ready is not None:
            self._ready.scheduler.close(timeout)

    def _scheduler(self) -> Scheduler:
        if self._ready is None:
            raise RuntimeError("the model is not loaded")
        return self._ready.scheduler


def log(line: str) -> None:
    """To standard error, which is this process's log. Never with text of a request."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
