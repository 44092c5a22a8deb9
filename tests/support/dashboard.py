"""A person at the dashboard: the page's own requests, with the cookie and what a browser adds to it."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.support.gateway import ADMIN, Running
from tests.support.process import Served
from tests.support.traffic import until

COOKIE = "refrain_session"


class Person:
    """A browser that has the page open. `cookie` is the value that it keeps."""

    def __init__(self, gw: Running) -> None:
        self.gw = gw
        self.cookie: str | None = None
        self.client = httpx.Client(base_url=gw.url, timeout=30, trust_env=False)

    def ask(self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        """A request of the page itself."""
        own = {"sec-fetch-site": "same-origin"} | ({} if method == "GET" else {"origin": self.gw.url})
        return self.bare(method, path, headers={**own, **(headers or {})}, **more)

    def bare(self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        """A request that carries the cookie and says of itself just these headers."""
        self.client.cookies.clear()
        kept = {} if self.cookie is None else {"cookie": f"{COOKIE}={self.cookie}"}
        return self.client.request(method, path, headers={**kept, **(headers or {})}, **more)

    def sign_in(self, key: str = ADMIN) -> httpx.Response:
        response = self.ask("POST", "/dashboard/session", json={"key": key})
        if "set-cookie" in response.headers:
            self.cookie = response.headers["set-cookie"].partition(";")[0].partition("=")[2]
        return response

    def who(self) -> dict[str, Any]:
        response = self.ask("GET", "/dashboard/session")
        assert response.status_code == 200, response.text
        return dict(response.json())


@contextmanager
def person(gw: Running, key: str | None = ADMIN) -> Iterator[Person]:
    """Signed in with this key; None: not at all."""
    somebody = Person(gw)
    with somebody.client:
        if key is not None:
            assert somebody.sign_in(key).status_code == 204
        yield somebody


class Watcher:
    """A page that watches `/admin/live`, on a connection of its own, read in a thread. Without `reads` nothing of it
    is read before `read`; `buffer` is the size of the socket's receive buffer."""

    def __init__(
        self, url: str, path: str, headers: dict[str, str], *, reads: bool = True, buffer: int | None = None
    ) -> None:
        parts = urlsplit(url)
        self.content = b""
        self.ended = threading.Event()
        self._socket = socket.socket()
        if buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.settimeout(30)
        self._socket.connect((parts.hostname, parts.port))
        lines = [f"GET {path} HTTP/1.1", f"host: {parts.netloc}", *(f"{k}: {v}" for k, v in headers.items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        if reads:
            self.read()

    def read(self) -> None:
        """Begin to take what comes."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while not self.content.endswith(b"\r\n0\r\n\r\n") and (piece := self._socket.recv(65536)):
                self.content += piece
        except OSError:
            pass
        self.ended.set()

    @property
    def head(self) -> str:
        """Status line and headers, once they are here."""
        until(lambda: b"\r\n\r\n" in self.content or self.ended.is_set())
        return self.content.partition(b"\r\n\r\n")[0].decode().lower()

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    @property
    def text(self) -> str:
        """The body as far as it has come, its chunks put together."""
        body, out = self.content.partition(b"\r\n\r\n")[2], b""
        while b"\r\n" in body:
            size, _, rest = body.partition(b"\r\n")
            length = int(size, 16)
            if not length or len(rest) < length + 2:
                break
            out, body = out + rest[:length], rest[length + 2 :]
        return out.decode()

    def events(self, name: str) -> list[Any]:
        """The data of all whole events of this name."""
        blocks = [block.split("\n") for block in self.text.split("\n\n")[:-1]]
        return [json.loads(lines[1].removeprefix("data: ")) for lines in blocks if lines[0] == f"event: {name}"]

    def decisions(self) -> list[dict[str, Any]]:
        """All that came, in the order in which they were made."""
        return [d for event in self.events("decisions") for d in reversed(event["decisions"])]

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def watching(gw: Running | Served, *, key: str = ADMIN, query: str = "", **how: Any) -> Iterator[Watcher]:
    """Watch by key; with `headers` by those instead."""
    headers = how.pop("headers", {"authorization": f"Bearer {key}"})
    watcher = Watcher(gw.url, f"/admin/live{query}", headers, **how)
    try:
        yield watcher
    finally:
        watcher.close()
