"""The decision over several neighbours: similarity, margin, votes, what guards veto, and stuffed prompts."""

import math
import time

import pytest

from cache.semantic.verifier import DEFAULT_THRESHOLD, NEIGHBOURS, Candidate, Verdict, verify

ASKED = "How do I replace the filter of the pump?"
NEAR = "How can I replace the pump's filter, please?"
FAR = [
    Candidate(f"{what} seems odd", 0.2, what) for what in ("rain", "music", "bread", "chess", "ink", "snow", "tea")
]  # fmt: skip


def test_nothing_near_is_a_refusal() -> None:
    assert verify(ASKED, []) == Verdict(None, 0.0, "similarity")


@pytest.mark.parametrize("similarity", [math.nan, math.inf, -math.inf])
def test_a_similarity_that_is_no_number_is_a_refusal(similarity: float) -> None:
    assert verify(ASKED, [Candidate(ASKED, similarity, 1)]) == Verdict(None, 0.0, "similarity")


def test_a_paraphrase_is_served_and_says_with_what_score() -> None:
    verdict = verify(ASKED, [Candidate(NEAR, 0.9, 1)])
    assert verdict.chosen == 0
    assert verdict.reason == ""
    assert verdict.score >= DEFAULT_THRESHOLD


def test_the_threshold_decides() -> None:
    score = verify(ASKED, [Candidate(NEAR, 0.9, 1)]).score
    assert verify(ASKED, [Candidate(NEAR, 0.9, 1)], threshold=score).chosen == 0
    refused = verify(ASKED, [Candidate(NEAR, 0.9, 1)], threshold=score + 1e-6)
    assert refused == Verdict(None, score, "similarity")


def test_a_lone_candidate_gets_nothing_from_its_surroundings() -> None:
    alone = verify(ASKED, [Candidate(NEAR, 0.8, 1)])
    known = verify(ASKED, [Candidate(NEAR, 0.8, 1), *FAR])
    assert alone.chosen is None
    assert known.chosen == 0


def test_another_answer_as_near_is_a_refusal() -> None:
    verdict = verify(ASKED, [Candidate(NEAR, 0.9, 1), Candidate(ASKED + " thanks", 0.89, 2), *FAR[:6]])
    assert verdict.chosen is None
    assert verdict.reason == "margin"


def test_of_two_answers_the_one_that_no_guard_objects_to_is_served() -> None:
    stored = [Candidate("How do I replace 2 filters of the pump?", 0.99, 1), Candidate(NEAR, 0.93, 2)]
    assert verify(ASKED, stored).chosen == 1


def test_many_wordings_of_one_answer_let_the_wording_differ_more() -> None:
    asked = "my pump will not draw water since the storm"
    wordings = ["pump gives nothing", "the well has run dry", "water stays away", "pump hums, yet no flow"]
    one = [Candidate(wordings[0], 0.78, 1), *FAR]
    four = [*(Candidate(w, 0.78 - n / 100, 1) for n, w in enumerate(wordings)), *FAR[:4]]
    assert verify(asked, four).score > verify(asked, one).score + 0.05


def test_the_word_that_all_wordings_share_and_the_question_replaces_is_what_counts() -> None:
    asked = "where do i buy gouda for a fondue"
    stored = [
        "where do i buy brie for a fondue",
        "buy brie for fondue where",
        "a fondue: where to buy brie",
        "buying brie for a fondue",
    ]
    around = [Candidate(text, 0.97 - n / 100, 1) for n, text in enumerate(stored)]
    assert verify(asked, [*around, *FAR[:4]]).reason in ("swapped", "words")
    # One of them with the same word shows that it makes no difference.
    around[3] = Candidate("where do i buy gouda for a fondue tonight or so", 0.94, 1)
    assert verify(asked, [*around, *FAR[:4]]).score > verify(asked, [*around[:3], *FAR[:5]]).score + 0.5


def test_strict_vetoes_what_votes_would_outweigh() -> None:
    asked = "pump hums but brings no water up the hill"
    stored = [
        "pump hums but brings no water",
        "pump hums and gives water sometimes",
        "no water, pump hums",
        "pump hums",
    ]
    around = [Candidate(text, 0.97, 1) for text in stored]
    loose, strict = verify(asked, around * 2), verify(asked, around * 2, strict=True)
    assert loose.score == strict.score
    assert strict.chosen is None or not strict.reason


def test_a_refusal_names_the_guard() -> None:
    assert verify("give me 2 ideas", [Candidate("give me 3 ideas", 0.99, 1)]).reason == "number"


STUFFED = (
    "How do I reset my password cancel my order track my parcel return a gift change my address close my account "
    "update my card delete my data contact support find my invoice"
)


@pytest.mark.parametrize(
    "asked",
    ["How do I reset my password?", "How do I cancel my order?", "How do I track my parcel?", "find my invoice", "hi"],
)
def test_a_prompt_stuffed_with_words_serves_nobody_else(asked: str) -> None:
    """Neither alone, nor in eight variants that all have its answer."""
    assert verify(asked, [Candidate(STUFFED, 0.95, 1)]).chosen is None
    variants = [Candidate(f"{STUFFED} {n * 'please '}", 0.95, 1) for n in range(NEIGHBOURS)]
    assert verify(asked, variants).chosen is None


def test_a_question_without_any_subject_is_never_served_by_another_subject() -> None:
    assert verify("what about it?", [Candidate("and then?", 0.89, 1)]).chosen is None
    assert verify("😀", [Candidate("😡", 0.99, 1)]).chosen is None


def test_the_same_input_gives_the_same_verdict() -> None:
    stored = [Candidate(NEAR, 0.9, 1), *FAR]
    assert verify(ASKED, stored) == verify(ASKED, stored)


def test_long_texts_take_no_longer_than_they_are_long() -> None:
    asked = "filter pump " * 300
    began = time.process_time()
    verify(asked, [Candidate(asked + str(n), 0.9, n) for n in range(NEIGHBOURS)])
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    "text", ["", "😀", "中文字中文", "to be or not to be", "from a to b from a to b", "1 + 1", "`x` _y"]
)
def test_the_same_text_is_always_served(text: str) -> None:
    assert verify(text, [Candidate(text, 1.0, 1)]).chosen == 0


def test_small_words_alone_are_served_where_they_are_the_same() -> None:
    assert verify("Yes, please", [Candidate("yes please!", 0.93, 1)]).chosen == 0
    assert verify("Yes, please", [Candidate("what is it", 0.93, 1)]).chosen is None
