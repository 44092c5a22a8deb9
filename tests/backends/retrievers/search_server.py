"""A real search service that answers as it is told, honestly or not, and a retriever that asks it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from backends.retrievers import Found, RetrieverError
from backends.retrievers.openai import OpenAIRetriever
from backends.retrievers.service import ServiceRetriever
from tests.backends.raw_server import Connection, RawServer, raw_server

KEY = "sk-very-secret"
SECRETS = (KEY, "127.0.0.1", "what is secret")
QUESTION = "what is secret"
SOON = 10.0
JSON = b"content-type: application/json"
HEAD = b"HTTP/1.1 200 OK\r\n"

Answer = Callable[[Connection], Awaitable[None]]


@dataclass
class Asked:
    line: str
    headers: dict[str, str]
    body: Any


class Server:
    """Answers as `answer` says, which may be changed."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.raw: RawServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.raw.port}"

    async def script(self, connection: Connection) -> None:
        while True:
            head, _, body = (await connection.request()).partition(b"\r\n\r\n")
            line, *fields = head.decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
            self.asked.append(Asked(line, headers, json.loads(body) if body else None))
            await self.answer(connection)


def sends(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> Answer:
    async def answer(connection: Connection) -> None:
        await connection.answer(body, *headers, status=status)

    return answer


def says(value: Any) -> Answer:
    return sends(json.dumps(value).encode(), JSON)


def results(*items: Any) -> Answer:
    return says({"results": items})


def result(id: Any = "a.md", text: Any = "A text.", score: Any = 0.5, **more: Any) -> dict[str, Any]:
    return {"id": id, "text": text, "score": score, **more}


def raw(*pieces: bytes) -> Answer:
    """These bytes, and the connection is closed."""

    async def answer(connection: Connection) -> None:
        for piece in pieces:
            await connection.send(piece)
        raise ConnectionError

    return answer


async def hang(connection: Connection) -> None:
    await connection.gone()


async def hangs_after_its_head(connection: Connection) -> None:
    await connection.send(HEAD + b"content-length: 1000\r\n\r\n{")
    await connection.gone()


@asynccontextmanager
async def service(answer: Answer, **settings: Any) -> AsyncIterator[tuple[Server, ServiceRetriever]]:
    server = Server(answer)
    async with raw_server(server.script) as server.raw:
        query = settings.pop("query", "")
        headers = {"Authorization": f"Bearer {KEY}"} | settings.pop("headers", {})
        retriever = ServiceRetriever("wiki", url=f"{server.url}/find{query}", headers=headers, **settings)
        await retriever.start()
        try:
            yield server, retriever
        finally:
            await retriever.aclose()
            await retriever.aclose()
    assert (retriever.state, retriever.detail) == ("down", "stopped")


@asynccontextmanager
async def store(answer: Answer, **settings: Any) -> AsyncIterator[tuple[Server, OpenAIRetriever]]:
    server = Server(answer)
    async with raw_server(server.script) as server.raw:
        retriever = OpenAIRetriever(
            "files", base_url=f"{server.url}/v1", **{"api_key": KEY, "store": "vs_1"} | settings
        )
        await retriever.start()
        try:
            yield server, retriever
        finally:
            await retriever.aclose()


async def search(
    retriever: ServiceRetriever | OpenAIRetriever,
    query: str = QUESTION,
    *,
    top_k: int = 4,
    permissions: frozenset[str] | None = frozenset({"hr", "it"}),
    deadline: float = SOON,
) -> list[Found]:
    return await retriever.search(query, top_k=top_k, permissions=permissions, deadline=deadline)


async def failure(retriever: ServiceRetriever | OpenAIRetriever, query: str = QUESTION, **how: Any) -> RetrieverError:
    with pytest.raises(RetrieverError) as caught:
        await search(retriever, query, **how)
    for secret in SECRETS:
        assert secret not in f"{caught.value!r} {caught.value} {retriever!r} {retriever.detail}"
    return caught.value


async def said(retriever: ServiceRetriever | OpenAIRetriever, **how: Any) -> tuple[str, str]:
    error = await failure(retriever, **how)
    return error.reason, str(error)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def in_the_end(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
