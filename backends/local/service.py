"""The engine apart from HTTP: the model that it loads, and the way of a request to the model's thread."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.base import Priority
from backends.local import limits
from backends.local.cpu import worker_threads
from backends.local.embeddings import EmbeddingReply, EmbeddingRequest, Embeddings
from backends.local.errors import CannotServe, RequestError, missing
from backends.local.metrics import Metrics
from backends.local.models import find
from backends.local.params import ChatRequest, TextRequest
from backends.local.precision import check_quantization, resolve_precision
from backends.local.progress import StartProgress
from backends.local.turns import Turns
from backends.local.work import Event, Origin, QueueFull, Work

# These import torch, which takes seconds: the server listens before that.
if TYPE_CHECKING:
    from backends.local.load import LoadedModel
    from backends.local.opening import Opener
    from backends.local.scheduler import Scheduler
    from backends.local.sequence import Job

# What a client that finds a full queue is told to wait: about the time of one short answer.
QUEUE_RETRY_AFTER = 5
LOADING_RETRY_AFTER = 2
MAX_NAME = 100
"""Characters of an unknown model's name that an error repeats."""


@dataclass(frozen=True, slots=True)
class Ready:
    loaded: "LoadedModel"
    opener: "Opener"
    scheduler: "Scheduler"


