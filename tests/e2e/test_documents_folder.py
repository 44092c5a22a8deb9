"""Files that change, found by the folder's own watcher or told of: what came from them goes, also over a restart."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.documents import ANN, Library, documents_text, purged
from tests.support.embedders import Placed
from tests.support.gateway import ALICE, running
from tests.support.retrievers import Shelf
from tests.support.traffic import error_of, outcome, until
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow

LEAVE, PAY = "hr/leave.md", "pay.md"
WORDS = ("leave", "pay", "bonus")


def place(text: str) -> str:
    return next((word for word in WORDS if word in text.lower()), text)


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@contextmanager
def folder(up: Upstream, tmp_path: Path) -> Iterator[Library]:
    """The handbook is `tmp_path/docs`, with the permissions of `tmp_path/acl.yaml`; answers are made of one piece, and
    everything is kept in `tmp_path`."""
    root = tmp_path / "docs"
    if not root.exists():
        write(root, LEAVE, "thirty days of leave")
        write(root, PAY, "pay comes when it comes")
        (tmp_path / "acl.yaml").write_text("default: []\n")
    text = documents_text(up.url, "http://127.0.0.1:9/search", store=f"sqlite:///{tmp_path}/cache.db")
    settings = f"{{kind: folder, path: {root}, acl: {tmp_path}/acl.yaml, tenants: [acme]}}"
    lines = [f"  handbook: {settings}" if "  handbook: " in line else line for line in text.splitlines()]
    text = "\n".join(lines).replace("{retriever: handbook}", "{retriever: handbook, top_k: 1}")
    with running(text, embedders=lambda _: Placed(place)) as gw:
        lib = Library(gw, Shelf())
        until(lambda: lib.search("ready?").status_code == 200)
        yield lib


def found(lib: Library, query: str) -> list[str]:
    """The documents that are really about it, as Alice sees them."""
    data = lib.search(query, key=ALICE).json()["data"]
    return [item["file_id"] for item in data if item["score"] > 0.9]


def gone(lib: Library, number: int) -> list[str]:
    """The documents of the audit log's newest line, once there are so many lines and it is complete."""
    until(lambda: len(lib.lines()) >= number and lib.lines()[0]["result"] is not None)
    line = lib.lines(ANN)[0]
    assert (line["user"], line["role"], line["tenant"]) == ("retriever:handbook", "gateway", "acme")
    return [document["id"] for document in line["details"]["documents"]]


def test_what_the_watcher_finds_takes_with_it_what_came_from_it(up: Upstream, tmp_path: Path) -> None:
    root = tmp_path / "docs"
    with folder(up, tmp_path) as lib:
        assert [outcome(lib.ask(q)) for q in ("my leave?", "my pay?")] == ["miss", "miss"]
        old = lib.search("leave").json()["data"][0]["attributes"]["version"]

        write(root, LEAVE, "twenty days of leave")
        assert gone(lib, 1) == [LEAVE]
        assert lib.kept(f"{LEAVE}@{old}") == {}
        answers = [lib.ask(q) for q in ("my leave?", "my pay?")]
        assert [outcome(a) for a in answers] == ["miss", "exact"]
        assert old not in answers[0].headers["x-refrain-documents"]

        # Forbidden: whoever may still see it has it made anew.
        (tmp_path / "acl.yaml").write_text("default: []\nrules: [{path: pay.md, permissions: [board]}]\n")
        assert gone(lib, 2) == [PAY]
        assert found(lib, "pay") == []

        (root / LEAVE).unlink()
        assert gone(lib, 3) == [LEAVE]
        assert lib.kept(LEAVE) == {}
        assert found(lib, "leave") == []


def test_what_changed_while_nobody_looked_is_gone_after_the_start(up: Upstream, tmp_path: Path) -> None:
    with folder(up, tmp_path) as lib:
        assert [outcome(lib.ask(q)) for q in ("my leave?", "my pay?")] == ["miss", "miss"]
    (tmp_path / "docs" / LEAVE).unlink()
    with folder(up, tmp_path) as lib:
        assert gone(lib, 1) == [LEAVE]
        assert lib.kept(LEAVE) == {}
        assert [outcome(lib.ask(q)) for q in ("my leave?", "my pay?")] == ["miss", "exact"]


def test_an_erased_file_stays_away_until_it_is_another_one(up: Upstream, tmp_path: Path) -> None:
    with folder(up, tmp_path) as lib:
        assert outcome(lib.ask("my leave?")) == "miss"
        assert found(lib, "leave") == [LEAVE]
        kept = lib.kept(LEAVE)
        # The one that waited for the folder is not kept where that had only just been read.
        searches = kept.pop("search")
        assert searches in (2, 3)
        assert kept == {"chat": 1, "chunk": 1}
        assert purged(lib.change(ANN, deleted=True)) == searches + 2
        assert (tmp_path / "docs" / LEAVE).exists()
        assert found(lib, "leave") == []
        assert [line["role"] for line in lib.lines()] == ["tenant_admin"]
        assert purged(lib.purge(LEAVE)) == 0
        assert found(lib, "leave") == []
    with folder(up, tmp_path) as lib:
        assert found(lib, "leave") == []
        write(tmp_path / "docs", LEAVE, "twenty days of leave")
        assert purged(lib.change(version="whatever the file says")) >= 0
        until(lambda: found(lib, "leave") == [LEAVE])


def test_no_id_leads_out_of_the_folder(up: Upstream, tmp_path: Path) -> None:
    write(tmp_path, "secret.md", "a bonus for the board")
    with folder(up, tmp_path) as lib:
        out = ["../secret.md", str(tmp_path / "secret.md"), "hr/../../secret.md", "%2e%2e/secret.md"]
        for id in [*out, "a\u0000b", "a\nb", ".", "", "x" * 4096, "x/" * 2000]:
            for said in ({"version": "1"}, {"deleted": True}):
                response = lib.change(id=id, **said)
                assert response.status_code == (200 if id else 400), (id, response.text)
        assert purged(lib.purge("../secret.md", "handbook/%2e%2e%2fsecret.md", "handbook/a%00b", "handbook/")) == 0
        assert found(lib, "bonus") == []
        assert [found(lib, word) for word in ("leave", "pay")] == [[LEAVE], [PAY]]
        error_of(lib.gw.client.post("/webhooks/handbook", content=b"{}"), 404)  # it has no secret here
