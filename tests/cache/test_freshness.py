"""Freshness is one instant: before it the answer is fresh, from it on it is not."""

import math
from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.calendar import Period
from cache.freshness import AHEAD, SPREAD, Life, Verdict, expires_at, judge, refresh_at
from tests.contract.stores import START, key_of, make_entry

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
    assert at(-AHEAD, max_age=0).usable  # from the future: surely not older than asked
    entry = make_entry(created=START + 1000, expires=START + 1060)
    for now in (START, START + 1000 - AHEAD - 0.001):
        assert judge(entry, Life(60, 1e6, 1e6), now, max_stale=1e6) == Verdict(
            False, False, START + 1060 - now, "made_in_future"
        )
    assert judge(entry, Life(60), START + 1000 - AHEAD).usable
    assert judge(entry, Life(60), START + 1060).why == "expired"


BERLIN = ZoneInfo("Europe/Berlin")


def berlin(*when: int) -> float:
    return datetime(*when, tzinfo=BERLIN).timestamp()  # type: ignore[arg-type,misc]  # day and hour are there


@pytest.mark.parametrize(
    ("period", "made", "end"),
    [
        ("day", berlin(2026, 11, 30, 23, 59, 59), berlin(2026, 12, 1, 0)),
        ("day", berlin(2026, 12, 1, 0), berlin(2026, 12, 2, 0)),
        ("day", berlin(2026, 3, 29, 1), berlin(2026, 3, 30, 0)),  # 23 hours
        ("day", berlin(2026, 10, 25, 0), berlin(2026, 10, 26, 0)),  # 25 hours
        ("week", berlin(2026, 11, 29, 23, 59), berlin(2026, 11, 30, 0)),  # a Sunday
        ("week", berlin(2026, 11, 30, 0), berlin(2026, 12, 7, 0)),
        ("week", berlin(2026, 12, 31, 12), berlin(2027, 1, 4, 0)),
    ],
)
def test_an_answer_is_good_for_its_day_or_week(period: Period, made: float, end: float) -> None:
    life = Life(30 * 86_400, period=period, zone=BERLIN)
    entry = make_entry(created=made, expires=made + 1e9)
    assert judge(entry, life, end - 0.001).usable
    assert judge(entry, life, end).why == "expired"
    assert (life.turned(made, end - 0.001), life.turned(made, end)) == (False, True)
    assert expires_at(entry, Life(10, period=period, zone=BERLIN)) == min(made + 10, end)


def test_without_a_period_no_day_ends() -> None:
    assert not Life(60).turned(START, START + 1e9)


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


# Stale beside a refresh, or in place of an error

SOFT = Life(60, if_error=300, revalidate=30)
SPARE = Life(60, if_error=300)


@pytest.mark.parametrize(
    ("seconds", "usable", "refresh", "on_error"),
    [
        (0, True, False, False),
        (53.999, True, False, False),  # before any soft end
        (60 - MS, True, True, False),
        (60, True, True, True),
        (90 - MS, True, True, True),
        (90, False, False, True),
        (360 - MS, False, False, True),
        (360, False, False, False),
    ],
)
def test_each_end_is_one_instant(seconds: float, usable: bool, refresh: bool, on_error: bool) -> None:
    verdict = at(seconds, SOFT)
    assert (verdict.usable, verdict.refresh, verdict.on_error) == (usable, refresh, on_error)
    assert verdict.stale == (seconds >= 60)
    assert verdict.why == (None if usable else "expired")


def test_only_a_policy_that_refreshes_serves_stale_without_being_asked() -> None:
    for seconds in (60, 61, 300):
        verdict = at(seconds, SPARE)
        assert (verdict.usable, verdict.refresh, verdict.on_error) == (False, False, True)
    assert at(61, Life(60)) == Verdict(False, True, -1, "expired")
    assert at(61, Life(60, revalidate=30)) == Verdict(True, True, -1, refresh=True)


@pytest.mark.parametrize(
    ("seconds", "max_stale", "usable", "refresh"),
    [
        (65, 10, True, True),
        (70, 10, False, False),  # the request accepts less than the policy
        (65, 0, False, False),
        (100, 100, True, False),  # it accepts more, and the answer is kept for errors: served, but nothing is fetched
        (100, None, False, False),
        (359, math.inf, True, False),
        (360, math.inf, False, False),
    ],
)
def test_what_the_request_accepts_counts_where_it_says_so(
    seconds: float, max_stale: float | None, usable: bool, refresh: bool
) -> None:
    verdict = at(seconds, SOFT, max_stale=max_stale)
    assert (verdict.usable, verdict.refresh) == (usable, refresh)


