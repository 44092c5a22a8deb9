"""For whom: an answer serves questions of its own scope only, by meaning as by the letter, and a hit is a request like
any other to keys, delegation and limits."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.config.keys import digest_key
from tests.support.gateway import BOB, EVE, Running, config_text, running
from tests.support.semantic import ASKED, REWORDED, TWICE_REWORDED, Json, Room, by_wording, said
from tests.support.traffic import error_of, outcome, text_of, upstream_calls
from tests.support.upstream import Upstream

ANN, WEBAPP, LIMITED, THRIFTY, LEAVING = (
    f"rf-test-{n}-key" for n in ("ann", "webapp", "limited", "thrifty", "leaving")
)
MORE = f"""
    - {{key: {ANN}, tenant: acme, user: ann, permissions: [hr]}}
    - {{key: {WEBAPP}, tenant: acme, user: webapp, permissions: [hr, eng], delegate: true}}
    - {{key: {LIMITED}, tenant: acme, user: lee, limits: {{requests: 4/min}}}}
    - {{key: {THRIFTY}, tenant: acme, user: tom, limits: {{tokens: 30/min, usd: 0.00003/day}}}}
    - {{key: {LEAVING}, tenant: acme, user: lou}}
"""
EXTRA = """
  acme_only: {allow: {tenants: [acme]}}
  another: {mode: stream, share: tenant}
prices: {test-model: {input: 1.0, output: 2.0}, other-model: {input: 1.0, output: 2.0}}
"""
SHARES = {"user": "/personal/v1", "permissions": "/permitted/v1", "tenant": "/v1"}
# Whom alice (acme, hr) shares answers with, by what the endpoint says.
SHARED = {"user": set(), "permissions": {ANN}, "tenant": {ANN, BOB}}


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    embedder = by_wording()
    text = config_text(up.url, extra=EXTRA).replace("\nendpoints:", f"{MORE}\nendpoints:", 1)
    with running(text, embedders=lambda config: embedder) as gateway:
        yield gateway


@pytest.fixture
def room(gw: Running) -> Room:
    return Room(gw)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("key", [ANN, BOB, EVE])
def test_a_paraphrase_of_somebody_else(gw: Running, share: str, key: str) -> None:
    room = Room(gw, SHARES[share])
    text = room.told(ASKED)
    room.serves(REWORDED, text)
    only_if_cached = {"cache-control": "only-if-cached"}
    if key in SHARED[share]:
        room.serves(REWORDED, text, key=key)
        room.serves(TWICE_REWORDED, text, key=key)
        return
    for question in (ASKED, REWORDED, TWICE_REWORDED):
        error_of(room.ask(question, key=key, headers=only_if_cached), 504)
    own = text_of(room.refuses(TWICE_REWORDED, key=key))
    assert own != text
    room.serves(REWORDED, own, key=key)
    room.serves(REWORDED, text)


def test_public_answers_are_not_shared_by_meaning(gw: Running) -> None:
    room = Room(gw, "/everyone/v1")
    room.told(ASKED)
    assert not said(gw, room.refuses(REWORDED))


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/another/v1"},
        {"model": "other-model"},
        {"temperature": 0.5},
        {"seed": 7},
        {"max_tokens": 5},
        {"stop": ["\n"]},
        {"response_format": {"type": "json_object"}},
        {"a_field_nobody_knows": 1},
        {"headers": {"openai-beta": "x=1"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_else_differs_is_another_context(room: Room, change: Json) -> None:
    text = room.told(ASKED)
    own = room.told(REWORDED, **change)
    assert own != text
    room.serves(TWICE_REWORDED, own, **change)
    room.serves(TWICE_REWORDED, text)


def test_what_is_left_out_of_the_key_makes_no_context(room: Room) -> None:
    text = room.told(ASKED, user="one", metadata={"a": "b"})
    room.serves(REWORDED, text, user="two", metadata={"a": "c"}, stream=True)


# Delegation, keys, limits


def behalf(room: Room, person: str, question: str) -> httpx.Response:
    return room.ask(question, key=WEBAPP, headers={"x-refrain-on-behalf": person})


def test_people_behind_one_key(gw: Running, up: Upstream) -> None:
    """With equal rights they share, with others they do not; nobody's own are found by another."""
    permitted, personal = Room(gw, "/permitted/v1"), Room(gw, "/personal/v1")
    first = behalf(permitted, "user=dan; permissions=hr", ASKED)
    with upstream_calls(up, 0):
        same = behalf(permitted, "user=eli; permissions=hr", REWORDED)
    assert (outcome(same), text_of(same)) == ("semantic", text_of(first))
    permitted.serves(REWORDED, text_of(first))  # alice, who has the same
    for person in ("user=fay; permissions=eng", "user=fay; permissions=hr,eng", "user=fay"):
        other = behalf(permitted, person, REWORDED)
        assert (outcome(other), text_of(other) != text_of(first)) == ("miss", True)
    mine = text_of(behalf(personal, "user=dan; permissions=hr", ASKED))
    theirs = behalf(personal, "user=eli; permissions=hr", REWORDED)
    assert (outcome(theirs), text_of(theirs) != mine) == ("miss", True)
    again = behalf(personal, "user=dan; permissions=hr", TWICE_REWORDED)
    assert (outcome(again), text_of(again)) == ("semantic", mine)


def test_a_header_chooses_no_scope(gw: Running) -> None:
    room = Room(gw, "/personal/v1")
    text = room.told(ASKED)
    posing = {"x-refrain-on-behalf": "user=alice", "x-tenant": "acme", "x-user": "alice"}
    assert text_of(room.refuses(REWORDED, key=BOB, headers=posing)) != text


def test_a_revoked_key_gets_nothing_by_an_alias(room: Room) -> None:
    text = room.told(ASKED)
    room.serves(REWORDED, text, key=LEAVING)
    id = digest_key(LEAVING).hex()[:12]
    assert room.gw.admin("POST", "/admin/keys/revoke", json={"id": id}).status_code == 200
    for question in (REWORDED, TWICE_REWORDED, ASKED):
        answer = room.ask(question, key=LEAVING)
        error_of(answer, 401)
        assert text not in answer.text
    room.serves(REWORDED, text)


def test_whom_the_endpoint_does_not_allow(gw: Running) -> None:
    room = Room(gw, "/acme_only/v1")
    text = room.told(ASKED)
    assert text not in room.ask(REWORDED, key=EVE).text
    error_of(room.ask(REWORDED, key=EVE), 403)
    error_of(room.ask(REWORDED, key="rf-nobody"), 401)


def test_a_hit_counts_as_a_request(room: Room) -> None:
    text = room.told(ASKED)
    left = [room.serves(REWORDED, text, key=LIMITED).headers["x-ratelimit-remaining-requests"] for _ in range(4)]
    assert left == ["3", "2", "1", "0"]
    for question in (REWORDED, TWICE_REWORDED):
        refused: Any = room.ask(question, key=LIMITED)
        assert text not in refused.text
        assert int(refused.headers["retry-after"]) > 0
        error_of(refused, 429)


def test_a_hit_takes_no_tokens_and_no_money(room: Room) -> None:
    """A call would take 18 tokens, so that two of them leave nothing."""
    text = room.told(ASKED)
    for question in (REWORDED, REWORDED, TWICE_REWORDED, REWORDED):
        head = room.serves(question, text, key=THRIFTY).headers
        assert head["x-ratelimit-remaining-tokens"] == "30"
        assert float(head["x-ratelimit-remaining-usd"]) == pytest.approx(30e-6)
