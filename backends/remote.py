"""Any OpenAI-style server over HTTP or a Unix socket: one pooled client, one timeout per phase, no redirects.

Requests go straight to the transport, below httpx's client: that layer follows redirects, keeps cookies and reads
proxy settings from the environment, and none of these may happen to a call that carries a credential.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import cast

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

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

# Below the 5 s after which uvicorn (vLLM and many others) drops an idle connection: a connection that the server is
# just closing would fail a POST, which cannot be repeated safely.
KEEP_ALIVE = 4.0
AGENT = b"refrain"
DOWN_FOR = 5.0
"""Seconds after a failed connection for which the backend counts as down."""
PIECE = 256 * 1024
"""Bytes that are handed to the socket at once: sending a larger body whole would hold up the event loop."""


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
        self._connect = connect_timeout
        self._first_byte = first_byte_timeout
        self._between = between_chunks_timeout
        self._max_reply = max_reply
        self._headers = [
            (b"user-agent", AGENT),
            (b"accept-encoding", b"identity"),  # a stream must not wait in a compressor
            (b"content-type", b"application/json"),
        ]
        if api_key is not None:
            self._headers.append((b"authorization", f"Bearer {api_key}".encode()))
        self._urls: dict[str, httpx.URL] = {}
        self._transport: AiohttpTransport | None = None
        self._mono = mono
        self._down_until = mono()
        self._closed = False
        # What no client may read in an error: the credential, and where the server is.
        host = httpx.URL(self._base).host
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
        request = httpx.Request(
            call.method,
            self._url(call.path, call.query),
            headers=[*self._headers, (b"content-length", b"%d" % len(call.body)), *_encoded(call.headers)],
            content=call.body if len(call.body) <= PIECE else _pieces(call.body),
            extensions={"timeout": {"connect": self._connect, "pool": self._connect}},
        )
        try:
            async with asyncio.timeout(self._first_byte):
                response = await self._open().handle_async_request(request)
        except Exception as error:
            failure = _translate(error, self.name, "first_byte")
            if isinstance(failure, ConnectFailed):
                self._down_until = self._mono() + DOWN_FOR
            raise failure from error
        self._down_until = self._mono()
        return _HttpReply(response, self.name, self._between, self._max_reply)

    async def aclose(self) -> None:
        self._closed = True
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    def _url(self, path: str, query: str) -> httpx.URL:
        # Parsing a URL takes longer than all the rest of making a request, and there are only a few paths.
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = httpx.URL(f"{self._base}/{path}")
        return url.copy_with(query=query.encode()) if query else url

    def _open(self) -> AiohttpTransport:
        if self._transport is None:
            # The transport would load all certificates, for a tenth of a second, into a context that only a session of
            # its own making uses. Ours verifies by aiohttp's; this empty one would refuse every server.
            unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._transport = AiohttpTransport(client=self._session, verify=unused)
        return self._transport

    def _session(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._uds:
            connector = aiohttp.UnixConnector(path=self._uds, limit=0, keepalive_timeout=KEEP_ALIVE)
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
        # A cookie that one user's answer sets must not travel with the next user's request.
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)


def _encoded(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[bytes, bytes]]:
    return ((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]


class _HttpReply:
    def __init__(self, response: httpx.Response, name: str, between: float, max_reply: int) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._name = name
        self._between = between
        self._max_reply = max_reply

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        size = 0
        # We ask for no encoding, and then httpx's decoding is a detour. Where one comes all the same it is undone.
        encoded = "content-encoding" in self.headers
        source = self._response.aiter_bytes() if encoded else aiter(cast(httpx.AsyncByteStream, self._response.stream))
        # Typed as iterators, both are generators, and must be closed before their connection is.
        async with contextlib.aclosing(cast(AsyncGenerator[bytes, None], source)) as pieces:
            while True:
                try:
                    async with asyncio.timeout(self._between):
                        chunk = await anext(pieces, None)
                except Exception as error:
                    raise _translate(error, self._name, "between_chunks") from error
                if chunk is None:
                    return
                size += len(chunk)
                if size > self._max_reply:
                    raise ReplyTooLarge(f"The reply of backend '{self._name}' is over {self._max_reply} bytes.")
                yield chunk

    async def aclose(self) -> None:
        try:
            await self._response.aclose()
        except httpx.HTTPError:
            pass  # the connection was broken already; nothing is left to release


def _translate(error: Exception, name: str, phase: str) -> BackendError:
    """The one place where httpx's and aiohttp's errors become ours. Their texts hold URLs, so they stay behind."""
    if isinstance(error, BackendError):
        return error
    cause = error.__cause__ if isinstance(error, httpx.HTTPError) and error.__cause__ else error
    if isinstance(cause, aiohttp.ConnectionTimeoutError):
        return BackendTimeout(f"Backend '{name}' did not accept a connection in time.", "connect")
    if isinstance(cause, aiohttp.ClientConnectorError | aiohttp.InvalidURL):
        return ConnectFailed(f"Backend '{name}' cannot be reached.")
    if isinstance(cause, TimeoutError):
        if phase == "first_byte":
            return BackendTimeout(f"Backend '{name}' did not begin to answer in time.", "first_byte")
        return BackendTimeout(f"Backend '{name}' stopped in the middle of its answer.", "between_chunks")
    if isinstance(error, httpx.HTTPError) or isinstance(cause, aiohttp.ClientError | OSError):
        return ReplyBroken(f"Backend '{name}' closed the connection before its answer was complete.")
    raise error
