"""What an answer rests on: which pieces, under which key, in which prompt; and what a retriever's failures become."""

import json
import time
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from backends.retrievers import RetrieverError
from cache.match import Match
from cache.retrieval import Passage, Reference
from cache.retrieval.passages import refer
from gateway.ask import Ask, understand
from gateway.config.load import parse_config
from gateway.errors import ApiError
from gateway.fill import Fill, Kitchen
from gateway.fleet import build
from gateway.identity import Identity
from gateway.normalize import request_key
from gateway.principal import OPEN, Principal
from gateway.question import read_question
from gateway.retrieval.failures import RetrieverFailed
from gateway.retrieval.grounds import Grounding, Grounds, chosen_of
from gateway.retrieval.managed import Managed
from gateway.retrieval.template import NONE_FOUND, UNREACHABLE
from gateway.semantics import Semantics
from gateway.snapshot import Snapshot
from gateway.visit import Visit
from gateway.why.sketch import sketch
from tests.gateway.retrieval.desk import Desk
from tests.gateway.test_normalize import ARGUMENTS, PINNED
from tests.support.embedders import Unready

Json = dict[str, Any]
CONFIG = parse_config(
    """
auth: {required: false}
store: {url: "memory://"}
backends: {one: {kind: remote, base_url: "http://127.0.0.1:9/v1"}}
models: {"*": one}
retrievers:
  handbook: {kind: http, url: "http://127.0.0.1:9/search"}
  open: {kind: http, url: "http://127.0.0.1:9/search", on_error: answer_without}
endpoints:
  default: {share: permissions}
  tolerant: {normalize: text}
  hr: {share: tenant, retrieval: {retriever: handbook, top_k: 4}}
  few: {share: tenant, retrieval: {retriever: handbook, top_k: 1}}
  strict: {share: tenant, retrieval: {retriever: handbook, top_k: 4, min_score: 0.75}}
  worded: {share: tenant, retrieval: {retriever: handbook, top_k: 4, template: "{documents} - {question}"}}
  lenient: {share: tenant, retrieval: {retriever: open, top_k: 4}}
  personal: {share: user, retrieval: {retriever: handbook, top_k: 4}}
  permitted: {share: permissions, retrieval: {retriever: handbook, top_k: 4}}
""",
    {},
)
BACKENDS = {"one": build("one", CONFIG.backends["one"])}
ALICE = Principal("acme", "alice", frozenset({"hr"}))
GOLF = Principal("acme", "gerda", frozenset({"golf"}))
BOB = Principal("acme", "bob")
QUESTION = "parental leave"


class Room(Desk):
    """The desk, asked by RAG endpoints."""

    def __init__(self) -> None:
        super().__init__()
        managed = {s.name: Managed(CONFIG.retrievers[s.name], s, None) for s in (self.shelf, self.open)}
        auth = Identity(time.time).authenticator(CONFIG.auth)
        self.snapshot = Snapshot.of(CONFIG, 1, BACKENDS, auth, managed)
        self.grounding = Grounding(self.finder)

    def understood(
        self, question: Any = QUESTION, endpoint: str = "hr", principal: Principal = ALICE, **more: Any
    ) -> Ask:
        headers = {name.encode(): value.encode() for name, value in more.pop("headers", {}).items()}
        body = {"model": "gpt-x", "messages": [{"role": "user", "content": question}], **more}
        of = self.snapshot.endpoint(endpoint)
        return understand("chat", json.dumps(body).encode(), headers, "", of, principal, self.snapshot)

    async def ground(self, ask: Ask | None = None, visit: Visit | None = None, **asked: Any) -> Ask:
        ask = ask or self.understood(**asked)
        retrieval = ask.endpoint.config.retrieval
        assert retrieval is not None
        return await self.grounding(visit or self.visit(ask.principal), ask, retrieval)

    async def key(self, **asked: Any) -> bytes:
        return (await self.ground(**asked)).key


