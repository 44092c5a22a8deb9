"""What was found is known, a text of it is lost, and the retriever is down: `on_error: answer_without`."""

from typing import Literal

import pytest

from tests.e2e.test_rag_stale import lose_texts
from tests.support.gateway import running
from tests.support.live import Caller, call, listening, settled
from tests.support.rag import (
    FALLEN,
    Gate,
    Rag,
    cache_status,
    fixtures,
    prompt_of,
    rag_text,
    shelf_of_three,
    shown,
    unasked,
)
from tests.support.retrievers import serving
from tests.support.traffic import byte_identical, decision, outcome, text_of, until
from tests.support.upstream import Upstream

LABEL = "lenient/holidays.md@1"
FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
MODES = pytest.mark.parametrize("path", ["/lenient/v1", "/lenient_talk/v1"], ids=["request_response", "stream"])

library, r, question = fixtures()


class Failing(Gate):
    """Lets the first so many of a shelf's searches fail."""

    def __init__(self, library: Rag, failures: int) -> None:
        super().__init__()
        self._shelf, self._failures = library.shelf, failures

    async def wait(self) -> Literal[True]:
        await super().wait()
        self._failures -= 1
        self._shelf.fails = FALLEN if self._failures >= 0 else None
        return True


def waiting(r: Rag, question: str, *, clients: int, failures: int) -> tuple[list[Caller], Failing]:
    """Clients of one flight, whose leader waits for a search that will fail: the text of what was found is lost."""
    r.ask(question, path="/lenient_talk/v1")
    lose_texts(r, LABEL)
    gate = r.shelf.gate = Failing(r, failures)
    asked = len(r.shelf.searches)
    callers = []
    for number in range(1, clients + 1):
        callers.append(call(r.gw, question, path="/lenient_talk/v1", temperature=0))
        listening(r.gw, number)
    until(lambda: len(r.shelf.searches) > asked)
    return callers, gate


@FORMS
@MODES
def test_the_answer_is_made_without_documents_and_not_kept(r: Rag, question: str, path: str, stream: bool) -> None:
    first = r.ask(question, path=path)
    lose_texts(r, LABEL)
    r.shelf.fails = FALLEN
    with r.costs(searches=2, calls=2):
        answers = [r.ask(question, path=path, stream=stream, temperature=0) for _ in range(2)]
    assert len({text_of(a) for a in (first, *answers)}) == 3
    for got in answers:
        assert (outcome(got), shown(got)) == ("bypass", ["unavailable"])
        assert cache_status(got) == ["exact; fwd=bypass", "retrieval; fwd=miss"]
        assert "annotations" not in got.text
        assert not byte_identical(r.gw, got)
        known = decision(r.gw, got)
        assert (known["documents"], known["stored"], known["why"]["code"]) == (["unavailable"], False, "retriever_down")
        assert r.tier(got)["why"] == "unavailable"
        assert r.tier(got, "exact") == {"tier": "exact", "result": "skipped", "why": "retriever_down"}
    prompt = prompt_of(r.up.seen[-1])
    assert "cannot be reached" in prompt
    assert "25 days" not in prompt
    r.shelf.fails = None
    with r.costs(searches=1, calls=1):
        back = [r.ask(question, path=path, stream=stream, temperature=0) for _ in range(2)]
    assert [(outcome(a), shown(a)) for a in back] == [("miss", [LABEL]), ("exact", [LABEL])]
    settled(r.gw)


def test_who_waits_for_it_is_answered_without_as_well_each_by_itself(r: Rag, question: str) -> None:
    with r.costs(searches=3, calls=5):  # the first question's, the leader's, and that of the one who takes over
        callers, gate = waiting(r, question, clients=4, failures=4)
        gate.open()
        answers = [caller.result() for caller in callers]
    assert [(outcome(a), shown(a)) for a in answers] == [("bypass", ["unavailable"])] * 4
    assert [r.tier(a)["result"] for a in answers] == ["miss"] * 4
    assert len({text_of(a) for a in answers}) == 4
    assert len({decision(r.gw, a)["key"] for a in answers}) == 1
    settled(r.gw)


def test_who_takes_over_may_find_them_again(r: Rag, question: str) -> None:
    """And what is made then is for all who wait for an answer from documents."""
    with r.costs(searches=3, calls=3):
        callers, gate = waiting(r, question, clients=4, failures=1)
        gate.open()
        leader, *others = [caller.result() for caller in callers]
    assert (outcome(leader), shown(leader)) == ("bypass", ["unavailable"])
    assert sorted(map(outcome, others)) == ["joined", "joined", "miss"]
    assert [shown(a) for a in others] == [[LABEL]] * 3
    assert len({text_of(a) for a in others}) == 1
    assert text_of(leader) != text_of(others[0])
    keys = [decision(r.gw, a)["key"] for a in (leader, *others)]
    assert keys[0] not in keys[1:], "it is not an answer to what the others asked"
    kept = r.ask(question, path="/lenient_talk/v1", temperature=0)
    assert (outcome(kept), text_of(kept)) == ("exact", text_of(others[0]))
    settled(r.gw)


def test_a_stale_answer_from_documents_is_better_than_one_without(up: Upstream) -> None:
    line = "  lenient: {mode: request_response, retrieval: {retriever: lenient}"
    shelf, question = shelf_of_three(), unasked()
    with serving(shelf) as url:
        text = rag_text(up.url, url).replace(line, line + ", cache: {exact: {ttl: 60s, stale_if_error: 1h}}")
        with running(text) as gw:
            r = Rag(gw, up, shelf)
            first = r.ask(question, path="/lenient/v1")
            lose_texts(r, LABEL)
            shelf.fails = FALLEN
            gw.clock.offset = 61
            with r.costs(searches=1, calls=0):
                stale = r.ask(question, path="/lenient/v1")
    assert (outcome(stale), text_of(stale), shown(stale)) == ("stale", text_of(first), [LABEL])
