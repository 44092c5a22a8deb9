"""An OpenAI-style embedding server: what it sends is checked before it may decide anything.

The semantic tier's embedder by shape (see `cache.semantic.embedder`, which is not imported here). A vector is used only
if it has the size that the first one had, has a direction, and all its numbers are finite; it is made unit length here,
whatever the server says. Errors and logs name neither the credential nor the server, and quote no text.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec
import numpy as np

from backends.remote import AGENT, BUFFER, KEEP_ALIVE

State = Literal["starting", "ready", "failed"]
Reason = Literal["starting", "deadline", "failed", "too_long", "bad_vector", "busy", "unavailable"]
PROBE = "What is the capital of France?"
PROBE_TIMEOUT = 10.0
FIRST_BACKOFF, MAX_BACKOFF = 0.5, 30.0
PATIENCE = 5
"""Calls in a row that may fail before no more are sent, until a probe succeeds."""
ROOM = 64 * 1024
ROOM_PER_TEXT = 256 * 1024
"""Bytes of a reply: 8,192 numbers in full length. More is not read."""
IN_THREAD = 256 * 1024
"""Bytes from which a reply is decoded outside the event loop."""
TINY = 1e-9

_log = logging.getLogger(__name__)


class EmbeddingError(Exception):
    """No vectors for this call."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int


class _Reply(msgspec.Struct):
    data: list[_Item]
    usage: Any = None


_STATUSES: dict[int, Reason] = {413: "too_long", 429: "busy"}
_decode = msgspec.json.Decoder(_Reply).decode


