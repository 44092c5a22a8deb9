"""A gateway whose retrievers ask a shelf of documents, served as a search service or standing in for one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.gateway import ADMIN, ALICE, Clock, Running, config_text, running
from tests.support.retrievers import Document, Shelf, serving
from tests.support.traffic import outcome, text_of

Json = dict[str, Any]
ANN = "rf-test-ann-key"
"""A `tenant_admin` of acme, whose documents the handbook's are."""
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LEAVE, PAY = "How many days of leave?", "When do we get our pay?"

CONFIG = f"""
  asked: {{mode: request_response, share: tenant, retrieval: {{retriever: handbook}}}}
retrievers:
  handbook: {{kind: http, url: "URL", version: $.version, tenants: [acme], webhook_secret: {SECRET}}}
  shared: {{kind: http, url: "URL", version: $.version, tenants: [acme, globex], webhook_secret: a plain word}}
  open: {{kind: http, url: "URL", version: $.version}}
"""


def shelf_of_two() -> Shelf:
    """Two documents that have no word in common: each question of the two above finds one."""
    shelf = Shelf()
    shelf.documents = {"hr/leave.md": Document("thirty days of leave"), "pay.md": Document("pay comes when it comes")}
    return shelf


def documents_text(upstream_url: str, search_url: str, *, store: str = "memory://") -> str:
    text = config_text(upstream_url, store=store, extra=CONFIG.replace("URL", search_url))
    ann = f"    - {{key: {ANN}, tenant: acme, user: ann, role: tenant_admin}}\n"
    return text.replace("\nendpoints:", f"{ann}\nendpoints:", 1)


@dataclass
class Library:
    gw: Running
    shelf: Shelf = field(repr=False)

    def ask(self, question: str = LEAVE, **more: Any) -> httpx.Response:
        return self.gw.chat(question, path="/asked/v1", **more)

    def search(self, query: str = LEAVE, *, retriever: str = "handbook", key: str = ALICE) -> httpx.Response:
        return self.gw.admin("POST", f"/v1/vector_stores/{retriever}/search", key=key, json={"query": query})

    def fill(self) -> None:
        """Both questions searched for and answered: of each document an answer, results and a text are kept."""
        for question in (LEAVE, PAY):
            outcome(self.search(question))
            text_of(self.ask(question))
        assert {d: self.kept(d) for d in ("handbook/hr/leave.md", "handbook/pay.md")} == {
            "handbook/hr/leave.md": {"chat": 1, "search": 2, "chunk": 1},
            "handbook/pay.md": {"chat": 1, "search": 2, "chunk": 1},
        }

    def kept(self, document: str, *, key: str = ADMIN) -> dict[str, int]:
        """How many entries there are of this document, by kind."""
        found = self.gw.admin("GET", "/admin/entries", key=key, params={"document": document})
        assert found.status_code == 200, found.text
        apis = [entry["api"] for entry in found.json()["entries"]]
        return {api: apis.count(api) for api in apis}

    def change(self, key: str = ADMIN, **body: Any) -> httpx.Response:
        given = {"retriever": "handbook", "id": "hr/leave.md", **body}
        return self.gw.admin("POST", "/admin/documents", key=key, json=given)

    def purge(self, *documents: str, key: str = ADMIN, **more: Any) -> httpx.Response:
        return self.gw.admin("POST", "/admin/purge", key=key, json={"documents": [*documents], **more})

    def lines(self, key: str = ADMIN) -> list[Json]:
        """Of the audit log, newest first."""
        return list(self.gw.admin("GET", "/admin/audit", key=key).json()["lines"])


@contextmanager
def library(upstream_url: str, *, store: str = "memory://", clock: Clock | None = None) -> Iterator[Library]:
    """All three retrievers ask the same service."""
    shelf = shelf_of_two()
    with serving(shelf) as url, running(documents_text(upstream_url, url, store=store), clock=clock) as gw:
        yield Library(gw, shelf)


def purged(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    assert response.json().keys() == {"purged"}
    return int(response.json()["purged"])
