"""POST /v1/embeddings: the request, checked; the thread that computes; the reply.

The model is loaded by the first request. A request is computed in batches, so that a long one does not hold up the
short ones that come after it, and ends early when its client leaves.
"""

import asyncio
import base64
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect

from backends.base import Priority
from backends.local.embedding_model import DEFAULT_MODEL, EmbeddingModel
from backends.local.errors import RequestError, missing, unsupported, wrong_type, wrong_value
from backends.local.fields import integer
from backends.local.turns import Turns
from backends.local.work import QueueFull

if TYPE_CHECKING:
    import numpy as np

MAX_INPUTS = 2048  # as at OpenAI
MAX_WAITING = 64
"""Requests of one priority at once."""
BATCH = 32
RETRY_AFTER = 5
KINDS = "a string, a list of strings, a list of token ids, or a list of lists of token ids"
# Parameters of other servers that would change the vectors.
REFUSED = ("input_type", "prompt", "prompt_name", "task", "truncate", "truncate_prompt_tokens", "normalize")

Input = str | tuple[int, ...]
"""A text, or the ids of its tokens."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """`inputs` are all texts or all token ids. `single`: the body has one that is in no list. `dimensions` None: as
    many as the model has."""

    model: str | None
    inputs: tuple[Input, ...]
    single: bool
    base64: bool
    dimensions: int | None

    def param(self, index: int) -> str:
        return "input" if self.single else f"input[{index}]"


@dataclass(frozen=True, slots=True)
class EmbeddingReply:
    """`body` is JSON."""

    body: bytes
    tokens: int


def parse_embeddings(body: object) -> EmbeddingRequest:
    """Raises RequestError."""
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_type")
    for name in REFUSED:
        if body.get(name) is not None:
            raise unsupported(name)
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise wrong_type("model", "a string")
    form = body.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise wrong_value("encoding_format", "float or base64")
    inputs, single = _inputs(body.get("input"))
    return EmbeddingRequest(model, inputs, single, form == "base64", integer(body, "dimensions", 1, 2**31))


def _inputs(value: object) -> tuple[tuple[Input, ...], bool]:
    if value is None:
        raise missing("input")
    single = isinstance(value, str) or (isinstance(value, list) and bool(value) and _is_tokens(value))
    items: Any = [value] if single else value
    if not isinstance(items, list) or not (
        all(isinstance(item, str) for item in items)
        or all(isinstance(item, list) and _is_tokens(item) for item in items)
    ):
        raise wrong_type("input", KINDS)
    if not items:
        raise wrong_value("input", "a list with at least one text")
    if len(items) > MAX_INPUTS:
        raise RequestError(
            f"'input' has {len(items)} texts, but at most {MAX_INPUTS} are taken at once. Send it in parts.",
            param="input",
            code="invalid_value",
        )
    for index, item in enumerate(items):
        if not item:
            raise wrong_value("input" if single else f"input[{index}]", "a text that is not empty")
    return tuple(item if isinstance(item, str) else tuple(item) for item in items), single


def _is_tokens(items: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in items)


class Embeddings:
    """The model `name`, from its first use on. `log` gets lines without any text of a request."""

    def __init__(self, name: str = DEFAULT_MODEL, *, log: Callable[[str], None]) -> None:
        self.name = name
        self._log = log
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embeddings")
        self._model: EmbeddingModel | None = None
        self._turns = Turns(MAX_WAITING)

    async def answer(
        self, request: EmbeddingRequest, left: Callable[[], Awaitable[bool]], priority: Priority = "interactive"
    ) -> EmbeddingReply:
        """Raises RequestError, and ClientDisconnect where the client has gone, as `left` tells."""
        try:
            async with self._turns.wait(priority):
                return await self._answer(request, left)
        except QueueFull as error:
            raise RequestError(
                "Too many requests are waiting for the embedding model. Try again later.",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=RETRY_AFTER,
            ) from error

    async def _answer(self, request: EmbeddingRequest, left: Callable[[], Awaitable[bool]]) -> EmbeddingReply:
        model = await self._run(self._loaded)
        sizes = await self._run(partial(_sizes, model, request))
        # Texts of one length together: the others of a batch are padded to its longest.
        order = sorted(range(len(sizes)), key=lambda index: sizes[index])
        vectors: dict[int, np.ndarray] = {}
        for start in range(0, len(order), BATCH):
            if await left():
                raise ClientDisconnect
            part = order[start : start + BATCH]
            made = await self._run(partial(_vectors, model, [request.inputs[i] for i in part]))
            vectors.update(zip(part, made, strict=True))
        rows = [vectors[index] for index in range(len(sizes))]
        return await self._run(partial(_reply, self.name, rows, sum(sizes), request.base64))

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _loaded(self) -> EmbeddingModel:
        if self._model is None:
            self._log(f"loading the embedding model {self.name}")
            try:
                self._model = EmbeddingModel(self.name)
            except ImportError as error:
                raise RequestError(
                    "This engine makes no embeddings: the package sentence-transformers is not installed with it.",
                    status=501,
                    type="server_error",
                    code="embeddings_unavailable",
                ) from error
            except Exception as error:
                # The reason may name a path of this machine, which is not for every client.
                self._log(f"the embedding model {self.name} cannot be loaded: {traceback.format_exc()}")
                raise RequestError(
                    "The embedding model cannot be loaded. The engine's log says why.",
                    status=500,
                    type="server_error",
                    code="embeddings_unavailable",
                ) from error
            self._log(f"the embedding model {self.name} is ready")
        return self._model


def _sizes(model: EmbeddingModel, request: EmbeddingRequest) -> list[int]:
    """The tokens of each input. Raises RequestError for what the model cannot take."""
    if request.dimensions not in (None, model.dimensions):
        raise wrong_value("dimensions", f"{model.dimensions}, which is what this model makes, or left out")
    sizes = []
    for index, item in enumerate(request.inputs):
        param = request.param(index)
        if isinstance(item, str):
            size = model.tokens(item)
        else:
            if not all(0 <= token < model.vocabulary for token in item):
                raise wrong_value(param, f"token ids of this model, from 0 to {model.vocabulary - 1}")
            size = len(model.whole(item))
        if size > model.max_tokens:
            raise RequestError(
                f"This model's maximum context length is {model.max_tokens} tokens. However, '{param}' has {size} "
                f"tokens. Shorten it, or send it in parts.",
                param=param,
                code="context_length_exceeded",
            )
        sizes.append(size)
    return sizes


def _vectors(model: EmbeddingModel, items: Sequence[Input]) -> "np.ndarray":
    texts = [item for item in items if isinstance(item, str)]
    if texts:
        return model.of_texts(texts)
    return model.of_tokens([model.whole(item) for item in items if not isinstance(item, str)])


def _reply(name: str, rows: Sequence["np.ndarray"], tokens: int, as_base64: bool) -> EmbeddingReply:
    """In base64 a vector is its little-endian float32 numbers."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(row.astype("<f4").tobytes()).decode() if as_base64 else row.tolist(),
        }
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    body = msgspec.json.encode({"object": "list", "data": data, "model": name, "usage": usage})
    return EmbeddingReply(body, tokens)
