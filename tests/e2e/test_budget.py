"""An endpoint's budget: a tier that would take too long is skipped, and says so; what is in memory is served, and a
budget is never an error."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.latency.budget import LEAST
from tests.support.gateway import config_text
from tests.support.semantic import ASKED, ONLY_CACHED, REWORDED, TWICE_REWORDED
from tests.support.slow import Slowed, SlowEmbedder, slowed
from tests.support.traffic import decision, error_of, outcome, text_of, upstream_calls
from tests.support.upstream import Upstream

Json = dict[str, Any]
SLOW = 0.3
"""Seconds that a tier takes which the budget of `swift` has no room for."""
ENDPOINTS = """
  swift: {budget: 250ms}
  patient: {budget: 1h}
  swift_exact: {budget: 250ms, cache: {semantic: off}}
  patient_exact: {budget: 1h, cache: {semantic: off}}
"""
SWIFT, PATIENT = "/swift/v1", "/patient/v1"
SWIFT_EXACT, PATIENT_EXACT = "/swift_exact/v1", "/patient_exact/v1"
_number = itertools.count(1)


def place(text: str) -> str:
    """Where these lie is the same; all others are far from everything."""
    return ASKED if text in (REWORDED, TWICE_REWORDED) else text


@pytest.fixture
def slow(up: Upstream, tmp_path: Path) -> Iterator[Slowed]:
    with slowed(config_text(up.url, extra=ENDPOINTS), tmp_path / "cache.db", SlowEmbedder(place)) as made:
        yield made


def said(slow: Slowed, answer: httpx.Response, tier: str) -> Json | None:
    return next((t for t in decision(slow.gw, answer)["tiers"] if t["tier"] == tier), None)


def skipped(slow: Slowed, answer: httpx.Response, tier: str) -> bool:
    member = f"{tier}; fwd=bypass"
    shown = member in answer.headers["cache-status"].split(", ")
    over = said(slow, answer, tier) == {"tier": tier, "result": "skipped", "why": "over_budget"}
    assert shown == over
    return over


def unheard(slow: Slowed, path: str = "/v1", times: int = 1) -> None:
    """Questions that nobody has asked before."""
    for _ in range(times):
        assert outcome(slow.gw.chat(f"Who is number {next(_number)}?", path=path)) == "miss"


def test_a_slow_embedder_is_not_waited_for(slow: Slowed, up: Upstream) -> None:
    slow.embedder.pause = SLOW
    unheard(slow, times=LEAST + 1)  # the first of a context needs no vector
    first = slow.gw.chat(ASKED, path=SWIFT)
    assert said(slow, first, "semantic") == {"tier": "semantic", "result": "miss", "why": "first_in_context"}
    embedded = len(slow.embedder.embedded)
    with upstream_calls(up, 1):
        second = slow.gw.chat(REWORDED, path=SWIFT)
    assert skipped(slow, second, "semantic")
    assert "semantic" not in decision(slow.gw, second)["phases"]
    assert len(slow.embedder.embedded) == embedded
    assert (second.status_code, outcome(second)) == (200, "miss")


def test_what_is_in_memory_costs_nothing(slow: Slowed, up: Upstream) -> None:
    slow.embedder.pause = SLOW
    slow.store.pause = SLOW
    unheard(slow, times=LEAST + 1)
    answer = slow.gw.chat(ASKED, path=SWIFT)
    assert skipped(slow, answer, "exact")
    with upstream_calls(up, 0):
        again = slow.gw.chat(ASKED, path=SWIFT, user="no alias leads from this body")
        assert (outcome(again), text_of(again)) == ("exact", text_of(answer))
        assert outcome(slow.gw.chat(ASKED, path=SWIFT)) == "exact"


def test_what_the_tier_has_answered_before_costs_nothing(slow: Slowed, up: Upstream) -> None:
    slow.gw.chat(ASKED, path=SWIFT)
    unheard(slow, SWIFT)
    found = slow.gw.chat(REWORDED, path=SWIFT)
    assert outcome(found) == "semantic"
    slow.embedder.pause = SLOW
    unheard(slow, times=LEAST + 1)
    assert skipped(slow, slow.gw.chat(TWICE_REWORDED, path=SWIFT), "semantic")
    with upstream_calls(up, 0):
        again = slow.gw.chat(REWORDED, path=SWIFT)
    assert (outcome(again), text_of(again)) == ("semantic", text_of(found))


def test_who_has_time_waits(slow: Slowed, up: Upstream) -> None:
    slow.embedder.pause = SLOW
    unheard(slow, times=LEAST + 1)
    answer = slow.gw.chat(ASKED, path=PATIENT)
    with upstream_calls(up, 1):
        unheard(slow, PATIENT)
        reworded = slow.gw.chat(REWORDED, path=PATIENT)
    assert (outcome(reworded), text_of(reworded)) == ("semantic", text_of(answer))
    assert decision(slow.gw, reworded)["phases"]["semantic"] >= SLOW * 1000 * 0.9


def test_before_a_handful_of_look_ups_nothing_is_known(slow: Slowed) -> None:
    slow.embedder.pause = SLOW
    slow.gw.chat(ASKED, path=SWIFT)
    for number in range(LEAST):
        answer = slow.gw.chat(f"Number {number}?", path=SWIFT)
        assert not skipped(slow, answer, "semantic"), number
    assert skipped(slow, slow.gw.chat(REWORDED, path=SWIFT), "semantic")


def test_a_tier_that_is_quick_enough_is_asked(slow: Slowed) -> None:
    unheard(slow, times=LEAST + 1)
    answer = slow.gw.chat(ASKED, path=SWIFT)
    unheard(slow, SWIFT)
    reworded = slow.gw.chat(REWORDED, path=SWIFT)
    assert (outcome(reworded), text_of(reworded)) == ("semantic", text_of(answer))


def test_what_was_skipped_is_learnt_all_the_same(slow: Slowed) -> None:
    """The question's answer is there for whoever asks in other words, once the tier is asked again."""
    slow.embedder.pause = SLOW
    unheard(slow, times=LEAST + 1)
    slow.gw.chat("Is anybody there?", path=SWIFT)
    answer = slow.gw.chat(ASKED, path=SWIFT)
    assert skipped(slow, answer, "semantic")
    assert slow.gw.admin("GET", "/admin/stats").json()["semantic"]["misses"]["over_budget"] == 1
    slow.embedder.pause = 0
    unheard(slow, times=64)  # so many look-ups are remembered
    reworded = slow.gw.chat(REWORDED, path=SWIFT)
    assert (outcome(reworded), text_of(reworded)) == ("semantic", text_of(answer))


