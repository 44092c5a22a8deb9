"""The admin API: who may, what it shows, and what a purge removes."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway import ADMIN, ALICE, BOB, EVE, Running, config_text, running
from tests.support.traffic import byte_identical, decision, error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, numbered

Json = dict[str, Any]


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def served(request: pytest.FixtureRequest, up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path_factory.mktemp('store')}/cache.db"
    with running(config_text(up.url, store=url)) as gateway:
        yield gateway


@pytest.fixture
def gw(served: Running) -> Running:
    """Without any entries: purges are about all that is there."""
    served.clock.frozen = 1_003_600.0
    served.admin("POST", "/admin/purge", json={"older_than": "0s"})
    served.clock.frozen = 1_000_000.0
    return served


def purge(gw: Running, *, by: str = ADMIN, **criteria: Any) -> int:
    response = gw.admin("POST", "/admin/purge", key=by, json=criteria)
    assert response.status_code == 200, response.text
    assert response.json().keys() == {"purged"}
    return int(response.json()["purged"])


def entries(gw: Running, *, key: str = ADMIN, **query: Any) -> list[Json]:
    response = gw.admin("GET", "/admin/entries", key=key, params=query)
    assert response.status_code == 200, response.text
    return list(response.json()["entries"])


# What there is: name -> how it is asked for.
ASKED: dict[str, Json] = {
    "alice": {"key": ALICE, "path": "/personal/v1", "headers": {"x-refrain-tags": "red, green"}},
    "bob": {"key": BOB, "path": "/personal/v1", "headers": {"x-refrain-tags": "green"}},
    "eve": {"key": EVE, "path": "/personal/v1"},
    "other endpoint": {"key": ALICE, "path": "/rr/v1", "headers": {"x-refrain-tags": "red"}},
    "other model": {"key": ALICE, "path": "/personal/v1", "model": "other-model"},
}


def fill(gw: Running) -> None:
    for name, how in ASKED.items():
        assert outcome(gw.chat(name, **how)) == "miss"
        gw.clock.offset += 10


def left(gw: Running) -> set[str]:
    """What is still there, by the way of a request and by that of the list."""
    found = set()
    for name, how in ASKED.items():
        headers = {**how.get("headers", {}), "cache-control": "only-if-cached"}
        if gw.chat(name, **{**how, "headers": headers}).status_code == 200:
            found.add(name)
    assert len(entries(gw)) == len(found)
    return found


EVERYTHING = set(ASKED)


@pytest.mark.parametrize(
    ("criteria", "gone"),
    [
        ({"tags": ["red"]}, {"alice", "other endpoint"}),
        ({"tags": ["red", "green"]}, {"alice", "bob", "other endpoint"}),
        ({"tags": ["Red"]}, set()),
        ({"endpoint": "rr"}, {"other endpoint"}),
        ({"model": "other-model"}, {"other model"}),
        ({"tenant": "acme"}, EVERYTHING - {"eve"}),
        ({"tenant": "globex"}, {"eve"}),
        ({"user": "bob"}, {"bob"}),
        ({"older_than": "0s"}, EVERYTHING),
        ({"older_than": "35s"}, {"alice", "bob"}),
        ({"older_than": "1h"}, set()),
        ({"user": "alice", "endpoint": "personal"}, {"alice", "other model"}),
        ({"user": "alice", "tags": ["green"], "model": "test-model"}, {"alice"}),
        ({"tenant": "globex", "user": "alice"}, set()),
        ({"documents": ["handbook/leave.md"]}, set()),
        ({"key": "00" * 32}, set()),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_a_purge_removes_what_meets_all_criteria(gw: Running, criteria: Json, gone: set[str]) -> None:
    fill(gw)
    assert purge(gw, **criteria, dry_run=True) == len(gone)
    assert left(gw) == EVERYTHING
    assert purge(gw, **criteria) == len(gone)
    assert left(gw) == EVERYTHING - gone
    assert purge(gw, **criteria) == 0


def test_a_purge_by_key(gw: Running) -> None:
    fill(gw)
    (entry,) = entries(gw, endpoint="rr")
    assert purge(gw, key=entry["key"]) == 1
    assert left(gw) == EVERYTHING - {"other endpoint"}


BAD = {
    "nothing": b"{}",
    "dry_run alone": b'{"dry_run": true}',
    "no object": b"[]",
    "no JSON": b"tags=red",
    "empty": b"",
    "unknown": b'{"prefix": "a"}',
    "a misspelt criterion beside a good one": b'{"tenant": "acme", "endpiont": "rr"}',
    "number": b'{"model": 1}',
    "null": b'{"model": null}',
    "empty text": b'{"tenant": ""}',
    "empty tags": b'{"tags": []}',
    "tags of numbers": b'{"tags": [1]}',
    "key too short": b'{"key": "abcd"}',
    "key no hex": b'{"key": "zz"}',
    "older_than a number": b'{"older_than": 60}',
    "older_than without unit": b'{"older_than": "60"}',
    "older_than negative": b'{"older_than": "-60s"}',
    "dry_run text": b'{"tenant": "acme", "dry_run": "no"}',
    "dry_run number": b'{"tenant": "acme", "dry_run": 0}',
    "duplicate": b'{"tenant": "acme", "tenant": "globex"}',
    "NaN": b'{"older_than": NaN}',
}


def test_a_bad_purge_is_refused_and_removes_nothing(gw: Running) -> None:
    fill(gw)
    for name, body in BAD.items():
        error = error_of(gw.admin("POST", "/admin/purge", content=body), 400)
        assert error["message"], name
    assert left(gw) == EVERYTHING


def test_a_purge_with_a_member_as_criterion_keeps_to_its_name(gw: Running) -> None:
    """The same user name in two tenants: the tenant decides, where it is given."""
    gw.chat("a", key=ALICE)
    gw.chat("a", key=EVE)
    assert purge(gw, by=EVE, user="alice") == 0
    assert purge(gw, by=EVE, tenant="globex") == 1
    assert [e["tenant"] for e in entries(gw)] == ["acme"]


def test_a_purged_answer_is_gone_for_every_form(gw: Running, up: Upstream) -> None:
    for user in ("a", "b"):
        for stream in (False, True, False, True):
            gw.chat("hello", stream=stream, user=user)
    assert purge(gw, endpoint="default") == 1
    with upstream_calls(up, 1):
        assert outcome(gw.chat("hello", stream=True, user="a")) == "miss"
    with upstream_calls(up, 0):
        assert outcome(gw.chat("hello", user="b")) == "exact"


def test_a_purge_while_an_answer_is_being_made(gw: Running, up: Upstream) -> None:
    """It is delivered, but not stored: what was asked before the purge must not come back after it."""
    gate = threading.Event()

    def gated(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.gate = gate
        return reply

    up.script = gated
    answers: list[Any] = []
    before = up.calls
    asking = threading.Thread(target=lambda: answers.append(gw.chat("slow", key=ALICE)))
    asking.start()
    until(lambda: up.calls > before)
    gw.clock.offset += 1
    assert purge(gw, tenant="acme") == 0
    gate.set()
    asking.join()
    assert outcome(answers[0]) == "miss"
    assert decision(gw, answers[0])["stored"] is False
    up.script = numbered
    with upstream_calls(up, 1):
        assert outcome(gw.chat("slow", key=ALICE)) == "miss"


def test_a_dry_run_during_a_request_changes_nothing(gw: Running, up: Upstream) -> None:
    gw.chat("a")
    gw.chat("a")
    assert purge(gw, tenant="acme", dry_run=True) == 1
    with upstream_calls(up, 0):
        assert byte_identical(gw, gw.chat("a"))


# What it shows


def test_entries_show_no_text(gw: Running) -> None:
    answer = text_of(gw.chat("a very secret question", headers={"x-refrain-tags": "b,a"}))
    gw.clock.offset += 60
    (entry,) = entries(gw)
    assert (
        entry.items()
        >= {
            "endpoint": "default",
            "model": "test-model",
            "backend": "fake",
            "tenant": "acme",
            "user": "alice",
            "age": 60,
            "tokens": 18,
            "documents": [],
        }.items()
    )
    assert sorted(entry["tags"]) == ["a", "b"]
    assert len(entry["key"]) == 64
    assert entry["expires"] - entry["created"] == 86_400
    for secret in ("secret question", answer, ALICE):
        assert secret not in json.dumps(entry)


def test_entries_can_be_chosen_and_come_newest_first(gw: Running) -> None:
    fill(gw)
    assert len(entries(gw)) == 5
    created = [e["created"] for e in entries(gw)]
    assert created == sorted(created, reverse=True)
    assert [e["endpoint"] for e in entries(gw, endpoint="rr")] == ["rr"]
    assert [e["model"] for e in entries(gw, model="other-model")] == ["other-model"]
    assert [e["user"] for e in entries(gw, user="bob")] == ["bob"]
    assert [e["tenant"] for e in entries(gw, tenant="globex")] == ["globex"]
    assert [e["model"] for e in entries(gw, limit=1)] == ["other-model"]
    for limit in ("0", "-1", "x", "1e3", "99999999"):
        error_of(gw.admin("GET", "/admin/entries", params={"limit": limit}), 400)


def test_a_tenant_admin_sees_its_own_tenant(gw: Running) -> None:
    fill(gw)
    eve = gw.chat("eve again", key=EVE)
    alice = gw.chat("alice again", key=ALICE)
    assert {e["tenant"] for e in entries(gw, key=EVE)} == {"globex"}
    assert len(entries(gw, key=EVE)) == 2
    error_of(gw.admin("GET", "/admin/entries", key=EVE, params={"tenant": "acme"}), 403)
    listed = gw.admin("GET", "/admin/decisions", key=EVE).json()["decisions"]
    assert {d["tenant"] for d in listed} == {"globex"}
    assert gw.admin("GET", "/admin/decisions", key=EVE, params={"id": eve.headers["x-request-id"]}).status_code == 200
    error_of(gw.admin("GET", "/admin/decisions", key=EVE, params={"id": alice.headers["x-request-id"]}), 404)
    eves, everyones = (sum(gw.admin("GET", "/admin/stats", key=k).json()["requests"].values()) for k in (EVE, ADMIN))
    gw.chat("one more", key=EVE)
    gw.chat("one more", key=ALICE)
    assert sum(gw.admin("GET", "/admin/stats", key=EVE).json()["requests"].values()) == eves + 1
    assert sum(gw.admin("GET", "/admin/stats").json()["requests"].values()) == everyones + 2


def test_decisions_newest_first(gw: Running) -> None:
    answers = [gw.chat(f"{i % 2}") for i in range(4)]
    listed = gw.admin("GET", "/admin/decisions", params={"limit": 4}).json()["decisions"]
    assert [d["id"] for d in listed] == [a.headers["x-request-id"] for a in reversed(answers)]
    assert [d["outcome"] for d in listed] == ["exact", "exact", "miss", "miss"]
    assert len(gw.admin("GET", "/admin/decisions", params={"limit": 3}).json()["decisions"]) == 3
    error_of(gw.admin("GET", "/admin/decisions", params={"id": "req_unknown"}), 404)


def test_decisions_say_why(gw: Running) -> None:
    """Each reason not to use the cache, or not to store, has a code."""
    asked: list[Json] = [
        {"store": True},
        {"path": "/uncached/v1"},
        {"path": "/careful/v1"},
        {"headers": {"cache-control": "no-store"}},
    ]
    for more in asked:
        record = decision(gw, gw.chat("why", **more))
        assert record["stored"] is False
        assert record["not_stored"]
        assert record["tiers"][0]["why"]
    assert decision(gw, gw.chat("why"))["stored"] is True


def test_the_ring_is_bounded(up: Upstream) -> None:
    with running(config_text(up.url, extra="decisions: {ring: 5}\n")) as gw:
        answers = [gw.chat("a") for _ in range(8)]
        listed = gw.admin("GET", "/admin/decisions").json()["decisions"]
        assert [d["id"] for d in listed] == [a.headers["x-request-id"] for a in reversed(answers[3:])]


def test_errors_are_on_record_too(gw: Running, up: Upstream) -> None:
    refused = gw.chat("a", headers={"cache-control": "only-if-cached"})
    record = decision(gw, refused)
    assert (record["status"], record["error"]) == (504, "not_cached")
