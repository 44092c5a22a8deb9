"""A gateway whose RAG endpoints ask a shelf of documents, served as a search service, before a scripted upstream."""

import asyncio
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

import httpx
import pytest

from backends.retrievers import RetrieverError
from tests.support.gateway import ADMIN, ALICE, Running, config_text, running
from tests.support.retrievers import Document, Shelf, serving
from tests.support.traffic import decision
from tests.support.upstream import Seen, Upstream, numbered, serve

Json = dict[str, Any]
CAROL = "rf-test-carol-key"
"""Of acme, who may see what Alice may (hr) and what Bob may (eng)."""
DAVE = "rf-test-dave-key"
"""Of acme, without any permission."""
EVERYBODY, HR, ENG = "holidays", "salaries", "servers"
"""A question of one word for each document: one for everybody, one that needs hr, and one that needs eng."""
IDS = {EVERYBODY: "holidays.md", HR: "hr/salaries.md", ENG: "eng/servers.md"}
LABEL = "handbook/holidays.md@1"
"""What an answer says that rests on the one for everybody."""

ENDPOINTS = """
  talk: {mode: stream, share: tenant, retrieval: {retriever: handbook, top_k: 8}}
  hr: {mode: request_response, share: tenant, retrieval: {retriever: handbook, top_k: 8}}
  by_permission: {mode: request_response, share: permissions, retrieval: {retriever: handbook}}
  mine: {mode: request_response, share: user, retrieval: {retriever: handbook}}
  strict: {mode: request_response, retrieval: {retriever: handbook, min_score: 0.6}}
  worded: {mode: request_response, retrieval: {retriever: handbook, template: "Read: {documents}\\nNow: {question}"}}
  lenient: {mode: request_response, retrieval: {retriever: lenient}}
  lenient_talk: {mode: stream, retrieval: {retriever: lenient}}
  lasting: {mode: request_response, retrieval: {retriever: handbook}, cache: {exact: {ttl: 60s, stale_if_error: 1h}}}
  soft: {retrieval: {retriever: handbook}, cache: {exact: {ttl: 60s, stale_while_revalidate: 1h}}}
  alike: {mode: request_response, retrieval: {retriever: handbook, top_k: 8, semantic: true}}
  unkept: {mode: request_response, retrieval: {retriever: handbook}, cache: {exact: off}}
retrievers:
  handbook: {kind: http, url: "URL", version: $.version}
  lenient: {kind: http, url: "URL", version: $.version, on_error: answer_without}
"""


def shelf_of_three() -> Shelf:
    """Of two paragraphs each, which both are found by the document's word."""
    shelf = Shelf()
    shelf.put(IDS[EVERYBODY], "Everybody has holidays for 25 days.\n\nUnused holidays end in March.")
    shelf.put(IDS[HR], "The salaries are paid on the 25th.\n\nAll salaries are secret.", needs=["hr"])
    shelf.put(IDS[ENG], "The servers are in the cellar.\n\nThe servers have names of birds.", needs=["eng"])
    return shelf


def rag_text(upstream_url: str, search_url: str, *, store: str = "memory://", extra: str = "") -> str:
    text = config_text(upstream_url, store=store, extra=ENDPOINTS.replace("URL", search_url) + extra)
    more = (
        f"    - {{key: {CAROL}, tenant: acme, user: carol, permissions: [eng, hr]}}\n"
        f"    - {{key: {DAVE}, tenant: acme, user: dave}}\n"
    )
    return text.replace("\nendpoints:", f"{more}\nendpoints:", 1)


