"""Freshness is one instant: before it the answer is fresh, from it on it is not."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.freshness import Life, Verdict, expires_at, judge
from tests.contract.stores import START, make_entry

MS = 0.001
DAY = Life(86_400.0)


def at(seconds: float, life: Life = DAY, *, stored: float = 3600.0, **asked: Any) -> Verdict:
    """The verdict so many seconds after an answer was made that was stored for `stored` seconds."""
    entry = make_entry(expires=START + stored, keep_until=START + stored + life.keep)
    return judge(entry, life, START + seconds, **asked)


@pytest.mark.parametrize(("stored", "ttl", "expected"), [(3600, 60, 60), (60, 3600, 60), (60, 60, 60)])
def test_the_earlier_of_what_was_stored_and_todays_policy_counts(stored: float, ttl: float, expected: float) -> None:
    entry = make_entry(expires=START + stored)
    assert expires_at(entry, Life(ttl)) == START + expected


def test_an_answer_expires_at_one_instant() -> None:
    for life, stored in ((Life(60), 3600.0), (DAY, 60.0)):
        fresh, end, after = (at(60 + delta, life, stored=stored) for delta in (-MS, 0, MS))
        assert (fresh.usable, fresh.stale, fresh.why) == (True, False, None)
        assert fresh.ttl == pytest.approx(MS, abs=1e-6)
        assert (end.usable, end.stale, end.ttl, end.why) == (False, True, 0, "expired")
        assert (after.usable, after.stale, after.why) == (False, True, "expired")
        assert after.ttl < 0


def test_a_hit_does_not_extend_a_life() -> None:
    entry = make_entry(expires=START + 60)
    verdicts = [judge(entry, DAY, START + s).usable for s in (0, 30, 59, 59.9, 60, 61)]
    assert verdicts == [True, True, True, True, False, False]


def test_a_shorter_ttl_applies_to_what_is_stored_and_a_longer_one_does_not() -> None:
    assert at(61, Life(60)).why == "expired"
    assert at(3601, Life(1e9)).why == "expired"


@pytest.mark.parametrize(("max_age", "usable"), [(29.999, False), (30, True), (31, True), (math.inf, True), (0, False)])
def test_a_request_may_ask_for_a_younger_answer(max_age: float, usable: bool) -> None:
    verdict = at(30, max_age=max_age)
    assert verdict.usable == usable
    assert verdict.why == (None if usable else "older_than_asked")
    assert not verdict.stale
    assert verdict.ttl == 3570


def test_a_young_answer_may_still_be_stale() -> None:
    assert at(61, Life(60), max_age=1000).why == "expired"


@pytest.mark.parametrize(
    ("seconds", "max_stale", "keep", "usable"),
    [
        (60, math.inf, 100, True),
        (61, 10, 100, True),
        (69.999, 10, 100, True),
        (70, 10, 100, False),
        (70, math.inf, 10, False),
        (69.999, math.inf, 10, True),
        (61, math.inf, 0, False),
        (60, math.inf, 0, False),
        (61, 0, 100, False),
        (61, None, 100, False),
    ],
)
def test_a_stale_answer_needs_a_request_that_accepts_it_and_a_policy_that_keeps_it(
    seconds: float, max_stale: float | None, keep: float, usable: bool
) -> None:
    verdict = at(seconds, Life(60, keep), max_stale=max_stale)
    assert (verdict.usable, verdict.stale, verdict.why) == (usable, True, None if usable else "expired")
    assert verdict.ttl == pytest.approx(60 - seconds)


def test_a_fresh_answer_is_not_made_stale_by_a_request_that_would_accept_one() -> None:
    assert at(30, Life(60, 100), max_stale=100) == Verdict(True, False, 30)


def test_a_request_for_a_younger_answer_wins_over_one_that_accepts_a_stale_one() -> None:
    verdict = at(61, Life(60, 100), max_age=5, max_stale=100)
    assert (verdict.usable, verdict.stale, verdict.why) == (False, True, "older_than_asked")


def test_a_clock_that_steps_back_makes_nothing_immortal() -> None:
    assert at(-1000, max_age=0).usable  # from the future: surely not older than asked
    entry = make_entry(created=START + 1000, expires=START + 1060)
    assert judge(entry, Life(60), START).ttl == 1060
    assert judge(entry, Life(60), START + 1060).why == "expired"


times = st.floats(-1e6, 1e6)
spans = st.floats(0, 1e6)


@given(times, spans, spans, spans, st.none() | spans, st.none() | spans)
def test_a_verdict_never_contradicts_itself(
    now: float, stored: float, ttl: float, keep: float, max_age: float | None, max_stale: float | None
) -> None:
    life = Life(ttl, keep)
    verdict = at(now, life, stored=stored, max_age=max_age, max_stale=max_stale)
    assert verdict.usable == (verdict.why is None)
    assert verdict.stale == (verdict.ttl <= 0)
    if verdict.usable and verdict.stale:
        assert max_stale is not None
        assert -verdict.ttl < min(max_stale, keep)
    # Asking for less never gives more.
    free = at(now, life, stored=stored, max_stale=max_stale)
    assert free.usable or not verdict.usable
    strict = at(now, life, stored=stored, max_age=max_age)
    assert verdict.usable or not strict.usable
    assert strict.usable <= (not strict.stale)


@given(spans, spans, st.floats(0, 1e6))
def test_a_later_look_never_finds_it_fresher(stored: float, ttl: float, later: float) -> None:
    life = Life(ttl)
    assert at(10, life, stored=stored).usable >= at(10 + later, life, stored=stored).usable


def test_the_entry_is_not_touched() -> None:
    entry = make_entry()
    before = replace(entry)
    judge(entry, Life(1, 1), START + 2, max_age=1, max_stale=1)
    assert entry == before
