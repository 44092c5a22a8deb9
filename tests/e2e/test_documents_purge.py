"""Purge by document: by every name that a document goes by, and for whom it may."""

from collections.abc import Iterator

import pytest

from tests.support.documents import ANN, PAY, Library, library, purged
from tests.support.gateway import ADMIN, ALICE, EVE
from tests.support.traffic import error_of, outcome, upstream_calls
from tests.support.upstream import Upstream


@pytest.fixture
def lib(up: Upstream) -> Iterator[Library]:
    with library(up.url) as found:
        yield found


ODD = "hr/année 2024@x.md"
NAMES = {
    "label": "handbook/hr/ann%C3%A9e%202024%40x.md",
    "label and version": "handbook/hr/ann%C3%A9e%202024%40x.md@v1",
    "as it is spelt": f"handbook/{ODD}",
    "as it is spelt, and version": f"handbook/{ODD}@v1",
    "id alone": ODD,
    "id and version": f"{ODD}@v1",
}


def test_every_name_finds_results_texts_and_answers(lib: Library, up: Upstream) -> None:
    lib.fill()
    lib.shelf.put(ODD, "peculiar things", version="v1")
    for how, name in NAMES.items():
        item = lib.search("peculiar").json()["data"][0]
        assert (item["file_id"], item["attributes"]["version"]) == (ODD, "v1")
        assert outcome(lib.ask("something peculiar")) == "miss", how
        everything = {"search": 2, "chunk": 1, "chat": 1}
        assert lib.kept(name) == lib.kept(name, key=ANN) == everything, how
        assert purged(lib.purge(name, dry_run=True)) == 4, how
        assert lib.kept(name) == everything, how
        assert purged(lib.purge(name)) == 4, how
        assert lib.kept(ODD) == {}, how
    for other in ("handbook/hr", "hr", "leave.md", "pay.md@2", "wiki/pay.md", "handbook/PAY.md", "handbook"):
        assert lib.kept(other) == {}, other
        assert purged(lib.purge(other)) == 0, other
    with upstream_calls(up, 0):
        assert outcome(lib.ask(PAY)) == "exact"


def test_an_id_alone_is_meant_in_every_retriever(lib: Library) -> None:
    for retriever in ("handbook", "shared", "open"):
        outcome(lib.search(retriever=retriever))
    assert purged(lib.purge("shared/hr/leave.md")) == 2
    assert purged(lib.purge("hr/leave.md", "pay.md")) == 4


def test_a_dry_run_touches_nothing(lib: Library) -> None:
    lib.fill()
    assert purged(lib.purge("hr/leave.md", dry_run=True)) == 4
    assert outcome(lib.search()) == "exact"
    assert lib.lines() == []


def test_a_tenant_admin_purges_its_own_tenants_and_sees_no_others(lib: Library) -> None:
    for key in (ALICE, EVE):
        outcome(lib.search(retriever="shared", key=key))
    assert lib.kept("hr/leave.md") == {"search": 2, "chunk": 2}
    for key in (EVE, ANN):
        assert lib.kept("shared/hr/leave.md", key=key) == {"search": 1, "chunk": 1}
    lib.fill()
    # What only another tenant has is as if it were not there.
    assert lib.kept("handbook/hr/leave.md", key=EVE) == {}
    assert purged(lib.purge("handbook/hr/leave.md", key=EVE)) == 0
    assert purged(lib.purge("hr/leave.md", key=EVE)) == 2
    assert lib.kept("hr/leave.md") == {"chat": 1, "search": 3, "chunk": 2}
    error_of(lib.purge("hr/leave.md", key=EVE, tenant="acme"), 403)
    error_of(lib.purge("hr/leave.md", key=ALICE), 403)
    # No retriever is touched by it: the others' results are as good as before.
    assert outcome(lib.search()) == "exact"
    line, before = lib.lines(EVE)
    assert (line["action"], line["details"]) == ("purge", {"documents": ["hr/leave.md"]})
    assert [line["result"], before["result"]] == [{"purged": 2}, {"purged": 0}]


def test_a_purge_does_not_undo_an_erasure(lib: Library) -> None:
    lib.fill()
    purged(lib.change(deleted=True))
    assert lib.search().json()["data"] == []
    for name in ("hr/leave.md", "handbook/hr/leave.md"):
        purged(lib.purge(name))
        assert lib.search().json()["data"] == [], name
    purged(lib.change(version="2"))
    assert len(lib.search().json()["data"]) == 1


def test_a_bad_list_of_documents_is_refused(lib: Library) -> None:
    lib.fill()
    for documents in ([], [""], [1], None, {"id": "pay.md"}, "", [["pay.md"]]):
        body = {"documents": documents}
        assert error_of(lib.gw.admin("POST", "/admin/purge", json=body), 400)["param"] == "documents", documents
    assert purged(lib.purge("pay.md", tenant="globex")) == 0
    assert purged(lib.purge("x" * 5000, key=ADMIN)) == 0
    assert lib.kept("pay.md") == {"chat": 1, "search": 2, "chunk": 1}