@pytest.fixture
def room() -> Room:
    return Room()


def grounds_of(ask: Ask) -> Grounds:
    assert ask.grounds is not None
    return ask.grounds


def documents(ask: Ask) -> list[tuple[str, int]]:
    return [(r.document, r.position) for r in grounds_of(ask).references]


async def prompt(ask: Ask) -> str:
    body = await grounds_of(ask).compose(ask)
    return str(body["messages"][-1]["content"])


# Which pieces, and in which order


def reference(document: str, position: int = 0, score: float = 1.0, text: str = "", version: str = "1") -> Reference:
    return refer(Passage(document, version, position, text or f"{document} {position}", score))


def test_pieces_are_in_the_order_of_their_documents_and_not_of_their_scores() -> None:
    found = [reference("b", 1, 0.9), reference("a", 0, 0.8), reference("b", 0, 0.7), reference("B", 0, 0.6)]
    for order in (found, found[::-1]):
        assert [(r.document, r.position) for r in chosen_of(order, None)] == [("B", 0), ("a", 0), ("b", 0), ("b", 1)]


def test_scores_change_neither_the_choice_nor_the_digests() -> None:
    one = [reference("a", score=0.9), reference("b", score=0.1)]
    two = [reference("b", score=0.8), reference("a", score=0.2)]
    assert [r.digest for r in chosen_of(one, None)] == [r.digest for r in chosen_of(two, None)]


def test_a_piece_that_was_found_twice_is_there_once() -> None:
    assert len(chosen_of([reference("a", 0, 0.9, "same"), reference("a", 0, 0.5, "same")], None)) == 1
    assert len(chosen_of([reference("a", 0, 0.9, "same"), reference("b", 0, 0.9, "same")], None)) == 2


@pytest.mark.parametrize(
    ("min_score", "left"),
    [(None, 3), (0.5, 2), (0.51, 1), (-1.0, 3), (2.0, 0)],
    ids=["none", "at", "over", "all", "no"],
)
def test_what_does_not_fit_well_enough_is_left_out(min_score: float | None, left: int) -> None:
    found = [reference("a", score=0.9), reference("b", score=0.5), reference("c", score=-0.2)]
    assert [r.document for r in chosen_of(found, min_score)] == ["a", "b", "c"][:left]


async def test_a_request_rests_on_what_is_found_for_its_question(room: Room) -> None:
    ask = await room.ground()
    assert documents(ask) == [("hr/pay.md", 0), ("leave.md", 0), ("leave.md", 1)]
    assert grounds_of(ask).documents == (
        *("handbook/hr/pay.md", "handbook/hr/pay.md@1", "handbook/leave.md", "handbook/leave.md@7"),
    )
    assert grounds_of(ask).shown == "handbook/hr/pay.md@1, handbook/leave.md@7"
    assert len(documents(await room.ground(endpoint="few"))) == 1
    assert documents(await room.ground(endpoint="strict")) == [("hr/pay.md", 0), ("leave.md", 0)]


async def test_the_last_user_turn_is_searched_for(room: Room) -> None:
    messages = [
        {"role": "user", "content": "pay"},
        {"role": "assistant", "content": "?"},
        {"role": "user", "content": " Unpaid "},
    ]
    await room.ground(messages=messages)
    assert room.shelf.searches == [("Unpaid", frozenset({"hr"}))]


@pytest.mark.parametrize("question", ["", "  ", None, [{"type": "image_url", "image_url": {"url": "x"}}]], ids=repr)
async def test_a_request_that_asks_nothing_rests_on_nothing(room: Room, question: Any) -> None:
    visit, ask = room.visit(), room.understood(question)
    grounded = await room.ground(ask, visit)
    assert grounded is ask
    assert room.shelf.searches == []
    assert [(t.name, t.result, t.why) for t in visit.decision.tiers] == [("retrieval", "skipped", "no_question")]


# Keys