@pytest.mark.parametrize("seconds", [55, 61, 100])
def test_who_asks_for_a_younger_answer_gets_no_old_one_and_none_in_place_of_an_error(seconds: float) -> None:
    verdict = at(seconds, SOFT, max_age=50)
    assert (verdict.usable, verdict.refresh, verdict.on_error) == (False, False, False)
    assert verdict.why == "older_than_asked"


def test_an_answer_is_of_use_as_long_as_its_longest_purpose() -> None:
    assert (Life(60).keep, SOFT.keep, SPARE.keep, Life(60, 1, 2).keep) == (0, 300, 300, 2)


# The soft end


def soft_end(name: str, life: Life = SOFT, **changes: Any) -> float:
    """Seconds after its making at which the entry of this name may be fetched anew."""
    return refresh_at(make_entry(name, **changes), life) - START


def test_soft_ends_are_spread_over_the_last_tenth() -> None:
    ends = sorted(soft_end(f"entry {n}") for n in range(400))
    first, last = 60 - 60 * SPREAD, 60.0
    assert first < ends[0] < ends[-1] <= last
    tenths = [0] * 10
    for end in ends:
        tenths[min(9, int((end - first) / (last - first) * 10))] += 1
    assert min(tenths) > 15, tenths  # 40 each, if they were quite even
    assert len(set(ends)) == 400


def test_one_key_has_one_soft_end() -> None:
    assert len({soft_end("a") for _ in range(3)}) == 1
    assert soft_end("a", body=b"another answer", user="bob") == soft_end("a")
    # Made later, it ends as much later.
    later = refresh_at(make_entry("a", created=START + 7, expires=START + 3607), SOFT)
    assert later - START - 7 == pytest.approx(soft_end("a"))


@pytest.mark.parametrize("share", [0, 1, 2**31, 2**32 - 1])
def test_the_share_of_the_life_is_in_the_key(share: int) -> None:
    entry = make_entry(key=share.to_bytes(4) + bytes(28))
    assert START + 60 - refresh_at(entry, SOFT) == pytest.approx(6 * share / 2**32, abs=1e-6)


@pytest.mark.parametrize("life", [Life(60), SPARE])
def test_without_a_refresh_there_is_no_soft_end(life: Life) -> None:
    for name in ("a", "b", "c"):
        assert refresh_at(make_entry(name), life) == START + 60
        assert not at(60 - MS, life).refresh


def test_what_was_stored_for_less_has_its_own_soft_end() -> None:
    entry = make_entry(expires=START + 10)
    assert START + 9 <= refresh_at(entry, SOFT) <= START + 10


@pytest.mark.slow
@given(st.binary(min_size=32, max_size=32), spans, spans, spans, spans)
def test_the_soft_end_is_never_after_the_end(key: bytes, stored: float, ttl: float, error: float, soft: float) -> None:
    life = Life(ttl, error, soft)
    entry = make_entry(key=key, expires=START + stored, keep_until=START + stored + life.keep)
    end, refresh = expires_at(entry, life), refresh_at(entry, life)
    assert START <= refresh <= end
    assert refresh >= end - (end - START) * SPREAD - 1e-6
    assert refresh == end or soft > 0
    assert refresh == refresh_at(replace(entry, body=b"other"), life)


@pytest.mark.slow
@given(st.sampled_from("abcdefgh").map(key_of), times, spans, spans, spans, st.none() | spans, st.none() | spans)
def test_a_refresh_goes_with_an_answer_and_a_spare_with_a_stale_one(
    key: bytes, now: float, ttl: float, error: float, soft: float, max_age: float | None, max_stale: float | None
) -> None:
    life = Life(ttl, error, soft)
    entry = make_entry(key=key, expires=START + 3600, keep_until=START + 3600 + life.keep)
    verdict = judge(entry, life, START + now, max_age=max_age, max_stale=max_stale)
    assert verdict.usable == (verdict.why is None)
    if verdict.refresh:
        assert verdict.usable
        assert soft > 0
        assert START + now >= refresh_at(entry, life)
        assert -verdict.ttl < soft
    if verdict.usable and verdict.stale:
        assert -verdict.ttl < (soft if max_stale is None else min(max_stale, life.keep))
    if verdict.on_error:
        assert verdict.stale
        assert -verdict.ttl < error
        assert max_age is None or (START + now) - START <= max_age
