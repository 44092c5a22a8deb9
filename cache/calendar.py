"""When a day or a week is over, in a time zone.

A day ends with the first instant of the next local date. Where clocks change at midnight that instant has two names or
none; `fold=0` takes the first of two, and of a midnight that does not exist the instant at which it is jumped over.
"""

from datetime import datetime, timedelta, tzinfo
from typing import Literal

Period = Literal["day", "week"]


def period_end(at: float, period: Period, zone: tzinfo) -> float:
    """The instant (seconds since 1970) at which the local day, or ISO week (from Monday on), that contains `at` ends.
    Always later than `at`."""
    date = datetime.fromtimestamp(at, zone).date()
    days = 1 if period == "day" else 7 - date.weekday()
    following = date + timedelta(days)
    midnights = (datetime(following.year, following.month, following.day, tzinfo=zone, fold=fold) for fold in (0, 1))
    # The first of two has passed where clocks were set back over it, into the day before once more.
    return next(end for end in (midnight.timestamp() for midnight in midnights) if end > at)
