"""The numbers of a sentence: their value in one spelling, and what they count.

Digits and number words, dates, times of day, ordinals, currencies before or after. Nothing is converted: 120 minutes
are not 2 hours.
"""

import re

from cache.semantic.answers_tokens import Token
from cache.semantic.answers_words import (
    LANGUAGES,
    MONTHS,
    NEGATORS,
    NUMBERS,
    OPPOSITE,
    PHRASES,
    SAYS,
    UNITS,
    meaning,
    number_of,
    stem,
)

DATE, TIME, ORDINAL = number_of("date"), number_of("time"), number_of("ordinal")
NO_UNIT = 0
_COMMA_LANGUAGES = {"de", "fr", "es", "it", "pt", "nl"}
_TH = {"st", "nd", "rd", "th"}
_MERIDIEM = {"am": 0, "pm": 12}
_RANGE = {"to", "or", "and", "bis", "oder", "à", "ou", "a", "o", "-", "–"}
_OF = _TH | {"of", "de"}
_DEGREE = {"degree", "degrees", "grad", "°", "us"}
_YEAR = re.compile(r"1[5-9]\d\d|20\d\d")


def is_number(tokens: list[Token], at: int, language: str) -> bool:
    """Does a number, with its currency before it perhaps, begin here?"""
    if at >= len(tokens):
        return False
    kind = tokens[at].kind
    if kind == "sign":
        return at + 1 < len(tokens) and tokens[at + 1].kind == "number"
    return kind in ("number", "iso", "time") or _spelled(tokens, at, language) is not None or _month_first(tokens, at)


def number_at(tokens: list[Token], at: int, language: str) -> tuple[list[tuple[int, int]], int]:
    """The (value, unit) of what begins here, and how many tokens that is. A date has a year besides."""
    if tokens[at].kind == "sign":
        return _counted(tokens, at + 1, language, UNITS.get(tokens[at].folded, NO_UNIT), 1)
    if _month_first(tokens, at):
        size = 3 if _text(tokens, at + 2) in _TH else 2
        return [_date(MONTHS[tokens[at].folded], tokens[at + 1].folded)], size
    text = tokens[at].folded
    if tokens[at].kind == "iso":
        return [(number_of(text[:4]), NO_UNIT), _date(int(text[5:7]), text[8:])], 1
    month_at = at + 2 if _text(tokens, at + 1) in _OF else at + 1
    if _is_month(tokens, month_at) and _is_day(text):
        return [_date(MONTHS[tokens[month_at].folded], text)], month_at + 1 - at
    half = _MERIDIEM.get(_text(tokens, at + 1))
    if tokens[at].kind == "time" or (half is not None and _is_day(text)):
        hour, _, minute = text.partition(":")
        hours = int(hour) if half is None else int(hour) % 12 + half
        return [(number_of(f"{hours}:{minute or '00'}"), TIME)], 1 if half is None else 2
    return _counted(tokens, at, language, NO_UNIT, 0)


def _counted(tokens: list[Token], at: int, language: str, unit: int, before: int) -> tuple[list[tuple[int, int]], int]:
    spelled = _spelled(tokens, at, language)
    value = _plain(tokens[at].folded if spelled is None else str(spelled), language)
    if unit != NO_UNIT:
        return [(number_of(value), unit)], before + 1
    unit, size = _unit(tokens, at, language)
    if unit == NO_UNIT:
        unit = UNITS.get(_text(tokens, at - 1), NO_UNIT)  # EUR 5
    return [(number_of(value), unit)], 1 + size


def _unit(tokens: list[Token], at: int, language: str, *, end: bool = False) -> tuple[int, int]:
    """What the number counts, and how many tokens after it that takes."""
    after = at + 1
    following = _text(tokens, after)
    if following in _TH:
        return ORDINAL, 1
    if not end and following in _RANGE and is_number(tokens, after + 1, language):  # 2 to 3 days
        return _unit(tokens, after + 1, language, end=True)[0], 0
    for skip in (0, 1):
        if (known := UNITS.get(_text(tokens, after + skip))) is not None and not (
            _text(tokens, after + skip) in _DEGREE and _text(tokens, after + skip + 1) in UNITS
        ):
            # What stands between, as in 3 business days, is a word of its own.
            return known, 1 if not skip else (2 if following in _DEGREE else 0)
    if (
        after < len(tokens)
        and tokens[after].kind == "word"
        and not _YEAR.fullmatch(tokens[at].folded)
        and following not in LANGUAGES
        and following not in NEGATORS
        and following not in SAYS
        and following not in PHRASES
    ):
        if len(tokens[after].text) < 3:
            return number_of(tokens[after].text), 1  # case tells MW from mW
        return (meaning(following) & ~OPPOSITE) or number_of(stem(following)), 1
    return NO_UNIT, 0


def _text(tokens: list[Token], at: int) -> str:
    return tokens[at].folded if 0 <= at < len(tokens) else ""


def _spelled(tokens: list[Token], at: int, language: str) -> int | None:
    """The value of a number word; `one` and its like are numbers only before a unit."""
    value = NUMBERS.get((language or "en", tokens[at].folded))
    return value if value != 1 or _text(tokens, at + 1) in UNITS else None


def _is_month(tokens: list[Token], at: int) -> bool:
    return _text(tokens, at) in MONTHS and tokens[at].text[0].isupper()


def _is_day(text: str) -> bool:
    return text.isdecimal() and len(text) < 3 and 0 < int(text) < 32


def _month_first(tokens: list[Token], at: int) -> bool:
    return _is_month(tokens, at) and _is_day(_text(tokens, at + 1))


def _date(month: int, day: str) -> tuple[int, int]:
    return number_of(f"{month}-{int(day)}"), DATE


def _plain(digits: str, language: str) -> str:
    """One spelling of a number: no marks between thousands, a point, no zeros that say nothing."""
    if language in _COMMA_LANGUAGES:
        digits = digits.replace(".", "") if re.fullmatch(r"-?\d{1,3}(\.\d{3})+(,\d+)?", digits) else digits
        digits = digits.replace(",", ".")
    else:
        digits = digits.replace(",", "")
    sign = "-" if digits.startswith("-") else ""
    whole, _, part = digits.removeprefix("-").partition(".")
    part = part.rstrip("0")
    return f"{sign}{whole.lstrip('0') or '0'}" + (f".{part}" if part else "")
