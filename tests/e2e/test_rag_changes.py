"""Documents that change: each change ends exactly the answers that it should, the short way included."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import ALICE, BOB, Running, running
from tests.support.live import call, first_byte_held, gate, listening
from tests.support.rag import (
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
    shelf_of_three,
    shown,
)
from tests.support.retrievers import Document, serving
from tests.support.traffic import byte_identical, decision, error_of, outcome, text_of, until, upstream_calls
from tests.support.upstream import Upstream, numbered

pytestmark = pytest.mark.slow

Json = dict[str, Any]
_number = itertools.count(1)


@pytest.fixture
def r(up: Upstream) -> Iterator[Rag]:
    with rag(up) as library:
        yield library
    up.script = numbered


def ask_all(r: Rag, *, short: bool = True) -> dict[str, str]:
    """Three questions, each answered from one document; with `short` each has its short way afterwards."""
    found = {}
    for word, key in ((EVERYBODY, BOB), (HR, ALICE), (ENG, BOB)):
        for _ in range(3 if short else 1):
            answer = r.ask(word, key=key)
        found[word] = text_of(answer)
        assert byte_identical(r.gw, answer) == short
        assert shown(answer) == [f"handbook/{IDS[word]}@1"]
    return found


def ended(r: Rag, before: dict[str, str], *words: str) -> None:
    """Of the three answers these have ended and are made anew; the others are served, and soon the short way again."""
    for word, key in ((EVERYBODY, BOB), (HR, ALICE), (ENG, BOB)):
        with upstream_calls(r.up, word in words):
            answers = [r.ask(word, key=key) for _ in range(3)]
        said = [outcome(a) for a in answers]
        assert said == ["miss" if word in words else "exact", "exact", "exact"], word
        assert (text_of(answers[0]) == before[word]) == (word not in words), word
        assert r.tier(answers[0])["result"] == "miss", "after any change it is searched anew"
        assert byte_identical(r.gw, answers[2])


def test_a_changed_document_ends_its_answers_and_no_others(r: Rag) -> None:
    before = ask_all(r)
    r.rewrite(IDS[HR], "The salaries are paid on the 1st.")
    ended(r, before, HR)
    assert "paid on the 1st" in prompt_of(r.up.seen[-1])
    assert shown(r.ask(HR)) == [f"handbook/{IDS[HR]}@2"]


def test_a_document_that_changes_back_has_its_answer_again(r: Rag) -> None:
    """The key is of the text. But what was stored of a changed document is removed, so it is made once more."""
    before = ask_all(r)
    old = r.shelf.documents[IDS[HR]].text
    r.rewrite(IDS[HR], "The salaries are paid on the 1st.")
    r.ask(HR)
    r.rewrite(IDS[HR], old, version="1")
    ended(r, before, HR)


def test_a_new_document_ends_the_answers_that_it_would_be_in(r: Rag) -> None:
    before = ask_all(r)
    r.rewrite("new.md", "Some servers are for holidays.", version="1")
    ended(r, before, EVERYBODY, ENG)
    assert shown(r.ask(ENG, key=BOB)) == ["handbook/eng/servers.md@1", "handbook/new.md@1"]


def test_a_deleted_document_ends_its_answers_and_is_found_no_more(r: Rag) -> None:
    before = ask_all(r)
    r.change(IDS[ENG], deleted=True)  # the service has not heard of it yet
    ended(r, before, ENG)
    assert shown(r.ask(ENG, key=BOB)) == []
    assert "cellar" not in prompt_of(r.up.seen[-1])
    found = r.gw.admin("GET", "/admin/entries", params={"document": f"handbook/{IDS[ENG]}"}).json()["entries"]
    assert found == [], "what is stored of it is gone too"


def test_a_newly_forbidden_document_ends_its_answers_for_whom_it_is_forbidden(r: Rag) -> None:
    before = ask_all(r)
    theirs = r.ask(EVERYBODY, key=ALICE)
    assert text_of(theirs) == before[EVERYBODY]
    r.rewrite(IDS[EVERYBODY], r.shelf.documents[IDS[EVERYBODY]].text, version="1", needs=("hr",))
    with upstream_calls(r.up, 1):
        bobs = [r.ask(EVERYBODY, key=BOB) for _ in range(3)]
    assert [outcome(a) for a in bobs] == ["miss", "exact", "exact"]
    for answer in bobs:
        assert shown(answer) == []
        assert text_of(answer) != before[EVERYBODY]
    alices = r.ask(EVERYBODY, key=ALICE)
    assert shown(alices) == [f"handbook/{IDS[EVERYBODY]}@1"]
    assert text_of(alices) not in {text_of(b) for b in bobs}


def test_a_newly_allowed_document_is_found(r: Rag) -> None:
    before = ask_all(r)
    mine = [r.ask(HR, key=BOB) for _ in range(2)]
    assert shown(mine[1]) == []
    r.rewrite(IDS[HR], r.shelf.documents[IDS[HR]].text, version="1", needs=())
    with upstream_calls(r.up, 1):
        answer = r.ask(HR, key=BOB)
    assert shown(answer) == [f"handbook/{IDS[HR]}@1"]
    assert text_of(answer) not in {before[HR], text_of(mine[0])}
    with upstream_calls(r.up, 0):
        assert text_of(r.ask(HR, key=ALICE)) == text_of(answer), "the same pieces"


def test_a_service_that_lags_behind_its_notice_is_asked_until_it_has_the_new_version(r: Rag) -> None:
    r.ask(HR)
    r.change(IDS[EVERYBODY], version="2")
    with r.searches(3):
        for _ in range(3):
            assert shown(r.ask(EVERYBODY)) == [f"handbook/{IDS[EVERYBODY]}@1"]
    # What was found of other documents is kept meanwhile.
    r.ask(HR)
    with r.searches(0):
        r.ask(HR)
    r.shelf.documents[IDS[EVERYBODY]] = Document("The holidays are longer now.", "2")
    with r.searches(1):
        for _ in range(2):
            answer = r.ask(EVERYBODY)
            assert shown(answer) == [f"handbook/{IDS[EVERYBODY]}@2"]
    assert outcome(answer) == "exact"


def test_what_nobody_tells_of_is_noticed_when_the_results_have_expired(r: Rag) -> None:
    before = ask_all(r)
    r.shelf.put(IDS[EVERYBODY], "Everybody has holidays for 30 days.", version="2")
    with r.costs(searches=0, calls=0):
        assert text_of(r.ask(EVERYBODY, key=BOB)) == before[EVERYBODY]
    r.gw.clock.offset = 301
    with r.costs(searches=1, calls=1):
        answers = [r.ask(EVERYBODY, key=BOB) for _ in range(2)]
    assert "30 days" in prompt_of(r.up.seen[-1])
    assert [outcome(a) for a in answers] == ["miss", "exact"]
    with r.costs(searches=1, calls=0):
        again = r.ask(ENG, key=BOB)
    assert (outcome(again), text_of(again)) == ("exact", before[ENG]), "the answer outlives the results"
    assert r.tier(again)["result"] == "miss"


def test_a_change_while_the_answer_is_made_lets_it_be_delivered_and_not_kept(r: Rag) -> None:
    with gate() as event:
        r.up.script = first_byte_held(event)
        first = call(r.gw, HR, path="/talk/v1")
        listening(r.gw, 1)
        r.rewrite(IDS[HR], "The salaries are paid on the 1st.")
        second = call(r.gw, HR, path="/talk/v1")
        listening(r.gw, 2)
        event.set()
        old, new = first.result(), second.result()
    assert (outcome(old), outcome(new)) == ("miss", "miss"), "who comes after the change does not join"
    assert text_of(old) != text_of(new)
    assert decision(r.gw, old)["stored"] is False
    assert [shown(old), shown(new)] == [[f"handbook/{IDS[HR]}@1"], [f"handbook/{IDS[HR]}@2"]]
    with upstream_calls(r.up, 0):
        again = r.ask(HR, path="/talk/v1")
    assert text_of(again) == text_of(new)


def test_a_change_of_another_document_meanwhile_is_none(r: Rag) -> None:
    with gate() as event:
        r.up.script = first_byte_held(event)
        first = call(r.gw, HR, path="/talk/v1")
        listening(r.gw, 1)
        r.rewrite(IDS[ENG], "No servers any more.")
        second = call(r.gw, HR, path="/talk/v1")
        listening(r.gw, 2)
        event.set()
        answers = [first.result(), second.result()]
    assert [outcome(a) for a in answers] == ["miss", "joined"]
    assert decision(r.gw, answers[0])["stored"] is True


def test_a_purge_by_document_removes_what_is_stored_of_it_alone(r: Rag) -> None:
    before = ask_all(r)
    found = r.gw.admin("POST", "/admin/purge", json={"documents": [f"handbook/{IDS[ENG]}"]})
    assert found.json()["purged"] >= 3, "the answer, its results, its pieces"
    ended(r, before, ENG)


def test_a_purge_of_an_answer_alone_leaves_the_results(r: Rag) -> None:
    ask_all(r)
    key = decision(r.gw, r.ask(ENG, key=BOB))["key"]
    assert r.gw.admin("POST", "/admin/purge", json={"key": key}).json() == {"purged": 1}
    with r.costs(searches=0, calls=1):
        answer = r.ask(ENG, key=BOB)
    assert (outcome(answer), cache_status(answer)[-1]) == ("miss", "retrieval; hit")


def test_why_tells_that_it_was_the_documents(r: Rag) -> None:
    ask_all(r)
    r.rewrite("new.md", "Some servers are for holidays.", version="1")
    answer = r.ask(ENG, key=BOB)
    why = until(lambda: decision(r.gw, answer).get("why"))
    assert why["code"] == "documents", why


# Reloads


def ask(gw: Running, question: str, **more: Any) -> httpx.Response:
    return gw.chat(question, path="/hr/v1", **more)


def test_a_reload_that_swaps_the_retriever_while_requests_run(up: Upstream, tmp_path: Path) -> None:
    """Each request is answered whole, from the old documents or from the new ones; and soon only from the new ones."""
    old, new = shelf_of_three(), shelf_of_three()
    new.put(IDS[EVERYBODY], "Nobody has holidays any more.", version="9")
    path = tmp_path / "refrain.yaml"
    with serving(old) as one, serving(new) as two, running(rag_text(up.url, one), path=path) as gw:
        assert shown(ask(gw, EVERYBODY)) == ["handbook/holidays.md@1"]
        stop = threading.Event()
        seen: list[tuple[int, str]] = []

        def go_on(number: int) -> None:
            with httpx.Client(base_url=gw.url, timeout=30, trust_env=False) as client:
                mine = Running(gw.url, gw.clock, client)
                turn = 0
                while not stop.is_set():
                    turn += 1
                    question = EVERYBODY if turn % 2 else f"{EVERYBODY} {number} {turn}"
                    got = ask(mine, question)
                    seen.append((got.status_code, ", ".join(shown(got))))

        threads = [threading.Thread(target=go_on, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(seen) > 20)
        path.write_text(rag_text(up.url, two))
        until(lambda: shown(ask(gw, EVERYBODY)) == ["handbook/holidays.md@9"])
        mark = len(seen) + 8
        until(lambda: len(seen) > mark + 20)
        stop.set()
        for thread in threads:
            thread.join()
        assert {status for status, _ in seen} == {200}
        assert {documents for _, documents in seen[:20]} == {"handbook/holidays.md@1"}
        assert {documents for _, documents in seen[mark:]} == {"handbook/holidays.md@9"}
        until(lambda: text_of(ask(gw, EVERYBODY)))
        assert "Nobody has holidays" in prompt_of(up.seen[-1])


def test_a_retriever_of_another_name_is_cited_and_purged_by_that_name(up: Upstream, tmp_path: Path) -> None:
    """Also where its documents are the same, word for word."""
    path = tmp_path / "refrain.yaml"
    with serving(shelf_of_three()) as url, running(rag_text(up.url, url), path=path) as gw:
        assert shown(ask(gw, EVERYBODY)) == ["handbook/holidays.md@1"]
        path.write_text(rag_text(up.url, url).replace("handbook", "manual"))
        got = until(lambda: (a := ask(gw, EVERYBODY)) and shown(a) == ["manual/holidays.md@1"] and a)
        assert cited(got, got.json()) == ["manual/holidays.md@1"]
        gw.admin("POST", "/admin/purge", json={"documents": ["manual/holidays.md"]})
        with upstream_calls(up, 1):
            assert outcome(ask(gw, EVERYBODY)) == "miss"


def test_another_template_is_another_answer(up: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "refrain.yaml"
    with serving(shelf_of_three()) as url, running(rag_text(up.url, url), path=path) as gw:
        gw.chat(EVERYBODY, path="/worded/v1")
        first = gw.chat(EVERYBODY, path="/worded/v1")
        path.write_text(rag_text(up.url, url).replace("Now: {question}", "Well: {question}"))
        until(lambda: text_of(gw.chat(EVERYBODY, path="/worded/v1")) != text_of(first))
        assert prompt_of(up.seen[-1]).endswith(f"Well: {EVERYBODY}")


def test_a_retriever_that_is_no_longer_for_this_tenant_answers_nobody(up: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "refrain.yaml"
    with serving(shelf_of_three()) as url, running(rag_text(up.url, url), path=path) as gw:
        for _ in range(3):
            last = ask(gw, EVERYBODY)
        assert byte_identical(gw, last)
        path.write_text(rag_text(up.url, url).replace("version: $.version", "version: $.version, tenants: [globex]", 1))
        refused = until(lambda: (a := ask(gw, EVERYBODY)).status_code != 200 and a)
        assert error_of(refused, 403)["code"] == "endpoint_not_allowed"
        assert "x-refrain-documents" not in refused.headers
