"""`refrain estimate`: the figures worked out, as text and as JSON, and what is refused."""

import json
import re
import shlex
import textwrap
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.prices.hourly import call_parts, per_thousand, responses_per_second

LATENCY = "--input 2000 --output 300 --prefill 40000 --decode 120"
COST = "--decode 2400 --output 300 --hourly 3.60 --utilization 0.70"
TRACE = "--trace retrieval=2,prefill=1,decode=4"


def estimate(text: str) -> Result:
    return CliRunner().invoke(app, ["estimate", *shlex.split(text)], env={"COLUMNS": "200"})


def shown(text: str) -> str:
    result = estimate(text)
    assert result.exit_code == 0, result.output
    return result.stdout


def figures(text: str) -> dict[str, Any]:
    return dict(json.loads(shown(f"{text} --json")))


def test_the_latency() -> None:
    assert shown(LATENCY).splitlines() == [
        "overhead     80 ms    3.0%",
        "prefill      50 ms    1.9%",
        "decode    2,500 ms   95.1%",
        "latency   2,630 ms",
    ]
    found = figures(LATENCY)
    assert found.keys() == {"latency"}
    assert found["latency"]["ms"] == 2630
    assert {name: phase["ms"] for name, phase in found["latency"]["phases"].items()} == {
        "overhead": 80,
        "prefill": 50,
        "decode": 2500,
    }
    assert sum(phase["share"] for phase in found["latency"]["phases"].values()) == pytest.approx(1)


def test_throughput_and_cost() -> None:
    assert shown(COST).splitlines() == [
        "throughput  5.6 responses/s",
        "cost        0.1786 USD per 1,000 responses",
    ]
    found = figures(COST)
    assert found.keys() == {"throughput", "cost"}
    assert found["throughput"]["responses_per_second"] == pytest.approx(5.6)
    assert found["cost"]["usd_per_1000"] == pytest.approx(3.60 / (5.6 * 3600) * 1000)


def test_the_shares_of_a_trace() -> None:
    assert shown(TRACE).splitlines() == [
        "retrieval  2/7   28.6%",
        "prefill    1/7   14.3%",
        "decode     4/7   57.1%",
    ]
    assert figures(TRACE) == {
        "trace": {
            "retrieval": {"seconds": 2, "share": 2 / 7, "fraction": "2/7"},
            "prefill": {"seconds": 1, "share": 1 / 7, "fraction": "1/7"},
            "decode": {"seconds": 4, "share": 4 / 7, "fraction": "4/7"},
        }
    }


def test_the_page_shows_what_is_printed() -> None:
    """Each block of docs/latency.md that runs the command."""
    page = (Path(__file__).parents[3] / "docs" / "latency.md").read_text()
    runs = re.findall(r"^    \$ refrain estimate (.+)\n((?:    .+\n)+)", page, re.MULTILINE)
    assert len(runs) == 3
    for args, output in runs:
        assert shown(args) == textwrap.dedent(output)


def test_everything_at_once() -> None:
    found = figures(f"{LATENCY} --hourly 3.60 --utilization 0.70 {TRACE}")
    assert found.keys() == {"latency", "throughput", "cost", "trace"}
    assert found["latency"]["ms"] == 2630
    text = shown(f"{LATENCY} --hourly 3.60 --utilization 0.70 {TRACE}")
    assert text.count("\n\n") == 2


def test_the_overhead_can_be_another_one_and_none() -> None:
    assert figures(f"{LATENCY} --overhead 500")["latency"]["ms"] == 3050
    assert figures(f"{LATENCY} --overhead 0")["latency"]["ms"] == 2550


def test_throughput_alone_needs_no_price() -> None:
    assert shown("--decode 2400 --output 300 --utilization 0.70") == "throughput  5.6 responses/s\n"


def test_decimal_seconds_are_read_exactly() -> None:
    found = figures("--trace 'one = 0.1, two=0.2,three=0.0'")["trace"]
    assert {name: phase["fraction"] for name, phase in found.items()} == {"one": "1/3", "two": "2/3", "three": "0"}


