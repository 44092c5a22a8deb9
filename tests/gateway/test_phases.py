"""The phases of a request: one after another, parts within them, and shares that sum to 1."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decisions import Decision, Tier
from gateway.latency.phases import OTHER, WITHIN, shares, spans


def outer(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [span for span in found if "within" not in span]


def shown(phases: dict[str, float], ms: float) -> list[tuple[str, float, float]]:
    return [(span["name"], span["start"], span["ms"]) for span in spans(phases, ms)]


MISS = {
    "auth": 1.0,
    "parse": 2.0,
    "exact": 3.0,
    "semantic": 4.0,
    "first_byte": 50.0,
    "upstream_queue": 10.0,
    "upstream_prefill": 30.0,
    "upstream": 80.0,
}


def test_a_miss_is_a_waterfall() -> None:
    assert shown(MISS, 100.0) == [
        ("auth", 0, 1),
        ("parse", 1, 2),
        ("exact", 3, 3),
        ("semantic", 6, 4),
        ("upstream", 10, 80),
        ("first_byte", 10, 50),
        ("upstream_queue", 10, 10),
        ("upstream_prefill", 20, 30),
        ("other", 90, 10),
    ]
    found = spans(MISS, 100.0)
    assert [span["share"] for span in outer(found)] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.8, 0.1])
    within = {name: outer for name, outer in WITHIN.items() if outer == "upstream"}
    assert {span["name"]: span["within"] for span in found if "within" in span} == within


def test_the_search_is_a_part_of_the_retrieval() -> None:
    phases = {"parse": 2.0, "search": 30.0, "retrieval": 40.0}
    assert shown(phases, 50.0) == [("parse", 0, 2), ("retrieval", 2, 40), ("search", 2, 30), ("other", 42, 8)]


def test_a_hit_is_one_phase_and_the_rest() -> None:
    assert shown({"exact": 0.25}, 1.0) == [("exact", 0, 0.25), ("other", 0.25, 0.75)]


def test_a_joiner_waits_and_then_reads() -> None:
    assert shown({"auth": 1.0, "join": 40.0}, 100.0) == [("auth", 0, 1), ("join", 1, 40), ("other", 41, 59)]


def test_of_a_stream_that_was_left_the_first_byte_stands_for_itself() -> None:
    assert shown({"auth": 1.0, "first_byte": 40.0, "upstream_queue": 10.0}, 50.0) == [
        ("auth", 0, 1),
        ("first_byte", 1, 40),
        ("upstream_queue", 41, 9),
        ("other", 50, 0),
    ]


def test_a_call_that_went_on_without_its_client_is_cut_where_that_left() -> None:
    found = spans({"auth": 1.0, "first_byte": 200.0, "upstream": 5000.0}, 101.0)
    assert [(s["name"], s["ms"]) for s in found] == [("auth", 1), ("upstream", 100), ("first_byte", 100), ("other", 0)]


def test_parts_never_leave_what_they_lie_within() -> None:
    found = spans({"upstream_queue": 30.0, "upstream_prefill": 90.0, "upstream": 100.0}, 100.0)
    assert [(s["name"], s["start"], s["ms"]) for s in found] == [
        ("upstream", 0, 100),
        ("upstream_queue", 0, 30),
        ("upstream_prefill", 30, 70),
        ("other", 100, 0),
    ]


def test_a_request_without_a_phase_or_a_time() -> None:
    assert spans({}, 5.0) == [{"name": "other", "start": 0, "ms": 5, "share": 1}]
    assert spans({"auth": 1.0}, 0.0) == [
        {"name": "auth", "start": 0, "ms": 0, "share": 0},
        {"name": "other", "start": 0, "ms": 0, "share": 0},
    ]


NAMES = ["auth", "parse", "exact", "semantic", "join", *WITHIN, "upstream", "something_new", OTHER]
TIMES = st.floats(0, 1e7)


@given(
    st.lists(st.sampled_from(NAMES), unique=True).flatmap(
        lambda names: st.fixed_dictionaries(dict.fromkeys(names, TIMES))
    ),
    st.floats(1e-3, 1e7),
)
def test_shares_sum_to_1_and_nothing_leaves_the_request(phases: dict[str, float], ms: float) -> None:
    found = spans(phases, ms)
    assert sum(span["share"] for span in outer(found)) == pytest.approx(1)
    assert sum(span["ms"] for span in outer(found)) == pytest.approx(ms)
    assert {span["name"] for span in found} == {*phases, OTHER}
    ends = 0.0
    for span in outer(found):
        assert span["start"] == pytest.approx(ends, abs=1e-6)
        ends = span["start"] + span["ms"]
    whole = {span["name"]: span for span in found}
    for span in found:
        assert span["ms"] >= 0
        assert 0 <= span["share"] <= 1 + 1e-9
        if "within" in span:
            parent = whole[span["within"]]
            assert span["start"] >= parent["start"] - 1e-6
            assert span["start"] + span["ms"] <= parent["start"] + parent["ms"] + 1e-6


@given(st.dictionaries(st.text(), st.fractions(0, 100), min_size=1).filter(lambda parts: any(parts.values())))
def test_shares_of_fractions_are_exact(parts: dict[str, Fraction]) -> None:
    found = shares(parts)
    assert list(found) == list(parts)
    assert sum(found.values()) == 1
    total = sum(parts.values())
    assert all(found[name] * total == part for name, part in parts.items())


def test_a_decision_shows_its_spans() -> None:
    d = Decision("req_1", 1.0, "default", "chat")
    d.phases, d.ms = {"auth": 1.00006, "exact": 2.0}, 9.0
    assert d.as_dict()["spans"] == [
        {"name": "auth", "start": 0, "ms": 1.0, "share": 0.111118},
        {"name": "exact", "start": 1.0, "ms": 2.0, "share": 0.222222},
        {"name": "other", "start": 3.0, "ms": 6.0, "share": 0.66666},
    ]


def test_a_refresh_is_no_part_of_the_request_that_caused_it() -> None:
    d = Decision("req_1", 1.0, "default", "chat")
    d.phases, d.ms = {"exact": 1.0, "first_byte": 30.0, "upstream": 900.0}, 2.0
    d.tiers = (Tier("exact", "hit", "stale_while_revalidate"),)
    assert [span["name"] for span in d.as_dict()["spans"]] == ["exact", "other"]
