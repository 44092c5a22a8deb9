"""`POST /admin/documents`: what came from a document goes when it changes, for whom it may, and is on record."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import ANN, PAY, Library, library, purged
from tests.support.gateway import ADMIN, ALICE, EVE
from tests.support.traffic import error_of, outcome, upstream_calls
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow

Json = dict[str, Any]


@pytest.fixture
def lib(up: Upstream) -> Iterator[Library]:
    with library(up.url) as found:
        yield found


def test_a_deleted_document_takes_with_it_all_that_came_from_it(lib: Library, up: Upstream) -> None:
    lib.fill()
    assert purged(lib.change(deleted=True)) == 4
    assert lib.kept("hr/leave.md") == {}
    # The service still has it, but it is not found here any more.
    assert "hr/leave.md" in lib.shelf.documents
    assert lib.search().json()["data"] == []
    with upstream_calls(up, 1):
        answer = lib.ask()
    assert outcome(answer) == "miss"
    assert "leave.md" not in answer.headers.get("x-refrain-documents", "")
    # What came from the other one is as good as before.
    with upstream_calls(up, 0):
        assert outcome(lib.ask(PAY)) == "exact"


def test_a_changed_document_ends_the_answers_that_came_from_it(lib: Library, up: Upstream) -> None:
    lib.fill()
    lib.shelf.put("hr/leave.md", "twenty days of leave", version="2")
    assert purged(lib.change(version="2")) == 4
    with upstream_calls(up, 1):
        first, second, other = lib.ask(), lib.ask(), lib.ask(PAY)
    assert [outcome(a) for a in (first, second, other)] == ["miss", "exact", "exact"]
    assert first.headers["x-refrain-documents"] == "handbook/hr/leave.md@2"
    assert lib.search().json()["data"][0]["content"][0]["text"] == "twenty days of leave"
    assert lib.kept("hr/leave.md@1") == {}
    assert lib.kept("hr/leave.md@2") == {"chat": 1, "search": 2, "chunk": 1}


def test_it_is_gone_from_the_file_as_well(up: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    with library(up.url, store=f"sqlite:///{path}") as lib:
        lib.fill()
        assert purged(lib.change(deleted=True)) == 4
        assert lib.kept("hr/leave.md") == {}
    with closing(sqlite3.connect(path)) as file:
        labels = {label for (label,) in file.execute("SELECT label FROM labels")}
    assert labels == {"handbook/pay.md", "handbook/pay.md@1"}


# For whom


def test_a_tenants_own_retriever_may_be_changed_by_its_admin(lib: Library) -> None:
    lib.fill()
    assert purged(lib.change(ANN, deleted=True)) == 4
    (line,) = lib.lines(ANN)
    assert (line["tenant"], line["user"], line["role"]) == ("acme", "ann", "tenant_admin")


OTHERS = [
    (ALICE, "handbook", 403),
    (ALICE, "nowhere", 403),
    (ANN, "shared", 403),
    (ANN, "open", 403),
    (EVE, "shared", 403),
    (EVE, "open", 403),
    (EVE, "handbook", 404),
    (ANN, "nowhere", 404),
    (ADMIN, "nowhere", 404),
    ("rf-nobody", "handbook", 401),
]


def test_others_may_not(lib: Library) -> None:
    lib.fill()
    for key, retriever, status in OTHERS:
        error_of(lib.change(key, retriever=retriever, deleted=True), status)
    error_of(lib.gw.client.post("/admin/documents", json={}), 401)
    assert lib.kept("hr/leave.md") == {"chat": 1, "search": 2, "chunk": 1}
    assert outcome(lib.search()) == "exact"
    assert lib.lines() == []


def test_another_tenants_retriever_is_as_unknown_as_one_that_is_not_there(lib: Library) -> None:
    there, not_there = (error_of(lib.change(EVE, retriever=r, version="2"), 404) for r in ("handbook", "handbuch"))
    assert there["message"] == not_there["message"].replace("handbuch", "handbook")
    assert (there["code"], there["param"]) == (not_there["code"], not_there["param"])
    assert (there["code"], there["param"]) == ("retriever_not_found", "retriever")


def test_a_shared_retriever_is_the_gateways_admins(lib: Library) -> None:
    outcome(lib.search(retriever="shared"))
    outcome(lib.search(retriever="shared", key=EVE))
    # One change, whoever had asked.
    assert purged(lib.change(retriever="shared", deleted=True)) == 4
    assert lib.search(retriever="shared", key=EVE).json()["data"] == []


# What is asked for


BAD: dict[str, tuple[Json, str]] = {
    "no retriever": ({"retriever": None}, "retriever"),
    "a retriever that is no text": ({"retriever": ["handbook"]}, "retriever"),
    "an empty retriever": ({"retriever": ""}, "retriever"),
    "no id": ({"id": None}, "id"),
    "an empty id": ({"id": ""}, "id"),
    "a number for an id": ({"id": 7}, "id"),
    "an id that is too long": ({"id": "a" * 10_000}, "id"),
    "neither": ({"deleted": False}, "version"),
    "both": ({"version": "2", "deleted": True}, "deleted"),
    "a version that is a number": ({"version": 2}, "version"),
    "an empty version": ({"version": ""}, "version"),
    "a version that is too long": ({"version": "v" * 2000}, "version"),
    "deleted as a text": ({"deleted": "true"}, "deleted"),
    "deleted as a number": ({"deleted": 1}, "deleted"),
    "a dry run": ({"deleted": True, "dry_run": True}, "dry_run"),
    "an unknown field": ({"deleted": True, "a\nb": 1}, "a?b"),
}


def test_a_bad_request_names_the_field_and_changes_nothing(lib: Library) -> None:
    lib.fill()
    for name, (body, param) in BAD.items():
        assert error_of(lib.change(**body), 400)["param"] == param, name
    for raw in (b"", b"[]", b'{"retriever": "handbook", "id": "a", "id": "b", "deleted": true}', b'{"id": "\\ud800"}'):
        error_of(lib.gw.admin("POST", "/admin/documents", content=raw), 400)
    huge = b'{"retriever": "%s"}' % (b"a" * 40_000)
    error_of(lib.gw.admin("POST", "/admin/documents", content=huge), 413)
    assert error_of(lib.gw.admin("GET", "/admin/documents"), 405)
    assert lib.kept("hr/leave.md") == {"chat": 1, "search": 2, "chunk": 1}
    assert lib.lines() == []


HOSTILE = [
    "a\nb\r\nx-evil: 1",
    "../../etc/passwd",
    "@",
    "%2e%2e%2f",
    "a\u0000b",
    "\u202egepj",
    "a" * 1000,
    "' OR 1=1 --",
]


def test_a_hostile_id_is_the_name_of_a_document_and_nothing_else(lib: Library) -> None:
    lib.fill()
    for number, id in enumerate(HOSTILE):
        lib.shelf.put(id, f"peculiar{number}", version=id[:100])
        outcome(lib.search(f"peculiar{number}"))
        assert purged(lib.change(id=id, deleted=True)) == 2, id
        assert lib.search(f"peculiar{number}").json()["data"] == [], id
        assert lib.lines()[0]["details"] == {"retriever": "handbook", "documents": [{"id": id, "deleted": True}]}
    assert lib.kept("hr/leave.md") == {"chat": 1, "search": 2, "chunk": 1}


def test_both_halves_are_on_record(lib: Library) -> None:
    lib.gw.clock.frozen = 1_000_000.0
    lib.fill()
    response = lib.change(version="7", deleted=False)
    assert purged(response) == 4
    (line,) = lib.lines()
    assert line == {
        "number": 1,
        "at": 1_000_000.0,
        "tenant": "ops",
        "user": "root",
        "role": "admin",
        "action": "documents_changed",
        "details": {"retriever": "handbook", "documents": [{"id": "hr/leave.md", "version": "7"}]},
        "request_id": response.headers["x-request-id"],
        "result": {"purged": 4},
    }


# What goes wrong


def test_the_service_may_be_down(lib: Library) -> None:
    """Nothing of a change has to be asked of it."""
    lib.fill()
    lib.shelf.documents = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lib.shelf, "fails", RuntimeError("down"))
        assert purged(lib.change(deleted=True)) == 4
        assert lib.kept("hr/leave.md") == {}


def test_a_store_that_is_locked_is_said_so_and_its_answers_are_not_used(up: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    with library(up.url, store=f"sqlite:///{path}") as lib:
        lib.fill()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            error = error_of(lib.change(version="2"), 503)
            other.execute("ROLLBACK")
        assert error["code"] == "store_unavailable"
        assert lib.lines()[0]["result"] == {"error": "store_unavailable"}
        assert outcome(lib.search()) == "miss"
        assert outcome(lib.ask()) == "miss"
        assert purged(lib.change(version="2")) >= 1