def test_an_unwieldy_fraction_is_left_to_the_json() -> None:
    text = "--trace a=1.00001,b=2"
    assert [line.split() for line in shown(text).splitlines()] == [["a", "33.3%"], ["b", "66.7%"]]
    assert figures(text)["trace"]["a"]["fraction"] == str(Fraction(100001, 300001))


@pytest.mark.parametrize("name", ["input", "output", "prefill", "decode", "hourly", "utilization"])
@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "-inf", "1e400", "1e-300", "x", "''"])
def test_a_figure_that_is_none_is_refused_by_name(name: str, value: str) -> None:
    options = {**dict(zip(shlex.split(LATENCY)[::2], shlex.split(LATENCY)[1::2], strict=True))}
    options |= {"--hourly": "3.60", "--utilization": "0.70", f"--{name}": value}
    result = estimate(" ".join(f"{k} {v}" for k, v in options.items()))
    assert result.exit_code == 2
    assert f"--{name}" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("", "Give --input and --prefill for a latency"),
        ("--decode 120 --output 300", "Invalid value for --output --decode: Give --input and --prefill"),
        ("--input 2000", "Invalid value for --prefill --output --decode: must be given with --input."),
        ("--overhead 10", "must be given with --overhead."),
        ("--hourly 3.60 --output 3", "Invalid value for --decode --utilization: must be given with --output --hourly."),
        (f"{LATENCY} --overhead -1", "Invalid value for '--overhead': must be a number of 0 or more"),
        (f"{LATENCY} --overhead nan", "Invalid value for '--overhead'"),
        ("--decode 1 --output 1 --utilization 70", "Invalid value for '--utilization': must be above 0 and at most 1"),
        ("--trace ''", "Invalid value for --trace: needs name=seconds"),
        ("--trace retrieval", "Invalid value for --trace: needs name=seconds"),
        ("--trace =2", "Invalid value for --trace: needs name=seconds"),
        ("--trace a=1,,b=2", "Invalid value for --trace: needs name=seconds"),
        ("--trace a=1,a=2", "Invalid value for --trace: names 'a' twice."),
        ("--trace a=-1", "Invalid value for --trace: needs seconds of 0 or more for 'a'"),
        ("--trace a=nan", "Invalid value for --trace: needs seconds of 0 or more for 'a'"),
        ("--trace a=1/3", "Invalid value for --trace: needs seconds of 0 or more for 'a'"),
        ("--trace a=1e9999999", "Invalid value for --trace: needs seconds of 0 or more for 'a'"),
        ("--trace a=0,b=0.0", "Invalid value for --trace: needs a phase that takes more than 0 seconds."),
        ("--trace '[/x]=1,[/x]=2'", "Invalid value for --trace: names '[/x]' twice."),
    ],
)
def test_what_is_refused(args: str, message: str) -> None:
    result = estimate(args)
    assert result.exit_code == 2
    assert message in result.stderr


REAL = st.floats(1e-9, 1e12)


@given(REAL, REAL, st.floats(1e-9, 1.0), REAL)
def test_the_cost_of_a_thousand_is_what_a_thousand_take_of_an_hour(
    hourly: float, speed: float, busy: float, tokens: float
) -> None:
    seconds = 1000 * tokens / (speed * busy)
    assert per_thousand(hourly, speed, busy, tokens) == pytest.approx(hourly * seconds / 3600)
    assert responses_per_second(speed, busy, tokens) * seconds == pytest.approx(1000)


@given(st.floats(0, 1e12), REAL, REAL, REAL, REAL)
def test_the_parts_of_a_call_are_its_tokens_over_their_speeds(
    overhead: float, input: float, prefill: float, output: float, decode: float
) -> None:
    parts = call_parts(overhead, input, prefill, output, decode)
    assert parts["overhead"] == overhead
    assert parts["prefill"] * prefill == pytest.approx(1000 * input)
    assert parts["decode"] * decode == pytest.approx(1000 * output)