def test_keys_of_requests_without_documents_are_what_they_were(room: Room) -> None:
    """From before there were retrievers: stores that are full must not become empty."""
    was = {
        "default": "33dbc49b2b2e1f77042bf578d9f302d0e547443deaff3c8af85c5359ffc7196d",
        "tolerant": "447767df68286d1bf7c9d3e05d371654b80b0f863a8cf207532a37f381fadebe",
    }
    asked = {"default": "Hello?", "tolerant": "Hello?"}
    found = {e: room.understood(asked[e], e).key.hex() for e in was}
    assert found == was
    assert request_key(**ARGUMENTS, chunks=None).hex() == PINNED


def test_the_key_with_documents_is_the_same_in_every_process() -> None:
    chunks = [bytes([n]) * 32 for n in (1, 2)]
    assert request_key(**ARGUMENTS, chunks=chunks).hex() == PINNED_WITH_CHUNKS
    assert refer(Passage("leave.md", "7", 3, "Leave is long.", 0.5, "Leave")).digest.hex() == PINNED_CHUNK


PINNED_WITH_CHUNKS = "50d0e19d133380599172e0d9093e6cf1c1b285a3460a87c80120b03257694a41"
PINNED_CHUNK = "5ec4b059d5ca52aee19d7642f2ac276b851655875ca32f1aa912568fafcaea1c"


def test_no_document_found_is_another_key_than_none_asked_for() -> None:
    keys = [request_key(**ARGUMENTS, chunks=chunks) for chunks in (None, [], [b"\1" * 32], [b"\1" * 32, b"\2" * 32])]
    assert len(set(keys)) == len(keys)


async def test_whoever_is_given_the_same_pieces_has_the_same_key(room: Room) -> None:
    """Other permissions, another order, other scores: what counts is which pieces."""
    room.shelf.put("hr/pay.md", "Nothing of the kind.", needs=["hr"])
    key = await room.key()
    assert await room.key(principal=GOLF) == await room.key(principal=BOB) == key
    assert await room.key(principal=OPEN) != key, "of another tenant"
    assert len(room.shelf.searches) == 3, "golf makes no difference to what is found here"


async def test_scopes_stay_as_narrow_as_the_endpoint_has_them(room: Room) -> None:
    room.shelf.put("hr/pay.md", "Nothing of the kind.", needs=["hr"])
    for endpoint in ("personal", "permitted"):
        assert await room.key(endpoint=endpoint) != await room.key(endpoint=endpoint, principal=BOB)


async def test_whoever_is_given_other_pieces_has_another_key(room: Room) -> None:
    assert await room.key() != await room.key(principal=BOB)
    assert documents(await room.ground(principal=BOB)) == [("leave.md", 0), ("leave.md", 1)]


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Parental leave is short.\n\nUnpaid leave is short.", "version": "8"},
        {"version": "8"},
        {"title": "Holidays", "version": "8"},
        {"needs": ["board"]},
        None,
    ],
    ids=["text", "version", "title", "forbidden", "deleted"],
)
async def test_a_change_of_a_document_that_was_found_is_another_key(room: Room, change: Json | None) -> None:
    before = await room.key()
    document = room.shelf.documents.pop("leave.md")
    if change is not None:
        made = {"text": document.text, "version": document.version, "title": document.title, **change}
        room.shelf.put("leave.md", made.pop("text"), **made)
    assert await room.key() != before


async def test_a_change_of_another_document_is_none(room: Room) -> None:
    before = await room.key()
    room.shelf.put("bikes.md", "Bicycles everywhere.")
    assert await room.key() == before
    assert len(room.shelf.searches) == 2, "but it is searched anew"


async def test_a_new_document_that_fits_is_another_key(room: Room) -> None:
    before = await room.key()
    room.shelf.put("new.md", "parental leave for all")
    assert await room.key() != before


