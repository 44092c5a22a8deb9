"""A day ends with the first instant of the next local date, whatever the clocks do there."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.calendar import Period, period_end

ZONES = sorted(name for name in available_timezones() if "/" in name and not name.startswith(("posix", "right")))


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("zone", "at", "end"),
    [
        ("UTC", "2026-11-30 00:00", "2026-12-01 00:00"),
        ("UTC", "2028-02-29 23:59:59.999", "2028-03-01 00:00"),
        ("Asia/Kathmandu", "2026-11-30 12:00", "2026-11-30 18:15"),
        ("Pacific/Kiritimati", "2026-11-30 09:59", "2026-11-30 10:00"),
        ("Etc/GMT+12", "2026-11-30 09:59", "2026-11-30 12:00"),
        ("Europe/Berlin", "2026-03-28 23:00", "2026-03-29 22:00"),  # 23 hours
        ("Europe/Berlin", "2026-10-24 22:00", "2026-10-25 23:00"),  # 25 hours
        ("America/New_York", "2026-11-01 04:00", "2026-11-02 05:00"),
        ("America/Sao_Paulo", "2018-11-03 12:00", "2018-11-04 03:00"),  # there is no midnight: 0:00 is 1:00
        ("America/Sao_Paulo", "2018-11-04 03:00", "2018-11-05 02:00"),
        ("Asia/Beirut", "2022-03-26 12:00", "2022-03-26 22:00"),
        ("Africa/Cairo", "2010-04-29 12:00", "2010-04-29 22:00"),
        ("Asia/Beirut", "2022-10-29 20:30", "2022-10-29 22:00"),  # 23:30, and at 0:00 it is 23:00 again
        ("Asia/Beirut", "2022-10-29 21:30", "2022-10-29 22:00"),  # 23:30 for the second time
        ("America/Havana", "2026-10-31 12:00", "2026-11-01 04:00"),  # midnight comes twice: the first
        ("America/St_Johns", "2010-11-07 02:00", "2010-11-07 02:30"),
        ("America/St_Johns", "2010-11-07 02:45", "2010-11-07 03:30"),  # 0:01 was 23:01 of the day before again
        ("Pacific/Apia", "2011-12-30 09:00", "2011-12-30 10:00"),  # the 29th; there was no 30th
    ],
)
def test_days(zone: str, at: str, end: str) -> None:
    assert datetime.fromtimestamp(period_end(utc(at), "day", ZoneInfo(zone)), UTC) == datetime.fromtimestamp(
        utc(end), UTC
    )


@pytest.mark.parametrize(
    ("at", "end"),
    [
        ("2026-11-29 23:59:59", "2026-11-30 00:00"),  # a Sunday
        ("2026-11-30 00:00", "2026-12-07 00:00"),
        ("2027-01-01 12:00", "2027-01-04 00:00"),
    ],
)
def test_weeks_begin_on_monday(at: str, end: str) -> None:
    assert period_end(utc(at), "week", UTC) == utc(end)


@given(st.floats(1e8, 4e9), st.sampled_from(ZONES), st.sampled_from(["day", "week"]))
def test_it_lies_ahead_and_between_two_periods(at: float, name: str, period: Period) -> None:
    zone = ZoneInfo(name)

    def number(instant: float) -> int:
        day = datetime.fromtimestamp(instant, zone).date().toordinal()
        return day if period == "day" else (day - 1) // 7

    end = period_end(at, period, zone)
    longest = timedelta(days=1 if period == "day" else 7, hours=25).total_seconds()
    assert at < end <= at + longest
    assert number(end) > number(at)
    assert number(end - 1e-3) <= number(at)
