"""What was erased of a service that goes on finding it stays away: over restarts and reloads, until a version of it is
named."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_webhooks import send
from tests.support.documents import LEAVE, PAY, Library, documents_text, purged, shelf_of_two
from tests.support.gateway import running
from tests.support.retrievers import Shelf, serving
from tests.support.traffic import error_of, outcome, until
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow

ID = "hr/leave.md"


class House:
    """A service that outlives the gateways that ask it; what they keep is in `folder`."""

    def __init__(self, up: Upstream, folder: Path, shelf: Shelf, search_url: str) -> None:
        self.shelf = shelf
        self.path = folder / "refrain.yaml"
        self.state = folder / "cache.state.db"
        self.text = documents_text(up.url, search_url, store=f"sqlite:///{folder}/cache.db")

    @contextmanager
    def open(self, text: str | None = None) -> Iterator[Library]:
        """One life of the gateway."""
        with running(text or self.text, path=self.path) as gw:
            yield Library(gw, self.shelf)

    def on_file(self, statement: str) -> list[Any]:
        """By another process than the gateway, as it were."""
        with closing(sqlite3.connect(self.state)) as file, file:
            return file.execute(statement).fetchall()

    def erased(self) -> list[Any]:
        return self.on_file("SELECT retriever, document FROM erased ORDER BY number")


@pytest.fixture
def house(up: Upstream, tmp_path: Path) -> Iterator[House]:
    shelf = shelf_of_two()
    with serving(shelf) as url:
        yield House(up, tmp_path, shelf, url)


def found(lib: Library, question: str = LEAVE, *, retriever: str = "handbook") -> list[str]:
    return [item["file_id"] for item in lib.search(question, retriever=retriever).json()["data"]]


def apply(house: House, lib: Library, old: str, new: str) -> None:
    """Put the configuration in force with `new` in the place of `old`."""
    changed = house.text.replace(old, new).replace("\nendpoints:\n", "\nendpoints:\n  applied: {mode: stream}\n")
    assert old in house.text
    house.path.write_text(changed)
    until(lambda: lib.gw.admin("GET", "/applied/v1/models").status_code == 200)


def test_it_stays_away_over_restarts_until_a_version_is_named(house: House) -> None:
    with house.open() as lib:
        lib.fill()
        assert purged(lib.change(deleted=True)) == 4
        assert house.erased() == [("handbook", ID)], "on the disk before the answer"
    with house.open() as lib:
        assert found(lib) == []
        answer = lib.ask()
        assert outcome(answer) == "miss"
        assert "leave.md" not in answer.headers.get("x-refrain-documents", "")
        assert found(lib, PAY) == ["pay.md"]
        assert found(lib, retriever="shared") == [ID], "another retriever has its own"
        # Who wants it read anew does not bring it back.
        purged(lib.purge(ID))
        assert found(lib) == []
    with house.open() as lib:
        assert found(lib) == []
        purged(lib.change(version="1"))
        assert found(lib) == [ID]
        assert house.erased() == []
    with house.open() as lib:
        assert found(lib) == [ID]


def test_a_webhook_erases_for_good_as_well(house: House) -> None:
    with house.open() as lib:
        message = {"documents": [{"id": ID, "deleted": True}, {"id": "pay.md", "deleted": True}]}
        purged(send(lib, message))
        purged(send(lib, {"documents": [{"id": "pay.md", "version": "1"}, {"id": "x\u0000'\"☃", "deleted": True}]}))
        # In one message the last word counts.
        purged(send(lib, {"documents": [{"id": "a", "deleted": True}, {"id": "a", "version": "1"}]}))
    assert house.erased() == [("handbook", ID), ("handbook", "x\u0000'\"☃")]
    with house.open() as lib:
        assert [found(lib, question) for question in (LEAVE, PAY)] == [[], ["pay.md"]]


ANEW = {
    "header": "headers: {x-key: other}",
    "template": """body: '{"query": {query}, "top_k": 9, "permissions": {permissions}}'""",
}


@pytest.mark.parametrize("what", ANEW)
def test_a_reload_that_makes_the_retriever_anew_brings_nothing_back(house: House, what: str) -> None:
    with house.open() as lib:
        purged(lib.change(deleted=True))
        apply(house, lib, "  handbook: {kind: http, ", f"  handbook: {{kind: http, {ANEW[what]}, ")
        assert found(lib, PAY) == ["pay.md"]
        assert found(lib) == []
        purged(lib.change(version="1"))
        assert found(lib) == [ID]


def test_it_goes_by_the_retrievers_name(house: House) -> None:
    with house.open() as lib:
        purged(lib.change(deleted=True))
        apply(house, lib, "handbook", "renamed")
        assert found(lib, retriever="renamed") == [ID]
    with house.open(house.text.replace("handbook", "renamed")) as lib:
        assert found(lib, retriever="renamed") == [ID]
    with house.open() as lib:
        assert found(lib) == [], "kept while there was none of that name"


def test_what_cannot_be_written_is_said_so_and_is_in_force_until_then(house: House) -> None:
    with house.open() as lib:
        lib.fill()
        house.on_file("CREATE TRIGGER full BEFORE INSERT ON erased BEGIN SELECT RAISE(ABORT, 'full'); END")
        refused = lib.change(deleted=True)
        assert error_of(refused, 503)["code"] == "not_recorded"
        assert refused.headers["retry-after"] == "5"
        assert lib.lines()[0]["result"] == {"error": "not_recorded"}
        assert found(lib) == []
        assert lib.kept(ID) == {}
        # A message that was refused is not taken for done when it comes again.
        message = json.dumps({"id": ID, "deleted": True}).encode()
        assert error_of(send(lib, message, id="msg_full"), 503)["code"] == "not_recorded"
        house.on_file("DROP TRIGGER full")
        assert purged(send(lib, message, id="msg_full")) == 0
    with house.open() as lib:
        assert found(lib) == []


def test_without_a_file_it_is_kept_over_a_reload(house: House) -> None:
    house.text = house.text.replace(f"sqlite:///{house.path.parent}/cache.db", "memory://")
    with house.open() as lib:
        purged(lib.change(deleted=True))
        apply(house, lib, "  handbook: {kind: http, ", "  handbook: {kind: http, headers: {x-key: other}, ")
        assert found(lib) == []
    with house.open() as lib:
        assert found(lib) == [ID]
