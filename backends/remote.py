"""Any OpenAI-style server over HTTP or a Unix socket: one pooled client, one timeout per phase, no redirects.

Over aiohttp: its parser is in C, and httpx's layers on top of the same connection double what a call costs. No cookies
are kept, no redirects followed, no proxy settings read from the environment: none of these may happen to a call that
carries a credential.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from time import monotonic
from urllib.parse import urlsplit

import aiohttp

from backends.base import (
    BackendError,
    BackendTimeout,
    Call,
    ConnectFailed,
    Reply,
    ReplyBroken,
    ReplyTooLarge,
    State,
)
from backends.lost import LostConnections
from backends.patience import Patience

# Below the 5 s after which uvicorn (vLLM and many others) drops an idle connection: a connection that the server is
# just closing would fail a POST, which cannot be repeated safely.
KEEP_ALIVE = 4.0
AGENT = "refrain"
DOWN_FOR = 5.0
"""Seconds after a failed connection for which the backend counts as down."""
PIECE = 256 * 1024
"""Bytes that are handed to the socket at once: sending a larger body whole would hold up the event loop."""
BUFFER = 64 * 1024
"""Bytes of a reply that may wait for a slow reader; at twice as many the server is made to wait."""


class RemoteBackend:
    """Calls `base_url` (ends before "chat/completions"). Timeouts are seconds; `max_reply` bounds a reply in bytes
    after decompression. With `uds` the connection goes to that socket and the host in `base_url` is only a name."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        api_key: str | None = None,
        uds: str | None = None,
        connect_timeout: float = 5.0,
        first_byte_timeout: float = 300.0,
        between_chunks_timeout: float = 60.0,
        max_reply: int = 64 * 2**20,
        revision: str | None = None,
        mono: Callable[[], float] = monotonic,
    ) -> None:
        self.name = name
        self.revision = revision if revision is not None else f"remote:{base_url.rstrip('/')}"
        self._base = base_url.rstrip("/")
        self._uds = uds
        self._timeout = aiohttp.ClientTimeout(connect=connect_timeout, sock_connect=connect_timeout)
        self._first_byte = Patience(first_byte_timeout)
        self._between = Patience(between_chunks_timeout)
        self._max_reply = max_reply
        self._headers = {
            "user-agent": AGENT,
            "accept-encoding": "identity",  # a stream must not wait in a compressor
            "content-type": "application/json",
        }
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._lost = LostConnections()
        self._mono = mono
        self._down_until = mono()
        self._closed = False
        # What no client may read in an error: the credential, and where the server is.
        host = urlsplit(self._base).hostname
        self.private = tuple(word for word in (api_key, self._base, host) if word)

    def __repr__(self) -> str:
        return f"RemoteBackend({self.name!r}, {self.state()})"

    async def start(self) -> None:
        """Nothing to wait for: connections are opened when calls need them."""

    def state(self) -> State:
        # Only for a while: nobody may be sending calls by which it would turn out to be back.
        return "down" if self._mono() < self._down_until else "ready"

    @property
    def detail(self) -> str:
        return "ready" if self.state() == "ready" else "cannot be reached"

    async def send(self, call: Call) -> Reply:
        """Send and wait for the reply's head. Raises BackendError."""
        if self._closed:
            raise ConnectFailed(f"Backend '{self.name}' has been taken out of the configuration.")
        headers, body = call.headers, call.body
        data: bytes | AsyncIterator[bytes] | None = body or None
        if len(body) > PIECE:
            headers, data = (*headers, ("content-length", str(len(body)))), _pieces(body)
        try:
            async with asyncio.timeout(None) as limit:  # without a timer of its own
                with self._first_byte.wait(lambda: limit.reschedule(0)):
                    response = await self._open().request(
                        call.method, self._url(call), headers=headers, data=data, allow_redirects=False
                    )
        except Exception as error:
            # No name for it here: a frame that an error's traceback holds must not hold the error.
            raise self._failed(error) from error
        self._down_until = self._mono()
        self._lost.watch(response)
        return _HttpReply(response, self.name, self._between, self._max_reply)

    def _failed(self, error: Exception) -> BackendError:
        failure = _translate(error, self.name, "first_byte")
        error.__traceback__ = None  # aiohttp's frames hold the error, and through this they would hold the call
        if isinstance(failure, ConnectFailed):
            self._down_until = self._mono() + DOWN_FOR
        return failure

    async def aclose(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _url(self, call: Call) -> str:
        url = f"{self._base}/{call.path}"
        return f"{url}?{call.query.replace('#', '%23')}" if call.query else url

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._new_session()
        return self._session

    def _new_session(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._uds:
            connector = aiohttp.UnixConnector(path=self._uds, limit=0, keepalive_timeout=KEEP_ALIVE)
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=self._timeout,
            read_bufsize=BUFFER,
            # A cookie that one user's answer sets must not travel with the next user's request.
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]


class _HttpReply:
    def __init__(self, response: aiohttp.ClientResponse, name: str, between: Patience, max_reply: int) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = {
            field.lower().decode("latin-1"): value.decode("latin-1") for field, value in response.raw_headers
        }
        self._response = response
        self._name = name
        self._max_reply = max_reply
        self._size = 0
        content = response.content
        self._wait = between.wait(lambda: content.set_exception(TimeoutError()))

    async def read(self) -> bytes:
        pieces = []
        while piece := await self._next():
            pieces.append(piece)
        return b"".join(pieces)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while piece := await self._next():
            yield piece

    async def aclose(self) -> None:
        """Closes the connection at once, unless the reply has arrived to its end: then it is used again."""
        self._response.close()

    async def _next(self) -> bytes:
        """The next piece of the body; b"" at its end."""
        content = self._response.content
        try:
            piece = content.read_nowait(BUFFER)
            if not piece and not content.at_eof():
                with self._wait:
                    piece = await content.read(BUFFER)
        except Exception as error:
            raise _translate(error, self._name, "between_chunks") from error
        self._size += len(piece)
        if self._size > self._max_reply:
            raise ReplyTooLarge(f"The reply of backend '{self._name}' is over {self._max_reply} bytes.")
        return piece


def _translate(error: Exception, name: str, phase: str) -> BackendError:
    """The one place where aiohttp's errors become ours. Their texts hold URLs, so they stay behind."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return BackendTimeout(f"Backend '{name}' did not accept a connection in time.", "connect")
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.InvalidURL):
        return ConnectFailed(f"Backend '{name}' cannot be reached.")
    if isinstance(error, TimeoutError):
        if phase == "first_byte":
            return BackendTimeout(f"Backend '{name}' did not begin to answer in time.", "first_byte")
        return BackendTimeout(f"Backend '{name}' stopped in the middle of its answer.", "between_chunks")
    # aiohttp's RuntimeError: the session was closed, or the connection lost between two reads.
    if isinstance(error, aiohttp.ClientError | OSError | RuntimeError):
        return ReplyBroken(f"Backend '{name}' closed the connection before its answer was complete.")
    raise error
