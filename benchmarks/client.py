"""Many exchanges at once, each on a connection of its own, with the time of every piece that arrives."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from time import perf_counter
from typing import Any, NamedTuple, TypeVar, cast

import httptools
import uvloop

T = TypeVar("T")


class Piece(NamedTuple):
    at: float
    data: bytes


class Exchange(asyncio.Protocol):
    """One request and its answer. What arrives is only kept, and read when all is over."""

    def __init__(self) -> None:
        self.asked = 0.0
        self.headers: dict[bytes, bytes] = {}
        self.pieces: list[Piece] = []
        self.received = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._now = 0.0
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, request: bytes) -> None:
        self.asked = perf_counter()
        self._transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the connection ended before the answer did"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self.received += len(data)
        self.pieces.append(Piece(self._now, data))

    def on_message_complete(self) -> None:
        if (status := self._parser.get_status_code()) == 200:
            self.done.set_result(None)
        else:
            self.done.set_exception(RuntimeError(f"{status} {self._raw()[:500]!r}"))
        self._transport.close()

    def tokens(self) -> list[tuple[float, str]]:
        """When each piece of the answer's text had arrived. The stream must be a good and complete one."""
        events = list(self._events())
        if not events or events[-1][1] != b"[DONE]":
            sys.exit(f"a stream did not end as it should: {self._raw()[-500:]!r}")
        chunks = [(at, json.loads(data)) for at, data in events[:-1]]
        deltas = [(at, c["choices"][0]["delta"].get("content")) for at, c in chunks if c["choices"]]
        return [(at, content) for at, content in deltas if content]

    def text(self) -> str:
        """The answer's text, streamed or not."""
        if self.headers[b"content-type"].startswith(b"text/event-stream"):
            return "".join(content for _, content in self.tokens())
        answer = json.loads(self._raw())
        return str(answer["choices"][0]["message"]["content"])

    def _raw(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    def _events(self) -> Iterator[tuple[float, bytes]]:
        rest = b""
        for at, data in self.pieces:
            *events, rest = (rest + data).split(b"\n\n")
            yield from ((at, event.removeprefix(b"data: ")) for event in events)


async def connect(port: int) -> Exchange:
    _, exchange = await asyncio.get_running_loop().create_connection(Exchange, "127.0.0.1", port)
    return exchange


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())
