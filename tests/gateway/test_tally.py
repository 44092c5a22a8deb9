"""The ledger's sums as the overview shows them."""

from typing import Any

import pytest

from gateway.dashboard.tally import ALL, DAY, MOST_POINTS, RANGES, Window, as_dict, window
from gateway.ledger.ledger import SECONDS, Sums
from gateway.ledger.table import NOTHING, Line, Point, Summary

NOW = 1_000_000_000.0


def sums(**values: Any) -> Sums:
    out = Sums()
    for name, value in values.items():
        setattr(out, name, value)
    return out


# The window


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("now", [NOW, NOW + 0.001, NOW + 59.999, NOW + 12345.6])
def test_a_window_ends_with_the_point_that_is_under_way(name: str, now: float) -> None:
    span = window(name, now)
    assert span.start % span.step == 0
    assert span.current <= now < span.end
    assert span.step * span.points == RANGES[name][0]
    assert 15 <= span.points <= 200


def test_the_next_point_moves_the_window_by_one() -> None:
    step = RANGES["1h"][1]
    before, after = (window("1h", NOW // step * step + offset) for offset in (-0.01, 0))
    assert after == before._replace(start=before.start + step)


def test_all_begins_with_the_first_day() -> None:
    assert window(ALL, NOW) == Window(int(NOW // DAY) * DAY, DAY, 1)
    assert window(ALL, NOW, NOW) == window(ALL, NOW)
    assert window(ALL, NOW, NOW + 5 * DAY) == window(ALL, NOW)  # a clock that was set back
    week = window(ALL, NOW, NOW - 7 * DAY)
    assert (week.start, week.step, week.points) == (int((NOW - 7 * DAY) // DAY) * DAY, DAY, 8)


@pytest.mark.parametrize("days", [1, 399, 400, 401, 3000, 20_000])
def test_all_has_never_too_many_points(days: int) -> None:
    first = NOW - days * DAY
    span = window(ALL, NOW, first)
    assert span.points <= MOST_POINTS + 1
    assert span.start <= first < span.start + span.step
    assert span.current <= NOW < span.end
    assert span.start % span.step == 0


# What is shown


def test_sums_are_shown_by_outcome_name_and_time() -> None:
    summary = Summary(
        {
            "miss": sums(requests=2, consumed=30, usd=0.3, usd_unserved=0.1),
            "exact": sums(requests=5, saved=50, usd_saved=0.5, ms_saved=1000.0),
            "joined": sums(requests=1, saved=7),
            "error": sums(requests=2, errors=2),
        },
        {
            (600, "miss"): Point(2, 0, 30, 0.0, 0.3, 0.0),
            (600, "exact"): Point(5, 50, 0, 0.5, 0.0, 1000.0),
            (720, "joined"): Point(1, 7, 0, 0.0, 0.0, 0.0),
            (720, "error"): Point(2, 0, 0, 0.0, 0.0, 0.0),
        },
        [Line("a", 7, 5, 50, 0.5, 0.3), Line("b", 3, 1, 7)],
        [Line("acme", 10)],
        [],
    )
    out = as_dict(summary, Window(600, 60, 3))
    assert out["range"] == {"from": 600, "to": 780, "step": 60}
    totals = out["totals"]
    assert totals["requests"] == {"miss": 2, "exact": 5, "joined": 1, "error": 2}
    assert (totals["errors"], totals["tokens"]["saved"], totals["ms_saved"]) == (2, 57, 1000)
    assert (totals["usd"]["consumed"], totals["usd"]["served"]) == (0.3, pytest.approx(0.7))
    assert totals["hit_rate"] == 6 / 8  # what was refused is no request that could have been a hit
    series = out["series"]
    assert series["time"] == [600, 660, 720]
    assert series["requests"] == {"miss": [2, 0, 0], "exact": [5, 0, 0], "joined": [0, 0, 1], "error": [0, 0, 2]}
    assert series["tokens"] == {"saved": [50, 0, 7], "consumed": [30, 0, 0]}
    assert series["usd"] == {"saved": [0.5, 0, 0], "consumed": [0.3, 0, 0]}
    assert series["ms_saved"] == [1000, 0, 0]
    assert out["endpoints"][0] == {
        "name": "a",
        "requests": 7,
        "hits": 5,
        "tokens_saved": 50,
        "usd_saved": 0.5,
        "usd_consumed": 0.3,
    }
    assert ([row["name"] for row in out["endpoints"]], len(out["tenants"]), out["models"]) == (["a", "b"], 1, [])


def test_nothing_at_all_is_shown_as_nothing() -> None:
    out = as_dict(NOTHING, Window(0, 60, 2))
    assert out["totals"]["hit_rate"] is None
    assert out["totals"]["requests"] == out["outcomes"] == out["series"]["requests"] == {}
    assert out["series"]["time"] == [0, 60]
    assert out["series"]["usd"] == {"saved": [0, 0], "consumed": [0, 0]}


def test_percentiles_by_outcome() -> None:
    buckets = [0] * (len(SECONDS) + 1)
    buckets[0], buckets[-1] = 90, 10
    summary = NOTHING._replace(outcomes={"miss": sums(requests=100, buckets=buckets)})
    times = as_dict(summary, Window(0, 60, 1))["outcomes"]["miss"]
    assert times["requests"] == 100
    assert times["p50"] < 0.1
    assert times["p95"] == times["p99"] == 300_000
    assert times["first_p50"] is None


def test_what_backends_had_of_prompts_is_compared_with_what_they_were_sent() -> None:
    """By whichever requests: the calls that refresh stale answers are theirs whom these have served."""
    outcomes = {"miss": sums(input=100, prompt=150, cached=60), "stale": sums(input=900, prompt=50, cached=40)}
    assert as_dict(NOTHING._replace(outcomes=outcomes), Window(0, 60, 1))["prefix"] == {"input": 200, "cached": 100}
