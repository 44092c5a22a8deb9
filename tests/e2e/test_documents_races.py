"""Documents that change while questions about them are being answered: nothing is kept of what was."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from backends.retrievers import RetrieverError
from tests.support.documents import ANN, LEAVE, PAY, Library, documents_text, library, purged, shelf_of_two
from tests.support.gateway import ALICE, BOB, running
from tests.support.retrievers import Shelf
from tests.support.traffic import decision, error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, numbered


class Slow(Shelf):
    """Takes note of a change when `go` is set, or fails then."""

    def __init__(self) -> None:
        super().__init__(shelf_of_two().documents, name="handbook")
        self.told: list[tuple[str, str | None, bool]] = []
        self.go = threading.Event()
        self.go.set()
        self.refuses: RetrieverError | None = None

    async def changed(self, document: str, *, version: str | None, deleted: bool) -> None:
        self.told.append((document, version, deleted))
        await asyncio.to_thread(self.go.wait, 20)
        if self.refuses is not None:
            raise self.refuses
        await super().changed(document, version=version, deleted=deleted)


@pytest.fixture
def slow(up: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Library, Slow]]:
    """All retrievers are this one shelf, in the gateway's own process."""
    shelf = Slow()
    monkeypatch.setattr("backends.retrievers.service.ServiceRetriever", lambda name, **_: shelf)
    with running(documents_text(up.url, "http://127.0.0.1:9/search")) as gw:
        yield Library(gw, shelf), shelf


@contextmanager
def gated(up: Upstream) -> Iterator[threading.Event]:
    """The upstream answers nothing before the event is set."""
    gate = threading.Event()

    def script(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.gate = gate
        return reply

    up.script = script
    try:
        yield gate
    finally:
        gate.set()
        up.script = numbered


def test_an_answer_that_is_being_made_when_the_document_changes_is_not_kept(
    slow: tuple[Library, Slow], up: Upstream
) -> None:
    """It began after the change was announced and before the retriever knew of it: had the purge come first, the answer
    would be kept."""
    lib, shelf = slow
    shelf.go.clear()
    with gated(up) as gate, ThreadPoolExecutor(2) as pool:
        try:
            changing = pool.submit(lib.change, version="2")
            until(lambda: bool(shelf.told))
            before = up.calls
            asking = pool.submit(lib.ask)
            until(lambda: up.calls > before)
            shelf.go.set()
            assert purged(changing.result()) == 2  # results and a text, kept meanwhile
            gate.set()
            answer = asking.result()
        finally:
            shelf.go.set()
            gate.set()
    assert outcome(answer) == "miss"
    assert answer.headers["x-refrain-documents"] == "handbook/hr/leave.md@1"
    record = decision(lib.gw, answer)
    assert (record["stored"], record["not_stored"]) == (False, "purged_meanwhile")
    assert lib.kept("hr/leave.md") == {}
    with upstream_calls(up, 1):
        assert lib.ask().headers["x-refrain-documents"] == "handbook/hr/leave.md@2"


def test_who_asks_after_the_change_does_not_join_a_flight_from_before(slow: tuple[Library, Slow], up: Upstream) -> None:
    lib, _ = slow
    with gated(up) as gate, ThreadPoolExecutor(2) as pool:
        before = up.calls
        first = pool.submit(lib.ask, key=ALICE)
        until(lambda: up.calls == before + 1)
        purged(lib.change(version="2"))
        second = pool.submit(lib.ask, key=BOB)
        until(lambda: up.calls == before + 2)
        gate.set()
        answers = [first.result(), second.result()]
    assert [outcome(a) for a in answers] == ["miss", "miss"]
    assert text_of(answers[0]) != text_of(answers[1])
    assert lib.kept("hr/leave.md") == lib.kept("hr/leave.md@2") == {"search": 1, "chunk": 1, "chat": 1}
    assert lib.ask().headers["x-refrain-documents"] == "handbook/hr/leave.md@2"


def test_many_changes_and_questions_at_once(up: Upstream) -> None:
    """In the end everybody is given the last version, and nothing is kept of the others."""
    with library(up.url) as lib:

        def work(number: int) -> None:
            if number % 3 == 0:
                version = str(number)
                lib.shelf.put("hr/leave.md", f"{number} days of leave", version=version)
                purged(lib.change(version=version))
            elif number % 3 == 1:
                outcome(lib.search())
            else:
                response = lib.ask()
                # The pieces may be gone before the prompt is made from them.
                assert response.status_code == 200 or response.json()["error"]["code"] == "documents_changed"

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(work, range(60)))
        lib.shelf.put("hr/leave.md", "99 days of leave", version="99")
        purged(lib.change(version="99"))
        assert lib.search().json()["data"][0]["attributes"]["version"] == "99"
        assert lib.ask().headers["x-refrain-documents"] == "handbook/hr/leave.md@99"
        assert lib.kept("hr/leave.md") == lib.kept("hr/leave.md@99") == {"search": 2, "chunk": 1, "chat": 1}
        assert len(lib.lines()) == 21


