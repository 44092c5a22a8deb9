"""A shelf of documents: a retriever that needs no files, no model and no service, and the same as a service."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import inf
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse

from backends.retrievers import Found, RetrieverError, RetrieverState
from tests.support.upstream import serve


@dataclass(frozen=True)
class Document:
    """`needs`: the permissions that it takes to see it, all of them; its pieces are its paragraphs."""

    text: str
    version: str = "1"
    needs: frozenset[str] = frozenset()
    title: str = ""


class Shelf:
    """A Retriever as the Protocol has it. A piece's score is the share of the query's words that are in it, and pieces
    without any are not found; among equals the order is that of ids and places. `generation` is a digest of all that
    is there, so it is the same again when everything is, until somebody tells of a change.

    `searches` are the queries that were asked, with the permissions; the next ones fail with `fails`, and wait for
    `gate` to be set where there is one.
    """

    detail = ""

    def __init__(
        self, documents: dict[str, Document] | None = None, *, name: str = "shelf", lasting: float = inf
    ) -> None:
        self.name = name
        self.revision = "shelf 1"
        self.documents = dict(documents or {})
        self.lasting = lasting
        self.state: RetrieverState = "ready"
        self.searches: list[tuple[str, frozenset[str] | None]] = []
        self.fails: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.closed = False
        self._told = 0

    def put(self, id: str, text: str, *, version: str = "1", needs: Sequence[str] = (), title: str = "") -> None:
        self.documents[id] = Document(text, version, frozenset(needs), title)

    @property
    def generation(self) -> str:
        known = [(id, d.version, d.title, d.text, sorted(d.needs)) for id, d in sorted(self.documents.items())]
        return blake2b(repr((self._told, known)).encode(), digest_size=16).hexdigest()

    def effective(self, permissions: frozenset[str]) -> frozenset[str]:
        return permissions & frozenset[str]().union(*(d.needs for d in self.documents.values()))

    async def start(self) -> None:
        pass

    async def search(
        self, query: str, *, top_k: int, permissions: frozenset[str] | None, deadline: float
    ) -> list[Found]:
        self.searches.append((query, permissions))
        if self.gate is not None:
            try:
                await asyncio.wait_for(self.gate.wait(), deadline)
            except TimeoutError:
                raise RetrieverError("deadline", "The shelf took too long.") from None
        if self.fails is not None:
            raise self.fails
        return self.found(query, top_k, permissions)

    def found(self, query: str, top_k: int, permissions: frozenset[str] | None) -> list[Found]:
        """What a search finds now."""
        words = _words(query)
        pieces = [
            Found(id, document.version, position, text, score, document.title)
            for id, document in self.documents.items()
            if permissions is None or document.needs <= permissions
            for position, text in enumerate(document.text.split("\n\n"))
            if (score := len(words & _words(text)) / max(1, len(words)))
        ]
        return sorted(pieces, key=lambda piece: (-piece.score, piece.document, piece.position))[:top_k]

    async def changed(self, document: str, *, version: str | None, deleted: bool) -> None:
        self._told += 1
        if deleted:
            self.documents.pop(document, None)
        elif version is not None and document in self.documents:
            self.documents[document] = replace(self.documents[document], version=version)

    async def aclose(self) -> None:
        self.closed = True


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


@contextmanager
def serving(shelf: Shelf) -> Iterator[str]:
    """The shelf as a search service, for retrievers of the kind `http` with their default settings; gives its URL.
    While `shelf.fails` is set it answers 500. At `named` beside that URL it finds for everybody, and each result names
    the permissions that it needs; what is found there was found before the wait for `shelf.gate`."""
    app = FastAPI()

    @app.post("/search")
    async def search(request: Request) -> JSONResponse:
        asked: dict[str, Any] = await request.json()
        permissions = None if asked["permissions"] is None else frozenset(asked["permissions"])
        try:
            found = await shelf.search(asked["query"], top_k=asked["top_k"], permissions=permissions, deadline=60.0)
        except RetrieverError:
            return JSONResponse({"error": "the shelf has fallen"}, 500)
        results = [{"id": f.document, "text": f.text, "score": f.score, "version": f.version} for f in found]
        return JSONResponse({"results": results})

    @app.post("/named")
    async def named(request: Request) -> JSONResponse:
        asked: dict[str, Any] = await request.json()
        now = Shelf(shelf.documents)
        results = [
            {"id": f.document, "text": f.text, "score": f.score, "version": f.version}
            | {"permissions": sorted(now.documents[f.document].needs)}
            for f in now.found(asked["query"], asked["top_k"], None)
        ]
        if (gate := shelf.gate) is not None:
            await gate.wait()
        return JSONResponse({"results": results})

    with serve(app) as port:
        yield f"http://127.0.0.1:{port}/search"
