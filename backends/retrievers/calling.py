"""One call to a search service: bounded in time and size, and its failures are ours.

No redirects are followed, no cookies kept, no proxy settings read from the environment: none of these may happen to a
call that carries a credential. Errors and logs name neither the credential nor the server, and quote no text.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from backends.remote import AGENT, BUFFER, KEEP_ALIVE
from backends.retrievers.base import RetrieverError, RetrieverReason, RetrieverState
from backends.retrievers.health import DOWN_FOR, Health, wait_for

T = TypeVar("T")

MOST_CONNECTIONS = 100
"""To one service; further calls wait for one, within their deadlines."""
LONGEST_REQUEST = 256 * 1024
"""Bytes; sending a longer one would hold up the event loop."""
ROOM = 2**20
ROOM_PER_RESULT = 64 * 1024
MOST_BYTES = 8 * 2**20
"""Bytes of an answer: those for each result that was asked for, and how many at most. More is not read."""
IN_THREAD = 16 * 1024
"""Bytes from which an answer is read outside the event loop."""
# The service is well and may answer the next question.
_ABOUT_THE_QUESTION = frozenset({400, 413, 414, 422, 431})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str = field(repr=False)
    body: bytes | None = field(default=None, repr=False)


def revision(kind: str, url: str, *rest: str | None) -> str:
    """A digest of what decides what a service finds; a credential in the URL is not in it."""
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return blake2b(msgspec.json.encode((kind, bare, *rest)), digest_size=16).hexdigest()


class Caller:
    """`name` is the retriever's, for logs; `what` is the service in words, such as "the search service"; the names of
    `headers` are in small letters."""

    def __init__(self, name: str, what: str, headers: Mapping[str, str], mono: Callable[[], float]) -> None:
        self._name = name
        self._what = what
        self._headers = {"user-agent": AGENT, "accept": "application/json", "accept-encoding": "identity"}
        self._headers |= headers
        self._health = Health(what, mono)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def state(self) -> RetrieverState:
        return "down" if self._closed or self._health.down else "ready"

    @property
    def detail(self) -> str:
        return "stopped" if self._closed else self._health.down or "ready"

    async def call(self, request: Request, read: Callable[[bytes], T], *, top_k: int, deadline: float) -> T:
        """What `read` makes of the body of a good answer, within `deadline` seconds. Raises RetrieverError, and what
        `read` raises."""
        if self._closed:
            raise RetrieverError("unavailable", f"{self._what} has been taken out of the configuration")
        if len(request.url) + len(request.body or b"") > LONGEST_REQUEST:
            raise RetrieverError("failed", f"the question is too long for {self._what}")
        decides = self._health.begin()
        try:
            async with asyncio.timeout(deadline):
                data = await self._send(request, min(MOST_BYTES, ROOM + ROOM_PER_RESULT * top_k))
                return await asyncio.to_thread(read, data) if len(data) > IN_THREAD else read(data)
        except TimeoutError:
            raise self._failed("deadline", "did not answer in time") from None
        finally:
            if decides:
                self._health.end()

    async def aclose(self) -> None:
        """Harmless when called twice."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send(self, request: Request, most: int) -> bytes:
        """The body of a good answer. Raises RetrieverError and TimeoutError. The one place where aiohttp's errors
        become ours: their texts hold URLs, so they stay behind."""
        try:
            return await self._exchange(request, most)
        except TimeoutError:
            raise
        except aiohttp.ClientConnectorError:
            raise self._failed("unavailable", "cannot be reached") from None
        except (aiohttp.ClientError, OSError, RuntimeError):  # RuntimeError: the session was closed
            raise self._failed("unavailable", "did not complete its answer") from None

    async def _exchange(self, request: Request, most: int) -> bytes:
        async with self._open().request(
            request.method, request.url, data=request.body, allow_redirects=False
        ) as response:
            self._check(response)
            pieces, size = [], 0
            async for piece in response.content.iter_chunked(BUFFER):
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    response.close()
                    self._answered()
                    raise RetrieverError("bad_results", f"the answer of {self._what} is over {most} bytes")
        self._answered()
        return b"".join(pieces)

    def _check(self, response: aiohttp.ClientResponse) -> None:
        """Raises RetrieverError unless there is an answer."""
        status = response.status
        if status == 429:
            self._answered()
            self._health.busy(wait_for(response.headers.get("retry-after"), time.time()))
            raise RetrieverError("busy", f"{self._what} has too much to do (status 429)")
        if status in _ABOUT_THE_QUESTION:
            self._answered()
            raise RetrieverError("failed", f"{self._what} did not accept the question (status {status})")
        if status >= 500:
            raise self._failed("unavailable", f"answered with status {status}")
        if status in (401, 403):
            raise self._failed("failed", f"refused the credential (status {status})")
        if 300 <= status < 400:
            raise self._failed("failed", f"answered with a redirect (status {status}), which is not followed")
        if status != 200:
            raise self._failed("failed", f"answered with status {status}")

    def _answered(self) -> None:
        if self._health.answered():
            _log.info("retriever %s: %s answers again", self._name, self._what)

    def _failed(self, reason: RetrieverReason, how: str) -> RetrieverError:
        why = f"{self._what} {how}"
        if self._health.failed(why):
            _log.warning("retriever %s: %s; not asked for %g s", self._name, why, DOWN_FOR)
        return RetrieverError(reason, why)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=KEEP_ALIVE),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),  # each call has its own
                read_bufsize=BUFFER,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        return self._session