async def test_another_template_another_retriever_and_another_endpoint_are_other_keys(room: Room) -> None:
    room.open.documents = dict(room.shelf.documents)
    keys = [await room.key(endpoint=e) for e in ("hr", "worded", "strict", "lenient")]
    assert len(set(keys)) == 4
    settings = {room.snapshot.endpoint(e).settings for e in ("hr", "worded", "lenient", "default")}
    assert len(settings) == 4, "the retriever's name is in what a document is called"


async def test_the_semantic_context_is_that_of_the_pieces(room: Room) -> None:
    """A question that means the same may be answered alike where the same pieces were found, and only there."""

    async def context(question: str, principal: Principal = ALICE) -> bytes:
        query = read_question(await room.ground(question=question, principal=principal))
        assert not isinstance(query, str), query
        return query.context

    assert await context("parental leave") == await context("leave parental")
    assert await context("parental leave") != await context("parental leave", BOB)
    assert await context("parental leave") != await context("unpaid")


async def test_why_tells_of_other_documents(room: Room) -> None:
    one, same, two = [sketch(await room.ground(principal=p), b"secret" * 8) for p in (ALICE, ALICE, BOB)]
    assert "documents" in one.names
    assert one.digests == same.digests != two.digests
    assert "documents" not in sketch(room.understood(endpoint="default"), b"secret" * 8).names


# The prompt


async def test_the_prompt_holds_the_pieces_and_then_the_question(room: Room) -> None:
    text = await prompt(await room.ground())
    places = [text.index(part) for part in ("Pay during", "Parental leave is long", "Unpaid leave is", "Question: ")]
    assert places == sorted(places)
    assert text.endswith(f"Question: {QUESTION}")
    assert '<document name="handbook/leave.md@7">\nLeave\nParental leave is long.\n</document>' in text
    assert await prompt(await room.ground(endpoint="worded")) != text


async def test_two_questions_with_the_same_pieces_share_all_but_their_ends(room: Room) -> None:
    one, two = [await prompt(await room.ground(question=q)) for q in ("parental leave", "leave parental pay")]
    assert one.removesuffix("parental leave") == two.removesuffix("leave parental pay")


async def test_where_nothing_is_found_the_prompt_says_so(room: Room) -> None:
    ask = await room.ground(question="volcano")
    assert grounds_of(ask).shown == ""
    assert NONE_FOUND in await prompt(ask)
    assert grounds_of(ask).titles() == {}


async def test_texts_are_read_only_when_an_answer_is_made(room: Room) -> None:
    await room.ground()
    ask = await room.ground()
    await room.cache.purge(Match(documents=frozenset({"handbook/leave.md"})))
    assert len(room.shelf.searches) == 1
    assert "Parental leave is long" in await prompt(ask)
    assert len(room.shelf.searches) == 2, "a text that is gone is searched for once more"


async def test_a_document_that_changes_between_finding_and_answering_is_an_error(room: Room) -> None:
    """The key, and whoever waits under it, is of the old text."""
    await room.ground()
    ask = await room.ground()
    await room.cache.purge(Match(documents=frozenset({"handbook/leave.md"})))
    room.shelf.put("leave.md", "Parental leave is gone.", version="8")
    with pytest.raises(ApiError) as caught:
        await prompt(ask)
    assert (caught.value.status, caught.value.code) == (503, "documents_changed")
    assert "retry-after" in caught.value.headers
    assert "Parental" not in str(caught.value)
    assert "Parental leave is gone." in await prompt(await room.ground())


async def test_another_document_that_is_found_meanwhile_is_not_in_the_prompt(room: Room) -> None:
    await room.ground(principal=BOB)
    ask = await room.ground(principal=BOB)
    await room.cache.purge(Match(documents=frozenset({"handbook/leave.md"})))
    room.shelf.put("new.md", "parental leave for all")
    text = await prompt(ask)
    assert "Parental leave is long" in text
    assert "for all" not in text


