"""A real embedding server that answers as it is told, honestly or not, and a remote embedder that calls it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from backends.embeddings import EmbeddingError, RemoteEmbedder
from tests.backends.raw_server import Connection, RawServer, raw_server

KEY = "sk-very-secret"
SOON = 10.0
JSON = b"content-type: application/json"

Answer = Callable[[Connection, list[str]], Any]


class Server:
    """Answers as `answer` says, which may be changed; honestly unless told."""

    def __init__(self) -> None:
        self.answer: Answer = honest
        self.raw: RawServer

    async def script(self, connection: Connection) -> None:
        while True:
            body = json.loads((await connection.request()).partition(b"\r\n\r\n")[2])
            await self.answer(connection, body["input"])


def item(index: int, *numbers: float) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": list(numbers)}


def says(*items: dict[str, Any]) -> Answer:
    async def answer(connection: Connection, texts: list[str]) -> None:
        await connection.answer(json.dumps({"object": "list", "data": items, "model": "m"}).encode(), JSON)

    return answer


def sends(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> Answer:
    async def answer(connection: Connection, texts: list[str]) -> None:
        await connection.answer(body, *headers, status=status)

    return answer


async def honest(connection: Connection, texts: list[str]) -> None:
    """A vector that tells the text's length, the last text's first."""
    items = [item(i, 3.0 * len(text), 4.0 * len(text), 0.0) for i, text in enumerate(texts)]
    await says(*reversed(items))(connection, texts)


async def hang(connection: Connection, texts: list[str]) -> None:
    await connection.gone()


@asynccontextmanager
async def served(first: Answer = honest, *, ready: bool = True) -> AsyncIterator[tuple[Server, RemoteEmbedder]]:
    server = Server()
    server.answer = first
    async with raw_server(server.script) as server.raw:
        embedder = RemoteEmbedder(server.raw.url, KEY, "m")
        assert (embedder.state, embedder.identity, embedder.dimensions) == ("starting", "", 0)
        await embedder.start()
        try:
            if ready:
                await until(embedder, "ready")
            yield server, embedder
        finally:
            await embedder.aclose()
            await embedder.aclose()
    assert embedder.state == "failed"


async def until(embedder: RemoteEmbedder, state: str) -> None:
    async with asyncio.timeout(SOON):
        while embedder.state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def failure(embedder: RemoteEmbedder, *texts: str, deadline: float = SOON) -> EmbeddingError:
    with pytest.raises(EmbeddingError) as caught:
        await embedder.embed(texts or ["hello"], deadline=deadline)
    assert KEY not in repr(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    return caught.value