class RemoteEmbedder:
    """Calls `base_url`/embeddings for `model`. `made` is told of every good answer, by the task that waits for it: the
    tokens that the server reports (None: it does not) and the letters that it was sent."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        *,
        made: Callable[[int | None, int], None] = lambda tokens, letters: None,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._name = f"{_without_password(base_url)}:{model}"
        self._model = model
        self._made = made
        self._headers = {"user-agent": AGENT, "accept-encoding": "identity", "content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._probing: asyncio.Task[None] | None = None
        self._state: State = "starting"
        self._detail = "not started"
        self._dimensions = 0
        self._failures = 0  # in a row
        self._closed = False

    def __repr__(self) -> str:
        return f"RemoteEmbedder({self._model!r}, {self._state})"

    @property
    def state(self) -> State:
        return self._state

    @property
    def detail(self) -> str:
        return self._detail

    @property
    def identity(self) -> str:
        return f"{self._name}:{self._dimensions}" if self._dimensions else ""

    @property
    def dimensions(self) -> int:
        return self._dimensions

    async def start(self) -> None:
        """Returns at once; ready after the first good answer."""
        self._detail = "asking the embedding server"
        self._probing = asyncio.create_task(self._probe())

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        """(n, dimensions) float32 of unit length, within `deadline` seconds. Raises EmbeddingError."""
        if self._closed:
            raise EmbeddingError("unavailable", "the embedder has been closed")
        if self._state != "ready":
            raise EmbeddingError(self._state, self._detail)
        if not texts:
            return np.zeros((0, self._dimensions), np.float32)
        try:
            vectors = await self._call(texts, deadline)
        except EmbeddingError as error:
            if error.reason != "too_long":
                self._failed(error)
            raise
        self._failures = 0
        return vectors

    async def aclose(self) -> None:
        """Harmless when called twice."""
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._probing
            self._probing = None
        if self._session is not None:
            await self._session.close()
            self._session = None
        self._state, self._detail = "failed", "stopped"

    async def _probe(self) -> None:
        """Ask until an answer is good."""
        pause = FIRST_BACKOFF
        while True:
            try:
                vectors = await self._call([PROBE], PROBE_TIMEOUT)
            except EmbeddingError as error:
                self._state, self._detail = "failed", str(error)
                _log.warning("embedding server: %s; asked again in %g s", error, pause)
                await asyncio.sleep(pause)
                pause = min(MAX_BACKOFF, pause * 2)
            else:
                self._dimensions = vectors.shape[1]
                self._failures = 0
                self._state, self._detail = "ready", "ready"
                _log.info("embedding server is ready, %d dimensions", self._dimensions)
                return

    def _failed(self, error: EmbeddingError) -> None:
        """After too many in a row no request waits for it any more."""
        self._failures += 1
        if self._failures >= PATIENCE and self._state == "ready" and not self._closed:
            self._state, self._detail = "failed", str(error)
            self._probing = asyncio.create_task(self._probe())

    async def _call(self, texts: Sequence[str], deadline: float) -> np.ndarray:
        try:
            async with asyncio.timeout(deadline):
                data = await self._post(texts)
                reply = await asyncio.to_thread(_reply, data) if len(data) > IN_THREAD else _reply(data)
        except TimeoutError:
            raise EmbeddingError("deadline", "the embedding server did not answer in time") from None
        except aiohttp.ClientConnectorError:
            raise EmbeddingError("unavailable", "the embedding server cannot be reached") from None
        except aiohttp.InvalidURL:
            raise EmbeddingError("failed", "the base URL of the embedding server is not a URL") from None
        except (aiohttp.ClientError, OSError, RuntimeError):  # RuntimeError: the session was closed
            raise EmbeddingError("unavailable", "the embedding server closed the connection too early") from None
        self._made(_tokens(reply), sum(map(len, texts)))
        return _vectors(reply.data, len(texts), self._dimensions)

    async def _post(self, texts: Sequence[str]) -> bytes:
        """The body of a good answer. Raises EmbeddingError and what aiohttp raises."""
        try:
            body = msgspec.json.encode({"model": self._model, "input": list(texts), "encoding_format": "float"})
        except UnicodeEncodeError:
            raise EmbeddingError("failed", "the text is not valid Unicode") from None
        most = ROOM + ROOM_PER_TEXT * len(texts)
        async with self._open().post(self._url, data=body, allow_redirects=False) as response:
            _check(response.status)
            pieces, size = [], 0
            async for piece in response.content.iter_chunked(BUFFER):
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    response.close()
                    raise EmbeddingError("bad_vector", f"the answer of the embedding server is over {most} bytes")
        return b"".join(pieces)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),  # each call has its own
                read_bufsize=BUFFER,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session


def _without_password(url: str) -> str:
    parts = urlsplit(url.rstrip("/"))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _check(status: int) -> None:
    """Raises EmbeddingError unless there is an answer."""
    if status == 200:
        return
    if status in (401, 403):
        raise EmbeddingError("failed", f"the embedding server refused the API key (status {status})")
    if status == 404:
        raise EmbeddingError("failed", "the embedding server has no such model or path (status 404)")
    reason: Reason = "unavailable" if status >= 500 else "failed"
    if status in _STATUSES:
        reason = _STATUSES[status]
    raise EmbeddingError(reason, f"the embedding server answered with status {status}")


def _reply(data: bytes) -> _Reply:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Without the decoder's words, which may quote the answer. NaN and Infinity are no JSON and end here.
        raise EmbeddingError("bad_vector", "the embedding server did not answer with embeddings") from None


def _tokens(reply: _Reply) -> int | None:
    """As the server reports them, if it does, and sensibly."""
    usage = reply.usage if isinstance(reply.usage, dict) else {}
    tokens = usage.get("prompt_tokens")
    return tokens if type(tokens) is int and 0 <= tokens < 2**31 else None


def _vectors(items: list[_Item], count: int, dimensions: int) -> np.ndarray:
    """Rows in the order of the texts; `dimensions` is 0 where they are not known yet. Raises EmbeddingError."""
    if sorted(item.index for item in items) != list(range(count)):
        raise EmbeddingError("bad_vector", "the embedding server did not answer with one vector for each text")
    sizes = {len(item.embedding) for item in items}
    if len(sizes) != 1 or 0 in sizes or (dimensions and sizes != {dimensions}):
        raise EmbeddingError("bad_vector", "the embedding server changed the size of its vectors")
    vectors = np.array([item.embedding for item in sorted(items, key=lambda item: item.index)])
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not ((lengths > TINY) & (lengths < np.inf)).all():
        raise EmbeddingError("bad_vector", "the embedding server sent a vector that is zero or not finite")
    unit: np.ndarray = (vectors / lengths).astype(np.float32)
    return unit
