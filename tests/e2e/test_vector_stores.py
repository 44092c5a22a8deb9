"""`/v1/vector_stores/{id}/search` with the official client, a real server, and a real search service behind it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from backends.retrievers import RetrieverError
from tests.support.gateway import ALICE, BOB, EVE, Running, config_text, running
from tests.support.retrievers import Shelf, serving
from tests.support.upstream import Upstream

Json = dict[str, Any]
LONG, SHORT, PAY = "Parental leave is long.", "Unpaid leave is short.", "Pay during parental leave."


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    shelf = Shelf()
    shelf.put("leave.md", f"{LONG}\n\n{SHORT}", version="7")
    shelf.put("hr/pay.md", PAY, needs=["hr"])
    return shelf


@pytest.fixture(scope="module")
def gw(up: Upstream, shelf: Shelf) -> Iterator[Running]:
    with serving(shelf) as url:
        extra = f"""
  narrow: {{allow: {{permissions: [hr]}}}}
retrievers:
  handbook: {{kind: http, url: "{url}", version: $.version, tenants: [acme, ops], webhook_secret: hidden}}
  gone: {{kind: http, url: "http://127.0.0.1:9/search"}}
"""
        with running(config_text(up.url, extra=extra)) as gateway:
            yield gateway


@pytest.fixture
def searches(shelf: Shelf) -> Iterator[list[Any]]:
    """What the service was asked, from here on."""
    shelf.searches.clear()
    yield shelf.searches
    shelf.fails = None


@pytest.fixture(scope="module")
def client(gw: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0, timeout=20) as c:
        yield c


def ask(
    gw: Running, query: Any, *, key: str = ALICE, path: str = "/v1", store: str = "handbook", **more: Any
) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
    return gw.client.post(f"{path}/vector_stores/{store}/search", json={"query": query, **more}, headers=headers)


def error_of(reply: httpx.Response, status: int, code: str) -> Json:
    assert reply.status_code == status, reply.text
    error: Json = reply.json()["error"]
    assert error["code"] == code
    return error


def test_the_official_client_reads_the_page(client: openai.OpenAI, searches: list[Any]) -> None:
    for _ in range(2):
        page = client.vector_stores.search("handbook", query="unpaid leave now", max_num_results=2)
        assert page.object == "vector_store.search_results.page"
        assert [(r.file_id, r.filename, r.content[0].text) for r in page] == [
            ("leave.md", "leave.md", SHORT),
            ("hr/pay.md", "pay.md", PAY),
        ]
        assert page.data[0].score == pytest.approx(2 / 3)
        assert page.data[0].attributes == {"version": "7", "title": "leave.md", "position": 0.0}
        assert page.data[0].content[0].type == "text"
        assert not page.has_next_page()
    assert searches == [("unpaid leave now", frozenset({"hr"}))]


async def test_the_asynchronous_client_iterates_over_it(gw: Running, searches: list[Any]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0, timeout=20) as client:
        found = [r.file_id async for r in client.vector_stores.search("handbook", query=["unpaid", "parental"])]
    assert found == ["leave.md", "hr/pay.md", "leave.md"]
    assert sorted(query for query, _ in searches) == ["parental", "unpaid"]


def test_a_hit_says_so(gw: Running, searches: list[Any]) -> None:
    first = ask(gw, "how long is leave")
    gw.clock.offset = 100
    second = ask(gw, "how long is leave")
    assert (first.status_code, first.content) == (200, second.content)
    assert [reply.headers["x-refrain-cache"] for reply in (first, second)] == ["miss", "exact"]
    assert first.headers["cache-status"] == "retrieval; fwd=miss"
    assert second.headers["cache-status"].startswith("retrieval; hit; ttl=")
    assert int(second.headers["age"]) >= 100
    assert second.headers["x-refrain-documents"] == "handbook/leave.md@7, handbook/hr/pay.md@1"
    assert "retrieval;dur=" in second.headers["server-timing"]
    assert "search;dur=" in first.headers["server-timing"]
    assert first.headers["cache-control"] == "private, no-store"
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert len(searches) == 1


def test_a_service_lasts_only_so_long(gw: Running, searches: list[Any]) -> None:
    ask(gw, "leave that lasts")
    gw.clock.offset = 3_600
    assert ask(gw, "leave that lasts").headers["x-refrain-cache"] == "miss"
    assert len(searches) == 2


def test_every_endpoint_has_it_and_they_share_what_was_found(gw: Running, searches: list[Any]) -> None:
    ask(gw, "shared leave")
    assert ask(gw, "shared leave", path="/rr/v1").headers["x-refrain-cache"] == "exact"
    assert ask(gw, "shared leave", path="/narrow/v1").headers["x-refrain-cache"] == "exact"
    error_of(ask(gw, "shared leave", path="/narrow/v1", key=BOB), 403, "endpoint_not_allowed")
    error_of(ask(gw, "shared leave", path="/nothing/v1"), 404, "endpoint_not_found")
    assert len(searches) == 1


def test_who_may_not_see_a_document_neither_gets_it_nor_learns_of_it(gw: Running, searches: list[Any]) -> None:
    mine = ask(gw, "secret pay")
    theirs = ask(gw, "secret pay", key=BOB)
    assert [item["file_id"] for item in mine.json()["data"]] == ["hr/pay.md"]
    assert theirs.json()["data"] == []
    assert theirs.headers["x-refrain-cache"] == "miss"
    assert "x-refrain-documents" not in theirs.headers
    assert searches == [("secret pay", frozenset({"hr"})), ("secret pay", frozenset({"eng"}))]


def test_a_store_of_another_tenant_is_none(gw: Running, searches: list[Any]) -> None:
    hidden = error_of(ask(gw, "leave", key=EVE), 404, "vector_store_not_found")
    absent = error_of(ask(gw, "leave", key=EVE, store="nothing"), 404, "vector_store_not_found")
    assert hidden["message"].replace("handbook", "nothing") == absent["message"]
    error_of(ask(gw, "leave", store="hand%2fbook"), 404, "unknown_url")
    error_of(ask(gw, "leave", store="%0d%0aset-cookie:a"), 404, "vector_store_not_found")
    assert searches == []


def test_a_key_is_needed(gw: Running) -> None:
    reply = gw.client.post("/v1/vector_stores/handbook/search", json={"query": "leave"})
    assert reply.status_code == 401
    assert ask(gw, "leave", key="rf-wrong").status_code == 401


def test_other_methods_are_not_allowed(gw: Running) -> None:
    reply = gw.client.get("/v1/vector_stores/handbook/search", headers={"authorization": f"Bearer {ALICE}"})
    error_of(reply, 405, "method_not_allowed")


def test_what_is_wrong_is_named(gw: Running, searches: list[Any]) -> None:
    error = error_of(ask(gw, "leave", filters={"type": "eq", "key": "a", "value": 1}), 400, "unsupported_value")
    assert error["param"] == "filters"
    assert error_of(ask(gw, "leave", tenant="globex"), 400, "unknown_parameter")["param"] == "tenant"
    reply = ask(gw, "leave", headers={"x-refrain-tier": "everything"})
    assert error_of(reply, 400, "invalid_header")["param"] == "x-refrain-tier"
    assert searches == []


def test_a_service_that_fails_is_an_error_and_is_not_kept(gw: Running, shelf: Shelf, searches: list[Any]) -> None:
    shelf.fails = RetrieverError("failed", "")
    reply = ask(gw, "failing leave")
    assert reply.status_code in (502, 503)
    assert reply.json()["error"]["code"].startswith("retriever_")
    assert reply.headers["x-refrain-cache"] == "miss"
    assert reply.headers["cache-status"] == "retrieval; fwd=miss"
    shelf.fails = None
    assert ask(gw, "failing leave").headers["x-refrain-cache"] == "miss"
    assert ask(gw, "failing leave").headers["x-refrain-cache"] == "exact"


def test_a_service_that_is_gone_says_no_address(gw: Running) -> None:
    reply = ask(gw, "leave", store="gone")
    error_of(reply, 502, "retriever_unavailable")
    assert "127.0.0.1" not in reply.text


def test_the_cache_is_controlled_as_elsewhere(gw: Running, searches: list[Any]) -> None:
    def outcome(**headers: str) -> str:
        return ask(gw, "steered leave", headers={k.replace("_", "-"): v for k, v in headers.items()}).headers[
            "x-refrain-cache"
        ]

    error_of(ask(gw, "steered leave", headers={"cache-control": "only-if-cached"}), 504, "not_cached")
    assert outcome(cache_control="no-store") == "bypass"
    assert outcome() == "miss"
    assert outcome(cache_control="only-if-cached") == "exact"
    assert outcome(cache_control="no-cache") == "miss"
    assert outcome(x_refrain_tier="exact") == "bypass"
    assert outcome() == "exact"
    assert len(searches) == 4


async def test_fifty_clients_at_once_are_one_search(gw: Running, searches: list[Any]) -> None:
    async with httpx.AsyncClient(base_url=gw.url, timeout=30, trust_env=False) as client:
        replies = await asyncio.gather(
            *(
                client.post(
                    "/v1/vector_stores/handbook/search",
                    json={"query": "crowded leave"},
                    headers={"authorization": f"Bearer {ALICE}"},
                )
                for _ in range(50)
            )
        )
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.content for reply in replies}) == 1
    assert {reply.headers["x-refrain-cache"] for reply in replies} <= {"miss", "joined", "exact"}
    assert len(searches) == 1


def test_a_purge_by_document_ends_what_was_found(gw: Running, searches: list[Any]) -> None:
    def kept() -> list[str]:
        entries = gw.admin("GET", "/admin/entries?document=handbook/hr/pay.md").json()["entries"]
        return sorted({entry["api"] for entry in entries})

    ask(gw, "purged pay")
    assert kept() == ["chunk", "search"]
    assert gw.admin("POST", "/admin/purge", json={"documents": ["handbook/hr/pay.md"]}).json()["purged"] >= 2
    assert kept() == []
    assert ask(gw, "purged pay").headers["x-refrain-cache"] == "miss"


def test_the_books_stay_sound(gw: Running, searches: list[Any]) -> None:
    before = gw.admin("GET", "/admin/stats").json()
    for _ in range(3):
        ask(gw, "booked leave")
    after = gw.admin("GET", "/admin/stats").json()
    assert after["tokens"] == before["tokens"]
    assert after["usd"] == before["usd"]
    gained = {k: n - before["requests"].get(k, 0) for k, n in after["requests"].items()}
    assert (gained["miss"], gained["exact"]) == (1, 2)


def test_a_decision_tells_of_the_search(gw: Running, searches: list[Any]) -> None:
    ask(gw, "decided leave")
    id = ask(gw, "decided leave").headers["x-request-id"]
    decision = gw.admin("GET", f"/admin/decisions?id={id}").json()
    assert (decision["api"], decision["outcome"], decision["model"]) == ("search", "exact", "")
    assert [(tier["tier"], tier["result"]) for tier in decision["tiers"]] == [("retrieval", "hit")]
    assert decision["documents"] == ["handbook/hr/pay.md@1", "handbook/leave.md@7"]
    entry = gw.admin("GET", f"/admin/entries?key={decision['key']}").json()["entries"][0]
    assert (entry["api"], entry["tenant"], entry["user"]) == ("search", "acme", "alice")
