"""Requests without sockets: the application's side of a connection, in the hand of a test."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from tests.scopes.backend import ASKED
from tests.scopes.log import Asked, Log

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
SERIAL = re.compile(rb"serial-(\d+)-")


def http(method: str, path: str, headers: Sequence[tuple[bytes, bytes]], query: bytes = b"") -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }


class Client:
    """One request for an answer; notes in `asked` what it got."""

    def __init__(self, app: App, log: Log, clock: Callable[[], float], asked: Asked) -> None:
        self.asked = asked
        self.content = b""
        self.headers: dict[bytes, bytes] = {}
        self._log = log
        self._clock = clock
        self._body: bytes | None = asked.ask.body()
        self._left = asyncio.Event()
        self.task = asyncio.create_task(self._run(app))

    def leave(self) -> None:
        self._left.set()

    async def _run(self, app: App) -> None:
        asked, ask = self.asked, self.asked.ask
        ASKED.set(asked)
        headers = [*ask.headers(), (b"content-length", b"%d" % len(self._body or b""))]
        await app(http("POST", ask.path, headers), self._receive, self._send)
        asked.ended, asked.ended_at = self._log.tick(), self._clock()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._left.is_set():
            return
        asked = self.asked
        if message["type"] == "http.response.start":
            asked.status, asked.head_at = message["status"], self._clock()
            self.headers = dict(message["headers"])
            asked.outcome = self.headers.get(b"x-refrain-cache", b"").decode()
            age = self.headers.get(b"age")
            asked.age = None if age is None else int(age)
        else:
            self.content += message.get("body", b"")
            asked.serials = frozenset(map(int, SERIAL.findall(self.content)))

    @property
    def short_way(self) -> bool:
        """Was it answered without being parsed?"""
        return self.asked.outcome == "exact" and b"parse;" not in self.headers[b"server-timing"]

    @property
    def remembered(self) -> bool:
        """Was it given another question's answer without a search?"""
        return self.asked.outcome == "semantic" and b"semantic;" not in self.headers[b"server-timing"]


async def call(
    app: App, method: str, path: str, token: str, body: Mapping[str, Any] | None = None, query: bytes = b""
) -> tuple[int, dict[str, Any]]:
    """One request to the admin API: status and body."""
    raw = b"" if body is None else json.dumps(body).encode()
    found: dict[str, Any] = {"status": 0, "body": b""}

    async def receive() -> Message:
        return {"type": "http.request", "body": raw}

    async def send(message: Message) -> None:
        found["status"] = message.get("status", found["status"])
        found["body"] += message.get("body", b"")

    headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-length", b"%d" % len(raw))]
    await app(http(method, path, headers, query), receive, send)
    return found["status"], json.loads(found["body"])


class Lifespan:
    """Starts and stops an application as a server does."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._asked = False

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._run())
        await asyncio.wait([self._task, self._begun], return_when=asyncio.FIRST_COMPLETED)
        assert self._begun.done(), "the gateway did not start"

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._task

    async def _run(self) -> None:
        await self._app({"type": "lifespan", "state": {}}, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "lifespan.startup"}
        await self._over.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            self._begun.set_result(None)
        assert message["type"] != "lifespan.startup.failed", message