class Service:
    """`kv_memory` is in bytes, for running requests and the prefix cache together. With `any_model` it answers whatever
    model a request names. Raises ModelNotFound or ValueError at once for a model, precision or quantization that cannot
    be."""

    def __init__(
        self,
        *,
        model: str,
        precision: str,
        quantize: str = "none",
        max_running: int = limits.MAX_RUNNING,
        max_queue: int = limits.MAX_QUEUE,
        kv_memory: int = limits.KV_MEMORY,
        any_model: bool = False,
    ) -> None:
        self._source = find(model)
        self._precision = resolve_precision(precision)
        self._quantize = check_quantization(quantize)
        self._max_running = max_running
        self._max_queue = max_queue
        self._kv_memory = kv_memory
        self._any_model = any_model
        self._ready: Ready | None = None
        # One thread: a fast tokenizer may not be entered twice.
        self._tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._turns = Turns(max_queue + max_running)  # of this thread
        self._embeddings = Embeddings(log=log)
        self.progress = StartProgress()
        self.metrics = Metrics()
        self.name = self._source.name
        self.system_fingerprint = "-".join([self.name, self._precision, *([quantize] if quantize != "none" else [])])
        self.created = int(time.time())

    @property
    def ready(self) -> bool:
        return self._ready is not None

    @property
    def stalled(self) -> float:
        """Seconds for which the step of the model that runs now has been running; infinite where none can be done."""
        return 0.0 if self._ready is None else self._ready.scheduler.stalled

    def load(self) -> None:
        """Blocks for seconds; call it in a thread. Raises ModelNotFound or CannotServe."""
        self.progress("importing torch")
        from backends.local.kv import GROWTH
        from backends.local.load import load
        from backends.local.opening import Opener
        from backends.local.scheduler import Scheduler

        start = time.perf_counter()
        loaded = load(self._source, self._precision, self._quantize, worker_threads(), self.progress)
        token_bytes = loaded.runner.shape.token_bytes
        kv_tokens = self._kv_memory // token_bytes
        if kv_tokens < GROWTH:
            raise CannotServe(
                f"kv_memory of {self._kv_memory} bytes holds {kv_tokens} tokens of {self.name}. "
                f"Give it {GROWTH * token_bytes} bytes, for {GROWTH} tokens, or more."
            )
        opener = Opener(loaded.tokenizer, loaded.end_tokens, loaded.vocabulary)
        scheduler = Scheduler(
            loaded.runner,
            opener,
            kv_tokens=kv_tokens,
            max_running=self._max_running,
            max_queue=self._max_queue,
            metrics=self.metrics,
            log=log,
        )
        self._ready = Ready(loaded, opener, scheduler)
        self.progress.finish(f"{self.system_fingerprint} is ready after {time.perf_counter() - start:.1f} s")

    async def submit(self, request: ChatRequest | TextRequest, emit: Callable[[Event], None], origin: Origin) -> "Job":
        """Queue a request; `emit` is called with the events of its answer, from other threads. Raises RequestError: not
        ready, a model that is not ours, a prompt or parameters that this model cannot take, too long, too many
        waiting."""
        self._check_model(request.options.model, self.name)
        ready = self._when_ready()
        loop = asyncio.get_running_loop()
        try:
            async with self._turns.wait(origin.priority):
                return await loop.run_in_executor(self._tokenizing, self._submit, ready, request, emit, origin)
        except QueueFull as error:
            raise _queue_full() from error

    async def embed(
        self, request: EmbeddingRequest, left: Callable[[], Awaitable[bool]], priority: Priority
    ) -> EmbeddingReply:
        """As Embeddings.answer, and raises RequestError for a model that is not ours. Not before the language model is
        ready: while transformers loads it in bf16, that is every new model's number format."""
        self._check_model(request.model, self._embeddings.name)
        self._when_ready()
        return await self._embeddings.answer(request, left, priority)

    def cancel(self, job: "Job") -> None:
        self._running().scheduler.cancel(job)

    def close(self, timeout: float) -> None:
        """End everything that runs or waits, in so many seconds at most."""
        if self._ready is not None:
            self._ready.scheduler.close(timeout)

    def _when_ready(self) -> Ready:
        if self._ready is None:
            raise RequestError(
                f"The local model is starting ({self.progress.detail}). Try again shortly.",
                status=503,
                type="server_error",
                code="engine_starting",
                retry_after=LOADING_RETRY_AFTER,
            )
        return self._ready

    def _check_model(self, model: str | None, served: str) -> None:
        if self._any_model or model == served:
            return
        if model is None:
            raise missing("model")
        raise RequestError(
            f"The model '{model[:MAX_NAME]}' does not exist here. Here it can only be '{served}'.",
            status=404,
            param="model",
            code="model_not_found",
        )

    def _submit(
        self, ready: Ready, request: ChatRequest | TextRequest, emit: Callable[[Event], None], origin: Origin
    ) -> "Job":
        """In the tokenizing thread: a long prompt, or a schema, takes its time. Raises QueueFull."""
        options = request.options
        context, memory = ready.loaded.context, ready.scheduler.capacity
        if isinstance(request, ChatRequest):
            param, default = "messages", limits.CHAT_DEFAULT
            characters = sum(len(message["content"]) for message in request.messages)
        else:
            param, default = "prompt", limits.TEXT_DEFAULT
            characters = len(request.prompt)
        longest = ready.opener.longest_token
        limits.check_length(characters, longest=longest, context=context, memory=memory, param=param)
        if isinstance(request, ChatRequest):
            prompt = ready.loaded.tokenizer.encode_chat(request.messages)
        else:
            prompt = ready.loaded.tokenizer.encode_text(request.prompt)
        if not prompt:
            raise RequestError(f"'{param}' holds no text that the model can read.", param=param, code="invalid_value")
        if max(prompt) >= ready.loaded.vocabulary:
            raise RequestError(
                f"'{param}' has a special token that this model does not know.", param=param, code="invalid_value"
            )
        for token, _ in options.sampling.logit_bias:
            if token >= ready.loaded.vocabulary:
                raise RequestError(
                    f"'logit_bias' names the token {token}, but the model has {ready.loaded.vocabulary} tokens.",
                    param="logit_bias",
                    code="invalid_value",
                )
        work = Work(
            prompt=tuple(prompt),
            sampling=options.sampling,
            n=options.n,
            max_tokens=limits.max_tokens(
                prompt=len(prompt),
                asked=options.max_tokens,
                context=context,
                memory=memory,
                default=default,
                param=param,
            ),
            stops=options.stops,
            ignore_eos=options.ignore_eos,
            schema=options.schema,
            salt=origin.salt,
            party=origin.party,
            priority=origin.priority,
        )
        if work.schema is not None:
            ready.opener.check(work.schema)
        return ready.scheduler.submit(work, emit)

    def _running(self) -> Ready:
        if self._ready is None:
            raise RuntimeError("the model is not loaded")
        return self._ready


def _queue_full() -> RequestError:
    return RequestError(
        "Too many requests are waiting for the local model. Try again later.",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=QUEUE_RETRY_AFTER,
    )


def log(line: str) -> None:
    """To standard error, which is this process's log. Never with text of a request."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
