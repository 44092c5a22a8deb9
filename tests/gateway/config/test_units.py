import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.units import (
    Rate,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
    parse_whole_rate,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("60s", 60), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("0s", 0), ("3650d", 315_360_000)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(0, 60, 60.5, -1, 1e20, float("nan"), float("inf"), True, None, [], {}, "", "60", "s", "-60s", "+60s", "60 s"),
        *(
            " 60s",
            "60s ",
            "60s\n",
            "1.5h",
            "1e3s",
            "1e20",
            "nan",
            "inf",
            "infs",
            "60S",
            "60sec",
            "1h30m",
            "٦٠s",
            "1_0s",
        ),
        *("3651d", "99999999999d", "9" * 5_000 + "d", "60MiB", "60/min"),
    ],
)
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match=r"250ms, 60s, 15m, 24h or 7d|at most 3650d"):
        parse_duration(value)


@pytest.mark.parametrize(("text", "size"), [("1KiB", 1024), ("10MiB", 10_485_760), ("2GiB", 2_147_483_648)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "value",
    [
        *(0, 10, 1e20, float("nan"), True, None, "", "10", "10MB", "10M", "10 MiB", "-1MiB", "1.5GiB", "0MiB", "10mib"),
        *("1048577GiB", "9" * 5_000 + "GiB", "60s"),
    ],
)
def test_what_is_no_size(value: object) -> None:
    with pytest.raises(ValueError, match=r"64KiB, 10MiB or 2GiB|more than 0|at most 1048576GiB"):
        parse_size(value)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/s", Rate(10, 1)),
        ("60/min", Rate(60, 60)),
        ("1000/hour", Rate(1000, 3600)),
        ("20/day", Rate(20, 86_400)),
        ("0.5/day", Rate(0.5, 86_400)),
    ],
)
def test_rates(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "value", [60, 1.5, True, None, "", "60", "60/", "/min", "0/min", "-1/min", "60/m", "60 / min", "1e9/s", "nan/s"]
)
def test_what_is_no_rate(value: object) -> None:
    with pytest.raises(ValueError, match=r"60/min, 1000/hour or 20/day|more than 0"):
        parse_rate(value)


def test_requests_come_whole() -> None:
    assert parse_whole_rate("60/min") == Rate(60, 60)
    with pytest.raises(ValueError, match="whole number"):
        parse_whole_rate("0.5/min")


@given(st.integers(0, 3_650 * 86_400_000))
def test_a_printed_duration_is_read_as_the_same(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1_000)) == milliseconds / 1_000


@given(st.integers(1, 2**40))
def test_a_printed_size_is_read_as_the_same(kib: int) -> None:
    assert parse_size(format_size(kib * 1024)) == kib * 1024


@given(st.integers(1, 10**12), st.sampled_from([1, 100]), st.sampled_from([1, 60, 3_600, 86_400]))
def test_a_printed_rate_is_read_as_the_same(count: int, divisor: int, seconds: int) -> None:
    rate = Rate(count / divisor, seconds)
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.25, "250ms"), (60, "1m"), (90, "90s"), (5400, "90m"), (86_400, "1d")]
)
def test_durations_are_printed_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.text() | st.integers() | st.floats() | st.none())
def test_whatever_is_written_gives_a_bounded_number_or_a_refusal(value: object) -> None:
    try:
        seconds = parse_duration(value)
    except ValueError:
        return
    assert 0 <= seconds <= 3_650 * 86_400
