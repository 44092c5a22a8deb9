"""Who shares an answer made from documents: whoever is given the same pieces of them, and nobody else."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import ALICE, BOB, EVE, running
from tests.support.live import Caller, answer_of, call, first_byte_held, gate, listening, settled
from tests.support.rag import (
    CAROL,
    DAVE,
    ENG,
    EVERYBODY,
    HR,
    IDS,
    Rag,
    cache_status,
    cited,
    prompt_of,
    rag,
    rag_text,
    shown,
)
from tests.support.semantic import ASKED, REWORDED, TWICE_REWORDED, by_wording, said
from tests.support.traffic import byte_identical, error_of, outcome, text_of, until
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, reply_for

Json = dict[str, Any]
SECRETS = ("secret", "25th")
"""Words of the document that needs hr, which no prompt has without it."""
SEES = {ALICE: {EVERYBODY, HR}, BOB: {EVERYBODY, ENG}, CAROL: {EVERYBODY, HR, ENG}, DAVE: {EVERYBODY}}
NAMES = {ALICE: "alice", BOB: "bob", CAROL: "carol", DAVE: "dave"}

_number = itertools.count(1)


@pytest.fixture(scope="module")
def r(up: Upstream) -> Iterator[Rag]:
    with rag(up) as library:
        yield library


@pytest.fixture
def n() -> int:
    """Makes a question of this test alone."""
    return next(_number)


def labels(words: set[str]) -> list[str]:
    return [f"handbook/{id}@1" for id in sorted(IDS[word] for word in words)]


def names_of(seen: Seen) -> list[str]:
    return sorted(set(re.findall(r'<document name="([^"]*)">', prompt_of(seen))))


def telling(seen: Seen, number: int) -> Reply:
    """An answer that says which documents it was made from."""
    return reply_for(seen, chat_answer(f"{number} made from {' '.join(names_of(seen))}."))


# Permissions


def test_the_same_pieces_are_one_answer_whatever_else_one_may_see(r: Rag, n: int) -> None:
    question = f"{EVERYBODY} {n}"
    with r.costs(searches=4, calls=1):
        answers = [r.ask(question, key=key) for key in SEES]
    assert [outcome(a) for a in answers] == ["miss", "exact", "exact", "exact"]
    assert [cache_status(a)[-1] for a in answers] == ["retrieval; fwd=miss"] * 4, "each has results of its own"
    assert {text_of(a) for a in answers} == {text_of(answers[0])}
    assert [shown(a) for a in answers] == [labels({EVERYBODY})] * 4
    with r.costs(searches=0, calls=0):
        again = [r.ask(question, key=key) for key in SEES]
    assert [cache_status(a) for a in again] == [["exact; hit", "retrieval; hit"]] * 4
    assert all(byte_identical(r.gw, a) for a in again)


def test_without_the_permission_one_is_given_neither_the_piece_nor_the_answer(r: Rag, n: int) -> None:
    question = f"{HR} {n}"
    theirs = r.ask(question, key=ALICE)
    assert shown(theirs) == labels({HR})
    for key in (BOB, DAVE):
        for _ in range(3):  # the short way too
            got = r.ask(question, key=key)
            assert shown(got) == []
            assert text_of(got) != text_of(theirs)
            assert "salaries" not in got.text + str(got.headers)
    last = [seen for seen in r.up.seen if question in prompt_of(seen)]
    assert len(last) == 2, "bob and dave are given the same nothing"
    assert [any(word in prompt_of(seen) for word in SECRETS) for seen in last] == [True, False]
    with r.costs(searches=1, calls=0):
        assert text_of(r.ask(question, key=CAROL)) == text_of(theirs), "who may see it shares it"


@pytest.mark.parametrize("path", ["/talk/v1", "/hr/v1"], ids=["stream", "request_response"])
def test_without_the_permission_one_does_not_join(r: Rag, n: int, path: str) -> None:
    question = f"{HR} {n}"
    with gate() as event, r.costs(searches=3, calls=2):
        r.up.script = first_byte_held(event)
        theirs = call(r.gw, question, path=path, key=ALICE)
        listening(r.gw, 1)
        other = call(r.gw, question, path=path, key=BOB)
        listening(r.gw, 2)
        joins = call(r.gw, question, path=path, key=CAROL)
        listening(r.gw, 3)
        event.set()
        found = [caller.result() for caller in (theirs, other, joins)]
    assert [outcome(a) for a in found] == ["miss", "miss", "joined"]
    assert text_of(found[0]) == text_of(found[2]) != text_of(found[1])
    assert [shown(a) for a in found] == [labels({HR}), [], labels({HR})]
    settled(r.gw)


def test_fifty_at_the_same_time_are_as_many_answers_as_there_are_sets_of_pieces(r: Rag, n: int) -> None:
    question = f"{EVERYBODY} {HR} {ENG} {n}"
    keys = [list(SEES)[number % 4] for number in range(50)]
    with gate() as event, r.costs(searches=4, calls=4):

        def held(seen: Seen, number: int) -> Reply:
            reply = telling(seen, number)
            reply.gates = {0: event}
            return reply

        r.up.script = held
        forms = itertools.cycle([True, False])
        callers: list[tuple[str, Caller]] = [
            (key, call(r.gw, question, key=key, path="/talk/v1", stream=next(forms))) for key in keys
        ]
        listening(r.gw, 50)
        event.set()
        answers: list[tuple[str, httpx.Response]] = [(key, caller.result()) for key, caller in callers]
    counted = Counter((key, outcome(a)) for key, a in answers)
    assert {key: counted[key, "miss"] for key in SEES} == dict.fromkeys(SEES, 1)
    for key, answer in answers:
        assert shown(answer) == labels(SEES[key]), NAMES[key]
        assert text_of(answer).split(" made from ")[1] == f"{' '.join(labels(SEES[key]))}."
        assert cited(answer, answer_of(answer)) == labels(SEES[key])
    settled(r.gw)


def test_fifty_with_other_permissions_and_the_same_pieces_join_one_flight(r: Rag, n: int) -> None:
    question = f"{EVERYBODY} {n}"
    with gate() as event, r.costs(searches=4, calls=1):
        r.up.script = first_byte_held(event)
        callers = [call(r.gw, question, key=list(SEES)[i % 4], path="/talk/v1") for i in range(50)]
        listening(r.gw, 50)
        event.set()
        answers = [caller.result() for caller in callers]
    assert Counter(outcome(a) for a in answers) == {"miss": 1, "joined": 49}
    assert len({text_of(a) for a in answers}) == 1
    settled(r.gw)


# Scopes


@pytest.mark.parametrize(("path", "calls"), [("/by_permission/v1", 4), ("/mine/v1", 4)], ids=["permissions", "user"])
def test_narrower_scopes_stay_narrower(r: Rag, n: int, path: str, calls: int) -> None:
    question = f"{EVERYBODY} {n}"
    with r.costs(searches=4, calls=calls):
        answers = [r.ask(question, key=key, path=path) for key in SEES]
    assert {outcome(a) for a in answers} == {"miss"}
    with r.costs(searches=0, calls=0):
        again = [r.ask(question, key=key, path=path) for key in SEES]
    assert [text_of(a) for a in again] == [text_of(a) for a in answers]


def test_tenants_share_nothing(r: Rag, n: int) -> None:
    question = f"{EVERYBODY} {n}"
    with r.costs(searches=2, calls=2):
        ours, theirs = r.ask(question), r.ask(question, key=EVE)
    assert [outcome(ours), outcome(theirs)] == ["miss", "miss"]
    assert text_of(ours) != text_of(theirs)


def test_an_endpoint_is_for_its_retrievers_tenants(up: Upstream) -> None:
    extra = '  acme_only: {kind: http, url: "http://127.0.0.1:9/search", tenants: [acme]}\n'
    text = rag_text(up.url, "http://127.0.0.1:9/search", extra=extra)
    text = text.replace("\n  talk:", "\n  ours: {retrieval: {retriever: acme_only}}\n  talk:", 1)
    with running(text) as gw:
        assert error_of(gw.chat(path="/ours/v1", key=EVE), 403)["code"] == "endpoint_not_allowed"
        assert error_of(gw.chat(path="/ours/v1", key=ALICE), 502)["code"] == "retriever_unavailable"


# The semantic tier


@pytest.fixture(scope="module")
def meant(up: Upstream) -> Iterator[Rag]:
    """With an embedder for which the questions of tests.support.semantic mean the same."""
    with rag(up, embedders=lambda config: by_wording()) as library:
        library.shelf.put("reset.md", "To reset a password ask the help desk.")
        library.shelf.put("can.md", "A can of worms.", needs=["eng"])
        library.shelf.put("could.md", "It could rain.", needs=["eng"])
        until(lambda: said_ready(library))
        yield library


def said_ready(r: Rag) -> bool:
    return bool(r.gw.admin("GET", "/admin/stats").json()["semantic"]["state"] == "ready")


def room(question: str, n: int) -> list[Json]:
    return [{"role": "system", "content": f"You are assistant number {n}."}, {"role": "user", "content": question}]


def test_a_question_that_means_the_same_may_have_the_answer_of_the_same_pieces(meant: Rag, n: int) -> None:
    with meant.costs(searches=2, calls=1):
        first = meant.ask(messages=room(ASKED, n))
        second = meant.ask(messages=room(REWORDED, n))
    assert (outcome(first), outcome(second)) == ("miss", "semantic"), said(meant.gw, second)
    assert text_of(second) == text_of(first)
    assert shown(second) == shown(first) == ["handbook/reset.md@1"]
    assert cited(second, second.json()) == shown(second)
    assert cache_status(second)[0].startswith("semantic; hit")
    assert cache_status(second)[-1] == "retrieval; fwd=miss"
    with meant.costs(searches=0, calls=0):
        third = meant.ask(messages=room(REWORDED, n), stream=True)
    assert outcome(third) == "semantic"
    assert cited(third, answer_of(third)) == shown(first)


def test_a_question_that_means_the_same_does_not_have_the_answer_of_other_pieces(meant: Rag, n: int) -> None:
    """For Bob the other words find one document more."""
    first = meant.ask(messages=room(ASKED, n), key=BOB)
    with meant.costs(searches=1, calls=1):
        second = meant.ask(messages=room(REWORDED, n), key=BOB)
    assert outcome(second) == "miss"
    assert shown(first) == ["handbook/reset.md@1"]
    assert shown(second) == ["handbook/can.md@1", "handbook/reset.md@1"]
    assert text_of(first) != text_of(second)


def test_what_was_found_for_other_words_may_be_used_where_that_is_wanted(meant: Rag, n: int) -> None:
    """Here, too, Bob's other words would find one document more, and the answer would be another."""
    first = meant.ask(messages=room(ASKED, n), key=BOB, path="/alike/v1")
    with meant.costs(searches=0, calls=0):
        second = meant.ask(messages=room(TWICE_REWORDED, n), key=BOB, path="/alike/v1")
    assert (outcome(first), outcome(second)) == ("miss", "semantic")
    assert shown(second) == shown(first) == ["handbook/reset.md@1"]
    assert cache_status(second)[-1] == 'retrieval; hit; detail="similarity=1.00"'
    with meant.costs(searches=1, calls=1):
        third = meant.ask(
            messages=room(TWICE_REWORDED, n), key=BOB, path="/alike/v1", headers={"x-refrain-tier": "exact, retrieval"}
        )
    assert shown(third) == ["handbook/could.md@1", "handbook/reset.md@1"]
    stats = meant.gw.admin("GET", "/admin/stats").json()["tiers"]["retrieval"]["handbook"]
    assert stats["by_meaning"]["hits"] == 1


def test_a_changed_document_ends_what_means_the_same_too(meant: Rag, n: int) -> None:
    first = meant.ask(messages=room(ASKED, n))
    for _ in range(2):
        assert outcome(meant.ask(messages=room(REWORDED, n))) == "semantic"
    meant.rewrite("reset.md", "To reset a password call 555.", version=f"2.{n}")
    second = meant.ask(messages=room(REWORDED, n))
    assert outcome(second) == "miss"
    assert "call 555" in prompt_of(meant.up.seen[-1])
    assert text_of(second) != text_of(first)
    third = meant.ask(messages=room(ASKED, n))
    assert outcome(third) == "semantic"
    assert text_of(third) == text_of(second)