async def test_what_may_be_replayed_ends_with_the_corpus_and_with_the_results(room: Room) -> None:
    room.shelf.lasting = 300.0
    grounds = grounds_of(await room.ground())
    assert grounds.corpus is room.shelf
    assert grounds.generation == room.shelf.generation
    assert grounds.expires == room.clock() + 300
    room.shelf.put("new.md", "anything")
    assert grounds.generation != room.shelf.generation
    assert Grounds(grounds.retrieval).expires == inf


def test_documents_are_cited_by_their_label_or_address() -> None:
    retrieval = CONFIG.endpoints["hr"].retrieval
    assert retrieval is not None
    found = [
        refer(Passage("a b.md", "1", 0, "x", 1.0, "First heading")),
        refer(Passage("a b.md", "1", 1, "y", 1.0, "Second heading")),
        refer(Passage("https://wiki/x?a=1", "1", 0, "z", 1.0, "")),
        refer(Passage("javascript:alert(1)", "1", 0, "z", 1.0, "")),
    ]
    assert Grounds(retrieval, tuple(found)).titles() == {
        "handbook/a%20b.md@1": "First heading",
        "https://wiki/x?a=1": "https://wiki/x?a=1",
        "handbook/javascript%3Aalert%281%29@1": "javascript:alert(1)",
    }


# Failures


FAILURE = RetrieverError("unavailable", "the shelf has fallen")


async def test_a_failure_is_an_error_where_the_policy_is_to_fail(room: Room) -> None:
    room.shelf.fails = FAILURE
    with pytest.raises(RetrieverFailed) as caught:
        await room.ground()
    assert caught.value.status == 502


async def test_a_failure_is_an_answer_without_where_that_is_the_policy(room: Room) -> None:
    room.open.fails = FAILURE
    visit, ask = room.visit(), room.understood(endpoint="lenient")
    grounded = await room.ground(ask, visit)
    assert grounded.bypass == "retriever_down"
    assert grounds_of(grounded).shown == "unavailable"
    assert UNREACHABLE in await prompt(grounded)
    assert [(t.name, t.result, t.why) for t in visit.decision.tiers] == [("retrieval", "miss", "unavailable")]
    room.open.fails = None
    assert (await room.ground(ask)).bypass is None


async def test_what_bypasses_the_cache_by_itself_says_so_all_the_same(room: Room) -> None:
    room.open.fails = FAILURE
    ask = replace(room.understood(endpoint="lenient"), bypass="no_store")
    assert (await room.ground(ask)).bypass == "no_store"


@pytest.mark.parametrize("reason", ["starting", "unavailable", "deadline", "bad_results", "busy", "failed"])
async def test_every_failure_of_a_retriever_is_under_the_policy(room: Room, reason: Any) -> None:
    room.open.fails = RetrieverError(reason, "no")
    assert grounds_of(await room.ground(endpoint="lenient")).texts is None


async def test_what_is_no_failure_of_the_retriever_is_not_under_the_policy(room: Room) -> None:
    with pytest.raises(ApiError) as caught:
        await room.ground(endpoint="lenient", headers={"cache-control": "only-if-cached"})
    assert (caught.value.status, caught.value.code) == (504, "not_cached")
    assert room.open.searches == []


async def test_cached_results_outlive_the_retriever(room: Room) -> None:
    await room.ground()
    room.shelf.fails = FAILURE
    assert documents(await room.ground()) != []


# A document that is taken back


async def test_a_purge_after_the_search_meets_the_answer_that_is_made_of_it(room: Room) -> None:
    """Also where it comes before the call to the backend begins: the document must not live on in an answer."""
    cache = room.cache
    kitchen = Kitchen(cache, Semantics(cache, room.clock, Unready), room.clock, lambda: room.snapshot)
    visit = room.visit(ALICE)
    ask = await room.ground(visit=visit)
    assert not Fill(kitchen, visit, ask).outdated()
    await cache.purge(Match(documents=frozenset({grounds_of(ask).documents[0]})))
    assert Fill(kitchen, visit, ask).outdated()
    assert not Fill(kitchen, visit, await room.ground(visit=visit)).outdated()
