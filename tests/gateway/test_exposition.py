"""Pages of metrics, read back by the library of their format; and that the check of them finds what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics.histogram import Histogram
from gateway.metrics.page import Page
from tests.gateway.values import some
from tests.support.exposition import families, faults, needs_promtool, promtool, samples


def test_the_three_kinds() -> None:
    page, times = Page(), Histogram((0.5, 1.0))
    for seconds in (0.25, 0.75, 3.0):
        times.add(seconds)
    page.counter("refrain_things_total", "Things.", ("a", "b"), {("x", ""): 3, ("y", "z"): 0.5})
    page.number("refrain_up", "1 if it is up.", True)
    page.histogram("refrain_things_seconds", "Times.", ("a",), {("x",): times})
    assert page.text().decode() == (
        "# HELP refrain_things_total Things.\n"
        "# TYPE refrain_things_total counter\n"
        'refrain_things_total{a="x",b=""} 3.0\n'
        'refrain_things_total{a="y",b="z"} 0.5\n'
        "# HELP refrain_up 1 if it is up.\n"
        "# TYPE refrain_up gauge\n"
        "refrain_up 1.0\n"
        "# HELP refrain_things_seconds Times.\n"
        "# TYPE refrain_things_seconds histogram\n"
        'refrain_things_seconds_bucket{a="x",le="0.5"} 1.0\n'
        'refrain_things_seconds_bucket{a="x",le="1.0"} 2.0\n'
        'refrain_things_seconds_bucket{a="x",le="+Inf"} 3.0\n'
        'refrain_things_seconds_count{a="x"} 3.0\n'
        'refrain_things_seconds_sum{a="x"} 4.0\n'
    )


def test_a_histogram_without_labels_and_a_family_without_samples() -> None:
    page = Page()
    page.counter("refrain_things_total", "Things.", ("a",), {})
    page.histogram("refrain_lag_seconds", "Lag.", (), {(): Histogram((1.0,))})
    text = page.text().decode()
    assert families(text).keys() == {"refrain_things_total", "refrain_lag_seconds"}
    assert ("refrain_lag_seconds_bucket", frozenset({("le", "+Inf")})) in samples(text)


@some
@given(st.text(st.characters(codec="utf-8")))
def test_a_label_can_have_any_value(value: str) -> None:
    page = Page()
    page.gauge("refrain_thing", "Things.", ("a", "b"), {(value, "x"): 1})
    assert samples(page.text().decode()) == {("refrain_thing", frozenset({("a", value), ("b", "x")})): 1.0}


@needs_promtool
def test_prometheus_reads_hostile_labels() -> None:
    hostile = ['"} 1\nrefrain_evil 1', "\\", '\\"', "\x00", "{}", "\u2028", "é", "#"]
    page = Page()
    page.gauge("refrain_thing", "Things.", ("a",), {(value,): 1 for value in hostile})
    promtool("check", "metrics", stdin=page.text().decode())


@pytest.mark.parametrize("value", [float("inf"), -1.0, float("nan")])
def test_the_check_finds_values_that_make_no_sense(value: float) -> None:
    page = Page()
    page.number("refrain_thing", "A thing.", value)
    assert list(faults(page.text().decode())) == ["refrain_thing: a value that is negative or no number"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# HELP thing A.\n# TYPE thing gauge\nthing 1\n", "lower case"),
        ("# HELP refrain_a_total A.\n# TYPE refrain_a_total gauge\nrefrain_a_total 1\n", "_total"),
        ("# HELP refrain_thing A.\n# TYPE refrain_thing counter\nrefrain_thing 1\n", "_total"),
        ("# HELP refrain_a_ms A.\n# TYPE refrain_a_ms gauge\nrefrain_a_ms 1\n", "base unit"),
        ("# HELP refrain_a a\n# TYPE refrain_a gauge\nrefrain_a 1\n", "sentence"),
        ("# TYPE refrain_a gauge\nrefrain_a 1\n", "pairs"),
        ('# HELP refrain_a A.\n# TYPE refrain_a gauge\nrefrain_a{a="1"} 1\nrefrain_a{b="1"} 1\n', "label names"),
        ("# HELP refrain_a A.\n# TYPE refrain_a gauge\nrefrain_a 1\n\n", "newline"),
    ],
    ids=["foreign", "gauge", "counter", "unit", "help", "alone", "labels", "lines"],
)
def test_the_check_finds_what_is_against_the_rules(text: str, fault: str) -> None:
    assert fault in " ".join(faults(text))
