"""Durations, sizes and rates as people write them: text in, plain numbers out, and back again.

A number without a unit is refused: whether `60` means seconds or milliseconds is a guess, and a wrong guess is an
answer that lives a thousand times too long. Refusals are ValueErrors whose text never repeats what was written,
since a secret may have been put into the wrong field.
"""

import re
from dataclasses import dataclass

_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_PERIODS = {"s": 1, "min": 60, "hour": 3_600, "day": 86_400}

# The numbers of digits are bounded, so that a hostile one cannot make the conversion slow.
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15})(KiB|MiB|GiB)", re.ASCII)
_RATE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)/(s|min|hour|day)", re.ASCII)

_LONGEST_MS = 3_650 * _MS["d"]
_LARGEST = 2**50

DURATION_FORMS = "write it like 250ms, 60s, 15m, 24h or 7d"
SIZE_FORMS = "write it like 64KiB, 10MiB or 2GiB"
RATE_FORMS = "write it like 10/s, 60/min, 1000/hour or 20/day"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` (requests, tokens, dollars) in any `seconds`."""

    count: float
    seconds: int


def parse_duration(value: object) -> float:
    """Seconds, 0 to ten years. Raises ValueError."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"needs a number with a unit: {DURATION_FORMS}")
    milliseconds = int(match[1]) * _MS[match[2]]
    if milliseconds > _LONGEST_MS:
        raise ValueError("must be at most 3650d")
    return milliseconds / 1_000


def format_duration(seconds: float) -> str:
    """The shortest text that parse_duration reads as the same length."""
    milliseconds = round(seconds * 1_000)
    if milliseconds == 0:
        return "0s"
    unit = max((u for u in _MS if milliseconds % _MS[u] == 0), key=_MS.__getitem__)
    return f"{milliseconds // _MS[unit]}{unit}"


def parse_size(value: object) -> int:
    """Bytes, 1KiB to 1,048,576GiB. Raises ValueError."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"needs a number with a unit: {SIZE_FORMS}")
    size = int(match[1]) * _BYTES[match[2]]
    if size == 0:
        raise ValueError("must be more than 0")
    if size > _LARGEST:
        raise ValueError("must be at most 1048576GiB")
    return size


def format_size(size: int) -> str:
    """The shortest text that parse_size reads as the same number of bytes."""
    unit = max((u for u in _BYTES if size % _BYTES[u] == 0), key=_BYTES.__getitem__)
    return f"{size // _BYTES[unit]}{unit}"


def parse_rate(value: object) -> Rate:
    """A rate, its count more than 0 and perhaps with decimals (dollars). Raises ValueError."""
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"needs a count and a period: {RATE_FORMS}")
    count = float(match[1])
    if count == 0:
        raise ValueError("must be more than 0")
    return Rate(count, _PERIODS[match[2]])


def parse_whole_rate(value: object) -> Rate:
    """A rate of things that do not come in parts (requests, tokens). Raises ValueError."""
    rate = parse_rate(value)
    if not rate.count.is_integer():
        raise ValueError("must be a whole number per period")
    return rate


def format_rate(rate: Rate) -> str:
    period = next(name for name, seconds in _PERIODS.items() if seconds == rate.seconds)
    count = f"{rate.count:.6f}".rstrip("0").rstrip(".")
    return f"{count}/{period}"