def test_only_if_cached_is_kept_to_its_budget(slow: Slowed, up: Upstream) -> None:
    slow.embedder.pause = SLOW
    unheard(slow, times=LEAST + 1)
    slow.gw.chat(ASKED, path=SWIFT)
    with upstream_calls(up, 0):
        refused = slow.gw.chat(REWORDED, path=SWIFT, headers=ONLY_CACHED)
    error_of(refused, 504)
    assert skipped(slow, refused, "semantic")


def test_a_slow_store_is_not_waited_for(up: Upstream, tmp_path: Path) -> None:
    text, path = config_text(up.url, extra=ENDPOINTS), tmp_path / "cache.db"
    with slowed(text, path, SlowEmbedder(place)) as slow:
        kept = {path: text_of(slow.gw.chat(ASKED, path=path)) for path in (SWIFT_EXACT, PATIENT_EXACT)}
    with slowed(text, path, SlowEmbedder(place), store=SLOW) as slow:  # nothing is in memory
        unheard(slow, times=LEAST)
        asked = slow.store.asked
        with upstream_calls(up, 1):
            answer = slow.gw.chat(ASKED, path=SWIFT_EXACT)
        assert skipped(slow, answer, "exact")
        assert "exact" not in decision(slow.gw, answer)["phases"]
        assert slow.store.asked == asked
        assert text_of(answer) != kept[SWIFT_EXACT]
        with upstream_calls(up, 0):
            waited = slow.gw.chat(ASKED, path=PATIENT_EXACT)
        assert (outcome(waited), text_of(waited)) == ("exact", kept[PATIENT_EXACT])
        assert slow.store.asked == asked + 1
