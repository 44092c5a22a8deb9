"""What a request to a RAG endpoint may ask of the caches, and what of it concerns the search."""

from tests.support.rag import LABEL, Rag, fixtures, shown
from tests.support.traffic import error_of, outcome, text_of

library, r, question = fixtures()


# What a request may ask for


def test_only_if_cached_needs_the_results_and_the_answer(r: Rag, question: str) -> None:
    only = {"cache-control": "only-if-cached"}
    with r.costs(searches=0, calls=0):
        assert error_of(r.ask(question, headers=only), 504)["code"] == "not_cached"
    r.ask(question)
    with r.costs(searches=0, calls=0):
        assert error_of(r.ask(question, path="/talk/v1", headers=only), 504)["code"] == "not_cached"
        got = r.ask(question, headers=only)
    assert (outcome(got), shown(got)) == ("exact", [LABEL])


def test_no_cache_searches_and_answers_anew_for_all_that_follow(r: Rag, question: str) -> None:
    first = r.ask(question)
    with r.costs(searches=1, calls=1):
        second = r.ask(question, headers={"cache-control": "no-cache"})
    with r.costs(searches=0, calls=0):
        third = r.ask(question)
    assert text_of(first) != text_of(second) == text_of(third)


def test_no_store_neither_looks_up_nor_keeps(r: Rag, question: str) -> None:
    for _ in range(2):
        with r.costs(searches=1, calls=1):
            got = r.ask(question, headers={"cache-control": "no-store"})
        assert (outcome(got), shown(got)) == ("bypass", [LABEL])
    with r.costs(searches=1, calls=1):
        assert outcome(r.ask(question)) == "miss"


def test_tiers_can_be_named(r: Rag, question: str) -> None:
    r.ask(question)
    with r.costs(searches=1, calls=0):
        assert outcome(r.ask(question, headers={"x-refrain-tier": "exact"})) == "exact"
    with r.costs(searches=0, calls=0):
        assert outcome(r.ask(question, headers={"x-refrain-tier": "exact, retrieval"})) == "exact"
    with r.costs(searches=0, calls=1):
        assert outcome(r.ask(question, headers={"x-refrain-tier": "retrieval"})) == "bypass"


def test_a_request_may_shorten_the_life_of_results_too(r: Rag, question: str) -> None:
    r.ask(question, headers={"x-refrain-ttl": "10s"})
    r.gw.clock.offset = 11
    with r.costs(searches=1, calls=1):
        assert outcome(r.ask(question)) == "miss"