class Gate(asyncio.Event):
    """Something that a service in another thread waits for, which this one opens."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    async def wait(self) -> Literal[True]:
        while not self._opened.is_set():  # noqa: ASYNC110  another thread sets it
            await asyncio.sleep(0.002)
        return True


@dataclass
class Rag:
    gw: Running
    up: Upstream = field(repr=False)
    shelf: Shelf = field(repr=False)

    def ask(self, question: str = EVERYBODY, *, key: str = ALICE, path: str = "/hr/v1", **more: Any) -> httpx.Response:
        return self.gw.chat(question, key=key, path=path, **more)

    def change(self, id: str, *, retriever: str = "handbook", **body: Any) -> None:
        """Tell the gateway that a document is new, another one, or gone."""
        found = self.gw.admin("POST", "/admin/documents", key=ADMIN, json={"retriever": retriever, "id": id, **body})
        assert found.status_code == 200, found.text

    def rewrite(self, id: str, text: str, version: str = "2", *, needs: tuple[str, ...] | None = None) -> None:
        """Change a document on the shelf, and tell of it."""
        old = self.shelf.documents.get(id, Document(""))
        self.shelf.documents[id] = Document(text, version, old.needs if needs is None else frozenset(needs))
        self.change(id, version=version)

    def delete(self, id: str) -> None:
        del self.shelf.documents[id]
        self.change(id, deleted=True)

    @contextmanager
    def searches(self, expected: int) -> Iterator[None]:
        """What happens inside must reach the search service so many times."""
        before = len(self.shelf.searches)
        yield
        asked = len(self.shelf.searches) - before
        assert asked == expected, f"{asked} searches instead of {expected}"

    @contextmanager
    def costs(self, *, searches: int, calls: int) -> Iterator[None]:
        """What happens inside must search and generate so many times."""
        before = self.up.calls
        with self.searches(searches):
            yield
        assert self.up.calls - before == calls, f"{self.up.calls - before} upstream calls instead of {calls}"

    def tier(self, response: httpx.Response, name: str = "retrieval") -> Json:
        """What the decision holds of a tier; empty where it was not asked."""
        found = [tier for tier in decision(self.gw, response)["tiers"] if tier["tier"] == name]
        assert len(found) < 2, found
        return dict(found[0]) if found else {}


@contextmanager
def rag(up: Upstream, **options: Any) -> Iterator[Rag]:
    shelf = shelf_of_three()
    with serving(shelf) as url, running(rag_text(up.url, url), **options) as gw:
        yield Rag(gw, up, shelf)


FALLEN = RetrieverError("failed", "the shelf has fallen")


@contextmanager
def mended(library: Rag) -> Iterator[Rag]:
    """What a test has changed about the documents, the service, the upstream and the clock ends with it."""
    yield library
    library.up.script = numbered
    library.gw.clock.offset = 0.0
    library.shelf.fails = library.shelf.gate = None
    library.shelf.documents = shelf_of_three().documents
    # A service that has failed several times in a row is not asked for a while: so it is asked, and answers.
    for path in ("/hr/v1", "/lenient/v1"):
        library.ask(f"{EVERYBODY} {uuid4()}", path=path).raise_for_status()


_number = itertools.count(1)


def unasked(about: str = EVERYBODY) -> str:
    """A question that nobody has asked before."""
    return f"{about} number{next(_number)}"


def fixtures() -> tuple[Any, Any, Any]:
    """A module's own `library`; `r`, which is the same, and as it was when the test is over; and an unasked `question`
    about what everybody may see."""

    @pytest.fixture(scope="module")
    def library(up: Upstream) -> Iterator[Rag]:
        with rag(up) as found:
            yield found

    @pytest.fixture
    def r(library: Rag) -> Iterator[Rag]:
        with mended(library):
            yield library

    return library, r, pytest.fixture(lambda: unasked())


class Lying:
    """A search service that answers as it is told."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"

    def says(self, *results: Any) -> None:
        self.body = json.dumps({"results": results}).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


@contextmanager
def lied_to(up: Upstream) -> Iterator[tuple[Rag, Lying]]:
    service = Lying()
    with serve(service) as port, running(rag_text(up.url, f"http://127.0.0.1:{port}/search")) as gw:
        yield Rag(gw, up, Shelf()), service


def shown(response: httpx.Response) -> list[str]:
    """The documents that an answer says it was made from."""
    value = response.headers.get("x-refrain-documents", "")
    return value.split(", ") if value else []


def cache_status(response: httpx.Response) -> list[str]:
    """Its members without their times to live."""
    return [re.sub(r"; ttl=\d+", "", member) for member in response.headers["cache-status"].split(", ")]


def prompt_of(seen: Seen) -> str:
    """The last user turn that the upstream was sent."""
    return next(str(m["content"]) for m in reversed(seen.body["messages"]) if m["role"] == "user")


def cited(response: httpx.Response, answer: Json) -> list[str]:
    """The documents that an answer cites, each for all of its text; the same as its header says."""
    (choice,) = answer["choices"]
    found = choice["message"]["annotations"]
    for one in found:
        assert one["type"] == "url_citation"
        place = one["url_citation"]
        assert (place["start_index"], place["end_index"]) == (0, len(choice["message"]["content"]))
    names = [one["url_citation"]["url"] for one in found]
    assert names == shown(response)
    return names
