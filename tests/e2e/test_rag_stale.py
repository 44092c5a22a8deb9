"""RAG endpoints where something else is gone: the backend, the life of an answer, a text in the store."""

from tests.support.live import settled
from tests.support.rag import (
    EVERYBODY,
    FALLEN,
    HR,
    IDS,
    LABEL,
    Rag,
    cache_status,
    cited,
    fixtures,
    prompt_of,
    shelf_of_three,
    shown,
    unasked,
)
from tests.support.traffic import error_of, outcome, text_of
from tests.support.upstream import Reply

library, r, question = fixtures()


# The backend is down


def test_a_stale_answer_stands_in_for_an_error_as_long_as_its_documents_are_the_same(r: Rag) -> None:
    question = unasked(HR)
    first = r.ask(question, path="/lasting/v1")
    r.gw.clock.offset = 61
    r.up.script = lambda seen, number: Reply([b"{}"], status=503)
    for _ in range(2):
        stale = r.ask(question, path="/lasting/v1")
        assert (outcome(stale), text_of(stale)) == ("stale", text_of(first))
        assert shown(stale) == shown(first) == [f"handbook/{IDS[HR]}@1"]
        assert cited(stale, stale.json()) == shown(first)
        assert cache_status(stale)[-1] == "retrieval; hit"
    r.rewrite(IDS[HR], "The salaries are paid on the 1st.")
    got = r.ask(question, path="/lasting/v1")
    assert got.status_code == 503
    assert text_of(first) not in got.text
    r.rewrite(IDS[HR], shelf_of_three().documents[IDS[HR]].text, version="1")


def test_a_stale_answer_is_made_anew_from_the_documents(r: Rag, question: str) -> None:
    first = r.ask(question, path="/soft/v1")
    r.gw.clock.offset = 61
    with r.costs(searches=0, calls=1):
        stale = r.ask(question, path="/soft/v1")
        settled(r.gw)
    assert (outcome(stale), text_of(stale), shown(stale)) == ("stale", text_of(first), [LABEL])
    assert "25 days" in prompt_of(r.up.seen[-1])
    fresh = r.ask(question, path="/soft/v1")
    assert (outcome(fresh), shown(fresh)) == ("exact", [LABEL])
    assert text_of(fresh) != text_of(first)
    assert cited(fresh, fresh.json()) == [LABEL]


# Texts that the store has lost


def lose_texts(r: Rag, document: str) -> None:
    found = r.gw.admin("GET", "/admin/entries", params={"document": document}).json()["entries"]
    keys = [entry["key"] for entry in found if entry["api"] == "chunk"]
    assert keys
    for key in keys:
        assert r.gw.admin("POST", "/admin/purge", json={"key": key}).json() == {"purged": 1}


def test_a_text_that_is_gone_is_searched_for_when_an_answer_is_made(r: Rag, question: str) -> None:
    first = r.ask(question)
    lose_texts(r, LABEL)
    with r.costs(searches=0, calls=0):
        assert text_of(r.ask(question, stream=True)) == text_of(first), "an answer that is there needs none"
    with r.costs(searches=1, calls=1):
        got = r.ask(question, path="/talk/v1")
    assert (outcome(got), shown(got)) == ("miss", [LABEL])
    assert r.tier(got)["why"] == "text_gone"
    assert "25 days" in prompt_of(r.up.seen[-1])


def test_a_text_that_is_gone_for_good_is_an_error_and_no_answer(r: Rag, question: str) -> None:
    r.ask(question)
    lose_texts(r, LABEL)
    r.shelf.fails = FALLEN
    with r.costs(searches=1, calls=0):
        error = error_of(r.ask(question, temperature=0), 502)
    assert error["code"] == "retriever_unavailable"
    settled(r.gw)
    r.shelf.fails = None
    with r.costs(searches=1, calls=1):
        assert outcome(r.ask(question, temperature=0)) == "miss"


def test_a_document_that_changed_without_a_word_is_in_no_prompt_of_the_old_key(r: Rag, question: str) -> None:
    """Its text is gone, and what is found now is another one: whoever asks again has it."""
    r.ask(question)
    lose_texts(r, LABEL)
    r.shelf.put(IDS[EVERYBODY], "Everybody has holidays for 30 days.", version="2")
    with r.costs(searches=1, calls=0):
        got = r.ask(question, temperature=0)
    assert error_of(got, 503)["code"] == "documents_changed"
    assert got.headers["retry-after"] == "1"
    with r.costs(searches=0, calls=1):
        again = r.ask(question, temperature=0)
    assert (outcome(again), shown(again)) == ("miss", ["handbook/holidays.md@2"])
    assert "30 days" in prompt_of(r.up.seen[-1])
