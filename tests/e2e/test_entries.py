"""The entries browser: finding what is stored, reading an answer, marking it wrong, and who sees that it was read."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.dashboard import person
from tests.support.gateway import ADMIN, ALICE, BOB, EVE, Running, config_text, running
from tests.support.traffic import error_of, outcome, text_of, until
from tests.support.upstream import Upstream, chat_answer, reply_for

Json = dict[str, Any]


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def served(request: pytest.FixtureRequest, up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path_factory.mktemp('store')}/cache.db"
    extra = "prices: {test-model: {input: 1.0, output: 2.0}}\n"
    with running(config_text(up.url, store=url, extra=extra)) as gateway:
        yield gateway


@pytest.fixture
def gw(served: Running) -> Running:
    served.admin("POST", "/admin/purge", json={"older_than": "0s"})
    return served


def entries(gw: Running, *, key: str = ADMIN, **query: Any) -> list[Json]:
    response = gw.admin("GET", "/admin/entries", key=key, params=query)
    assert response.status_code == 200, response.text
    return list(response.json()["entries"])


def fill(gw: Running) -> None:
    gw.chat("one", key=ALICE, path="/personal/v1", headers={"x-refrain-tags": "red-team,green"})
    gw.chat("two", key=BOB, path="/personal/v1", headers={"x-refrain-tags": "green"})
    gw.chat("three", key=EVE, path="/personal/v1")
    gw.chat("four", key=BOB, path="/rr/v1", model="Other-Model")


def lines(gw: Running) -> list[Json]:
    return list(gw.admin("GET", "/admin/audit").json()["lines"])


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, {"alice/personal", "bob/personal", "eve/personal", "bob/rr"}),
        ({"tag": "green"}, {"alice/personal", "bob/personal"}),
        ({"tag": "gree"}, set()),
        ({"tag": "green", "user": "bob"}, {"bob/personal"}),
        ({"document": "handbook/leave.md"}, set()),
        ({"text": "TEAM"}, {"alice/personal"}),
        ({"text": "glob"}, {"eve/personal"}),
        ({"text": "other-mod"}, {"bob/rr"}),
        ({"text": "bob"}, {"bob/personal", "bob/rr"}),
        ({"text": "bob", "endpoint": "rr"}, {"bob/rr"}),
        ({"text": "%"}, set()),
        ({"text": "' OR 1=1 --"}, set()),
        ({"text": "", "user": "bob", "endpoint": "", "tag": ""}, {"bob/personal", "bob/rr"}),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_finding_what_is_stored(gw: Running, query: Json, found: set[str]) -> None:
    fill(gw)
    assert {f"{e['user']}/{e['endpoint']}" for e in entries(gw, **query)} == found


def test_finding_by_the_beginning_of_a_key(gw: Running) -> None:
    fill(gw)
    whole = entries(gw, user="alice")[0]["key"]
    assert [e["key"] for e in entries(gw, text=whole[:16].upper())] == [whole]
    assert entries(gw, text=whole[1:17]) == []


def test_what_an_entry_has_cost(gw: Running) -> None:
    answer = gw.chat("one")
    (entry,) = entries(gw)
    assert entry["cost"]["usd"] == pytest.approx((11 * 1 + 7 * 2) / 1e6)
    assert entry["cost"]["ms"] > 0
    assert entry["upstream_id"] == answer.headers.get("x-refrain-upstream-id")
    assert "answer" not in entry


def test_reading_an_answer_is_on_record(gw: Running) -> None:
    text = text_of(gw.chat("one"))
    (entry,) = entries(gw)
    before = len(lines(gw))
    (whole,) = read(gw, entry["key"]).json()["entries"]
    assert json.loads(whole["answer"])["choices"][0]["message"]["content"] == text
    assert {name: value for name, value in whole.items() if name not in ("answer", "age")} == {
        name: value for name, value in entry.items() if name != "age"
    }
    (line, *_) = lines(gw)
    assert len(lines(gw)) == before + 1
    assert (line["action"], line["user"], line["details"]) == ("inspect", "root", {"key": entry["key"]})
    assert text not in json.dumps(lines(gw))
    entries(gw)  # to list is not to read
    assert len(lines(gw)) == before + 1


def read(gw: Running, key: str, by: str = ADMIN, **query: Any) -> Any:
    return gw.admin("GET", "/admin/entries", key=by, params={"key": key, **query})


def test_a_key_that_is_not_there(gw: Running) -> None:
    assert error_of(read(gw, "0" * 64), 404)["code"] == "entry_not_found"
    for wrong in ("0", "0" * 63, "0" * 66, "x" * 64, "../" * 20):
        assert error_of(read(gw, wrong), 400)["param"] == "key"


def test_a_tenant_admin_reads_its_tenants_answers_only(gw: Running) -> None:
    fill(gw)
    mine, theirs = entries(gw, user="eve")[0], entries(gw, user="alice")[0]
    assert "answer" in read(gw, mine["key"], EVE).json()["entries"][0]
    refused = read(gw, theirs["key"], EVE)
    assert error_of(refused, 404)["code"] == "entry_not_found"
    assert refused.json() == read(gw, "0" * 64, EVE).json()  # as if there were none
    error_of(read(gw, theirs["key"], EVE, tenant="acme"), 403)
    assert entries(gw, key=EVE, text="alice") == entries(gw, key=EVE, text=theirs["key"][:12]) == []
    assert entries(gw, key=EVE, text="acme") == entries(gw, key=EVE, tag="green") == []
    assert [e["user"] for e in entries(gw, key=EVE)] == ["eve"]


def test_a_member_reads_nothing(gw: Running) -> None:
    fill(gw)
    key = entries(gw, user="alice")[0]["key"]
    error_of(read(gw, key, ALICE), 403)
    error_of(gw.client.get("/admin/entries", params={"key": key}), 401)


def test_hostile_text_comes_as_it_is_and_is_never_markup(gw: Running, up: Upstream) -> None:
    """It is JSON, said to be JSON, and no browser may take it for anything else."""
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    up.script = lambda seen, number: reply_for(seen, chat_answer(hostile))
    gw.chat("one", model=hostile, headers={"x-refrain-tags": "<b>tag</b>"})
    listed = gw.admin("GET", "/admin/entries")
    (entry,) = listed.json()["entries"]
    assert entry["model"] == hostile
    assert entry["tags"] == ["<b>tag</b>"]
    for response in (listed, read(gw, entry["key"])):
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-content-type-options"] == "nosniff"


# From the page


def test_purging_from_the_page(gw: Running) -> None:
    fill(gw)
    with person(gw) as ann:
        key = entries(gw, user="alice")[0]["key"]
        assert ann.ask("POST", "/admin/purge", json={"key": key, "dry_run": True}).json() == {"purged": 1}
        assert ann.ask("POST", "/admin/purge", json={"key": key}).json() == {"purged": 1}
        assert entries(gw, user="alice") == []
        assert lines(gw)[0]["user"] == "root"
    with person(gw, EVE) as eve:
        key = entries(gw, user="bob")[0]["key"]
        assert eve.ask("POST", "/admin/purge", json={"key": key}).json() == {"purged": 0}
        assert len(entries(gw, user="bob")) == 2
    assert outcome(gw.chat("one", key=ALICE, path="/personal/v1")) == "miss"


def test_marking_wrong_from_the_page_is_heard(gw: Running) -> None:
    """What was no reuse of another question's answer is told so, by name of the field: the page can show it."""
    asked = gw.chat("one").headers["x-request-id"]
    until(lambda: gw.admin("GET", "/admin/decisions", params={"id": asked}).status_code == 200)
    with person(gw) as ann:
        answer = ann.ask("POST", "/admin/feedback", json={"request_id": asked, "correct": False})
        assert error_of(answer, 409)["code"] == "not_semantic"
    with person(gw, EVE) as eve:
        error_of(eve.ask("POST", "/admin/feedback", json={"request_id": asked, "correct": False}), 404)
