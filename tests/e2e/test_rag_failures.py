"""RAG endpoints whose retriever is down or slow: an error, or an answer without documents that says so."""

import time
from pathlib import Path

import pytest

from tests.support.gateway import BOB, running
from tests.support.live import call, first_byte_held, gate, listening, settled
from tests.support.rag import (
    FALLEN,
    LABEL,
    Gate,
    Rag,
    cache_status,
    fixtures,
    prompt_of,
    rag_text,
    shown,
)
from tests.support.traffic import byte_identical, decision, error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Upstream, free_port

FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])

library, r, question = fixtures()


# on_error: fail


@FORMS
def test_a_retriever_that_is_down_is_an_error_and_nobody_is_asked(r: Rag, question: str, stream: bool) -> None:
    r.shelf.fails = FALLEN
    with r.costs(searches=1, calls=0):
        got = r.ask(question, stream=stream)
    error = error_of(got, 502)
    assert error["code"] == "retriever_unavailable"
    assert "127.0.0.1" not in error["message"]
    assert "fallen" not in error["message"]
    assert shown(got) == []
    assert "x-refrain-cache" not in got.headers or got.headers["x-refrain-cache"] != "exact"
    assert r.tier(got) == {"tier": "retrieval", "result": "miss", "why": "unavailable"}
    r.shelf.fails = None
    with r.costs(searches=1, calls=1):
        answers = [r.ask(question, stream=stream) for _ in range(2)]
    assert [outcome(a) for a in answers] == ["miss", "exact"], "nothing of the failure was kept"
    assert shown(answers[0]) == [LABEL]


def test_answers_whose_results_are_kept_need_no_retriever(r: Rag, question: str) -> None:
    first = r.ask(question)
    r.shelf.fails = FALLEN
    with r.costs(searches=0, calls=0):
        again = [r.ask(question, temperature=None), *(r.ask(question) for _ in range(2))]
    assert {text_of(a) for a in again} == {text_of(first)}
    with r.costs(searches=0, calls=1):
        assert outcome(r.ask(question, temperature=0)) == "miss", "another answer is made from the results"


def test_fifty_wait_for_one_search_that_fails(r: Rag, question: str) -> None:
    asked = len(r.shelf.searches)
    hold = r.shelf.gate = Gate()
    r.shelf.fails = FALLEN
    callers = [call(r.gw, question, path="/hr/v1", stream=False) for _ in range(50)]
    until(lambda: len(r.shelf.searches) > asked)
    time.sleep(0.3)  # so that the others are there as well
    hold.open()
    codes = {error_of(caller.result(), 502)["code"] for caller in callers}
    assert len(r.shelf.searches) - asked < 5, "who was late on a busy machine may have begun another one"
    assert codes == {"retriever_unavailable"}
    settled(r.gw)


def test_nobody_to_reach_is_an_error(up: Upstream) -> None:
    with running(rag_text(up.url, f"http://127.0.0.1:{free_port()}/search")) as gw, upstream_calls(up, 0):
        for _ in range(7):  # at last the service is not asked any more, and the error is the same
            got = gw.chat(path="/hr/v1")
            assert error_of(got, 502)["code"] == "retriever_unavailable"
            assert got.headers["x-refrain-cache"] == "miss"


def test_a_search_that_takes_too_long_is_an_error(r: Rag, question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.retrieval.running.DEADLINE", 0.1)
    hold = r.shelf.gate = Gate()
    try:
        got = r.ask(question)
    finally:
        hold.open()
    error = error_of(got, 504)
    assert error["code"] == "retriever_timeout"


def test_a_folder_that_is_not_ready_yet_says_when_to_come_again(up: Upstream, tmp_path: Path) -> None:
    """The embedding model never gets ready here."""
    (tmp_path / "leave.md").write_text("Everybody has 25 days.")
    text = rag_text(up.url, "http://127.0.0.1:9/search")
    for name, more in (("handbook", ""), ("lenient", ", on_error: answer_without")):
        old = next(line for line in text.splitlines() if line.startswith(f"  {name}: {{kind: "))
        text = text.replace(old, f"  {name}: {{kind: folder, path: {tmp_path}{more}}}")
    with running(text) as gw, upstream_calls(up, 1):
        got = gw.chat(path="/hr/v1")
        assert error_of(got, 503)["code"] == "retriever_starting"
        assert int(got.headers["retry-after"]) >= 1
        assert gw.client.get("/readyz").json() == {"status": "degraded"}
        without = gw.chat(path="/lenient/v1")
        assert (outcome(without), shown(without)) == ("bypass", ["unavailable"])


# on_error: answer_without


@FORMS
@pytest.mark.parametrize("path", ["/lenient/v1", "/lenient_talk/v1"], ids=["request_response", "stream"])
def test_an_answer_without_documents_says_so_and_is_not_kept(r: Rag, question: str, path: str, stream: bool) -> None:
    r.shelf.fails = FALLEN
    with r.costs(searches=2, calls=2):
        answers = [r.ask(question, path=path, stream=stream) for _ in range(2)]
    assert len({text_of(a) for a in answers}) == 2
    for got in answers:
        assert (outcome(got), shown(got)) == ("bypass", ["unavailable"])
        assert decision(r.gw, got)["documents"] == ["unavailable"]
        assert decision(r.gw, got)["stored"] is False
        assert not byte_identical(r.gw, got)
        assert "annotations" not in got.text
        assert cache_status(got)[-1] == "retrieval; fwd=miss"
    prompt = prompt_of(r.up.seen[-1])
    assert "cannot be reached" in prompt
    assert "25 days" not in prompt
    assert prompt.endswith(question)
    r.shelf.fails = None
    with r.costs(searches=1, calls=1):
        back = [r.ask(question, path=path, stream=stream) for _ in range(2)]
    assert [outcome(a) for a in back] == ["miss", "exact"]
    assert shown(back[0]) == ["lenient/holidays.md@1"]


def test_answers_without_documents_are_joined_by_nobody(r: Rag, question: str) -> None:
    r.shelf.fails = FALLEN
    with gate() as event, upstream_calls(r.up, 2):
        r.up.script = first_byte_held(event)
        callers = []
        for number in (1, 2):
            callers.append(call(r.gw, question, path="/lenient_talk/v1"))
            listening(r.gw, number)
        event.set()
        answers = [caller.result() for caller in callers]
    assert [outcome(a) for a in answers] == ["bypass", "bypass"]
    assert len({text_of(a) for a in answers}) == 2
    settled(r.gw)


def test_an_answer_without_documents_is_not_given_where_there_are_some(r: Rag, question: str) -> None:
    """Nor does it join, or end, the flight of somebody who has them."""
    with gate() as event, upstream_calls(r.up, 2):
        r.up.script = first_byte_held(event)
        with_documents = call(r.gw, question, path="/lenient_talk/v1")
        listening(r.gw, 1)
        r.shelf.fails = FALLEN
        without = call(r.gw, question, path="/lenient_talk/v1", key=BOB)
        listening(r.gw, 2)
        event.set()
        answers = [with_documents.result(), without.result()]
    assert [outcome(a) for a in answers] == ["miss", "bypass"]
    assert [shown(a) for a in answers] == [["lenient/holidays.md@1"], ["unavailable"]]


def test_only_what_is_cached_is_no_reason_to_answer_without(r: Rag, question: str) -> None:
    r.shelf.fails = FALLEN
    with r.costs(searches=0, calls=0):
        got = r.ask(question, path="/lenient/v1", headers={"cache-control": "only-if-cached"})
    assert error_of(got, 504)["code"] == "not_cached"
