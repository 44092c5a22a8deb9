"""`GET /admin/decisions`: filters, pages, and who sees what."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.api.decisions import LOOKED_AT, OUTCOMES, _select
from gateway.decisions import Decision, new_request_id
from gateway.principal import Principal
from gateway.ring import Ring
from gateway.wanted import Wanted
from tests.support.gateway import ALICE, BOB, EVE, Running, config_text, running
from tests.support.traffic import error_of
from tests.support.upstream import Upstream, numbered

Json = dict[str, Any]


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra="  plain: {cache: {semantic: off}}\n")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def asked(up: Upstream, gw: Running) -> dict[str, str]:
    """What there is, the oldest first: name -> id."""
    up.script = numbered
    requests: dict[str, Json] = {
        "alice": {},
        "alice again": {},
        "bob": {"key": BOB, "path": "/personal/v1", "model": "Other-Model"},
        "eve": {"key": EVE},
        "bypass": {"store": True},
        "refused": {"key": "nobody's"},
        "not cached": {"headers": {"cache-control": "only-if-cached"}, "temperature": 1},
        "no endpoint": {"path": "/nowhere/v1"},
        "last": {"path": "/rr/v1"},
    }
    return {name: gw.chat("a", **more).headers["x-request-id"] for name, more in requests.items()}


def page(gw: Running, *, key: str | None = None, **query: Any) -> Json:
    more = {} if key is None else {"key": key}
    response = gw.admin("GET", "/admin/decisions", params=query, **more)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    found = dict(response.json())
    assert found.keys() == {"decisions", "next"}
    return found


def listed(gw: Running, asked: dict[str, str], **query: Any) -> list[str]:
    """The names of what is listed, newest first."""
    names = {id: name for name, id in asked.items()}
    return [names[d["id"]] for d in page(gw, **query)["decisions"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"endpoint": "rr"}, ["last"]),
        ({"endpoint": "personal"}, ["bob"]),
        ({"endpoint": "nowhere"}, []),
        ({"tenant": "globex"}, ["eve"]),
        ({"tenant": "acme", "endpoint": "default"}, ["not cached", "bypass", "alice again", "alice"]),
        ({"model": "Other-Model"}, ["bob"]),
        ({"model": "other-model"}, []),
        ({"outcome": "exact"}, ["alice again"]),
        ({"outcome": "bypass"}, ["bypass"]),
        ({"outcome": "error"}, ["no endpoint", "refused"]),
        ({"outcome": "semantic"}, []),
        ({"status": "error"}, ["no endpoint", "not cached", "refused"]),
        ({"status": "ok", "tenant": "acme"}, ["last", "bypass", "bob", "alice again", "alice"]),
        ({"text": "OTHER-m"}, ["bob"]),
        ({"text": "eve"}, ["eve"]),
        ({"text": "not_cached"}, ["not cached"]),
        ({"text": "invalid_API"}, ["refused"]),
        ({"text": "%"}, []),
        ({"endpoint": "", "tenant": "", "model": "", "outcome": "", "status": "", "text": "", "limit": 1}, ["last"]),
        ({"of": "whatever", "limit": 1}, ["last"]),
    ],
    ids=str,
)
def test_filters(gw: Running, asked: dict[str, str], query: Json, expected: list[str]) -> None:
    assert listed(gw, asked, **query) == expected


def test_a_part_of_an_id_or_of_a_key_finds_it(gw: Running, asked: dict[str, str]) -> None:
    assert listed(gw, asked, text=asked["bob"].upper()) == ["bob"]
    (bob,) = page(gw, text=asked["bob"])["decisions"]
    assert listed(gw, asked, text=bob["key"][10:40].upper()) == ["bob"]


def test_the_parts_of_a_filter_are_not_patterns() -> None:
    d = Decision("req_1", 0.0, "default", "chat")
    d.model = "a.c"
    assert Wanted(text="a.c").accepts(d)
    assert not Wanted(text="abc").accepts(d)


def test_pages_join_without_gap_or_overlap(gw: Running, asked: dict[str, str]) -> None:
    everything = listed(gw, asked)
    assert everything == list(reversed(asked))
    for limit in (1, 2, 3, len(asked), 1000):
        found, cursor = [], {}
        while True:
            got = page(gw, limit=limit, **cursor)
            assert len(got["decisions"]) <= limit
            found += [d["id"] for d in got["decisions"]]
            if got["next"] is None:
                break
            assert got["next"] == got["decisions"][-1]["id"]
            cursor = {"before": got["next"]}
        assert found == [asked[name] for name in everything], limit


def test_pages_of_what_is_filtered(gw: Running, asked: dict[str, str]) -> None:
    first = page(gw, limit=2, status="error")
    assert [d["error"] for d in first["decisions"]] == ["endpoint_not_found", "not_cached"]
    second = page(gw, limit=2, status="error", before=first["next"])
    assert [d["error"] for d in second["decisions"]] == ["invalid_api_key"]
    assert second["next"] is None


def test_what_is_newer_than_one(gw: Running, asked: dict[str, str]) -> None:
    assert listed(gw, asked, after=asked["not cached"]) == ["last", "no endpoint"]
    assert listed(gw, asked, after=asked["last"]) == []
    assert listed(gw, asked, after=asked["alice"], before=asked["eve"]) == ["bob", "alice again"]
    assert listed(gw, asked, after=asked["eve"], before=asked["alice"]) == []


def test_a_bound_that_is_not_kept_is_older_than_all(gw: Running, asked: dict[str, str]) -> None:
    gone = "req_0123456789ab_1"
    assert listed(gw, asked, before=gone) == []
    assert listed(gw, asked, after=gone) == list(reversed(asked))


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *(("limit", value) for value in ("0", "-1", "1001", "x", "1e3", "")),
        *(("outcome", value) for value in ("hit", "EXACT", "exact,miss")),
        *(("status", value) for value in ("200", "failed")),
        *(
            (name, value)
            for name in ("before", "after")
            for value in ("42", "req_", "req_1f_x", "req_1f_1 ", "x" * 999)
        ),
        ("text", "x" * 257),
    ],
    ids=lambda value: str(value)[:12],
)
def test_what_cannot_be_read_is_refused_by_name(gw: Running, param: str, value: str) -> None:
    error = error_of(gw.admin("GET", "/admin/decisions", params={param: value}), 400)
    assert error["param"] == param
    assert f"`{param}`" in error["message"]


def test_the_outcomes_that_can_be_asked_for() -> None:
    assert OUTCOMES == ("exact", "semantic", "joined", "stale", "miss", "bypass", "error")


def test_a_tenants_admin_sees_its_own(gw: Running, asked: dict[str, str]) -> None:
    assert listed(gw, asked, key=EVE) == ["eve"]
    assert listed(gw, asked, key=EVE, tenant="globex") == ["eve"]
    error_of(gw.admin("GET", "/admin/decisions", key=EVE, params={"tenant": "acme"}), 403)
    for name in ("alice", "refused"):
        error_of(gw.admin("GET", "/admin/decisions", key=EVE, params={"id": asked[name]}), 404)
        # As a bound it says no more than one that never was.
        assert listed(gw, asked, key=EVE, after=asked["last"]) == ["eve"]
        assert listed(gw, asked, key=EVE, before=asked["last"]) == []
    error_of(gw.admin("GET", "/admin/decisions", key=ALICE), 403)


async def test_a_long_list_is_looked_through_without_a_stall() -> None:
    """A hundred thousand: the event loop gets its turns, and nothing is missed though others are added meanwhile."""
    ring, principal = Ring(100_000), Principal("acme", "alice")
    for _ in range(100_000):
        d = Decision(new_request_id(), 0.0, "default", "chat")
        d.principal, d.model, d.outcome = principal, "test-model", "exact"
        ring.add(d)
    oldest = list(ring)[-1]
    oldest.error = "needle"
    turns = 0

    async def ticking() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            ring.add(Decision(new_request_id(), 0.0, "", ""))

    ticker = asyncio.create_task(ticking())
    found = await _select(ring.copy(), Wanted(text="needle"), None, None, 10)
    ticker.cancel()
    assert found == [oldest]
    assert turns >= 100_000 / LOOKED_AT - 1
    assert LOOKED_AT <= 1_000