# What a retriever cannot do


def test_a_retriever_that_cannot_take_note_is_a_503_and_what_is_kept_goes_all_the_same(
    slow: tuple[Library, Slow],
) -> None:
    lib, shelf = slow
    lib.fill()
    shelf.refuses = RetrieverError("starting", "the folder is still being read")
    response = lib.change(ANN, deleted=True)
    error = error_of(response, 503)
    assert error["code"] == "retriever_starting"
    assert "the folder is still being read" in error["message"]
    assert int(response.headers["retry-after"]) > 0
    assert lib.kept("hr/leave.md") == {}
    assert lib.kept("pay.md") == {"chat": 1, "search": 2, "chunk": 1}
    assert lib.lines()[0]["result"] == {"error": "retriever_starting"}
    shelf.refuses = None
    assert purged(lib.change(ANN, deleted=True)) == 0
    assert lib.lines()[0]["result"] == {"purged": 0}


def test_a_retriever_has_no_more_than_its_time(slow: tuple[Library, Slow], monkeypatch: pytest.MonkeyPatch) -> None:
    lib, shelf = slow
    monkeypatch.setattr("gateway.retrieval.changes.TELL_SECONDS", 0.05)
    shelf.go.clear()
    try:
        assert error_of(lib.change(deleted=True), 503)["code"] == "retriever_deadline"
    finally:
        shelf.go.set()


# Purges, which tell a retriever too


def told(shelf: Slow) -> list[tuple[str, Any, bool]]:
    found, shelf.told = shelf.told, []
    return found


def test_a_purge_has_the_documents_read_anew_by_an_admin_only(slow: tuple[Library, Slow]) -> None:
    lib, shelf = slow
    lib.fill()
    assert purged(lib.purge("handbook/hr/leave.md", key=ANN)) == 4
    assert purged(lib.purge("handbook/pay.md", dry_run=True)) == 4
    assert purged(lib.purge("handbook/pay.md", endpoint="default")) == 0
    assert told(shelf) == []
    assert purged(lib.purge("handbook/pay.md")) == 4
    assert told(shelf) == [("pay.md", None, False)]
    lib.fill()
    assert purged(lib.purge("hr/leave.md", soft=True)) == 4
    assert told(shelf) == []
    assert purged(lib.purge("pay.md")) == 4
    assert told(shelf) == [("pay.md", None, False)] * 3  # in every retriever


def test_a_purge_takes_what_is_kept_from_a_retriever_that_is_down(slow: tuple[Library, Slow]) -> None:
    lib, shelf = slow
    lib.fill()
    shelf.refuses = RetrieverError("unavailable", "there is nobody")
    assert error_of(lib.purge("handbook/hr/leave.md"), 503)["code"] == "retriever_unavailable"
    assert lib.kept("hr/leave.md") == {}
    assert lib.lines()[0]["result"] == {"error": "retriever_unavailable"}
    assert [outcome(lib.search(q)) for q in (LEAVE, PAY)] == ["miss", "exact"]
