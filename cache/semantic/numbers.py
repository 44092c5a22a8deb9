"""Numbers in a text: digits of every script, and English number words, in one spelling.

"1,000" and "1000" are one number, "2.50" and "2.5" too; "twenty five" is 25. "One" is mostly no number ("this one"), so
it is only said that it stands there.
"""

import re

_WORDS = {
    word: value
    for value, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
_TENS = {
    w: v
    for v, w in zip(
        range(20, 100, 10), ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], strict=True
    )
}
_SCALES = {"hundred": 100, "thousand": 1000, "k": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_OTHERS = {
    "half": "0.5", "dozen": "12", "third": "3rd", "first": "1st", "1st": "1st",
    "fourth": "4th", "fifth": "5th", "sixth": "6th", "seventh": "7th", "eighth": "8th", "ninth": "9th", "tenth": "10th",
}  # fmt: skip
NUMBER_WORDS = frozenset((*_WORDS, *_TENS, *_SCALES, *_OTHERS))
_DIGITS = re.compile(r"\d")
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")


def _digits(word: str) -> str:
    if not word.isascii():
        word = _DIGITS.sub(lambda found: str(int(found[0])), word)
    word = _THOUSANDS.sub("", word)
    whole, dot, rest = word.partition(".")
    if dot and rest.isdigit():
        rest = rest.rstrip("0")
        word = f"{whole}.{rest}" if rest else whole
    return word.lstrip("0") or "0"


def number_of(word: str) -> str | None:
    """The number that a word is, in digits, or None."""
    if " " in word:
        return None
    if word[0].isdecimal():
        return _digits(word)
    if word in _WORDS and word != "one":
        return str(_WORDS[word])
    if word in _TENS:
        return str(_TENS[word])
    return _OTHERS.get(word) or (str(_SCALES[word]) if word in _SCALES and word != "k" else None)


def numbers_in(words: list[str]) -> tuple[tuple[str, ...], bool]:
    """All numbers of a text, as they stand there, and whether "one" does."""
    out: list[str] = []
    before: int | None = None  # the value of the number word just read
    for word in words:
        value: int | None = _WORDS.get(word, _TENS.get(word)) if word != "one" else None
        if value is not None:
            if before is not None and before in _TENS.values() and value < 10:
                value += before
                out.pop()
            out.append(str(value))
            before = value
        elif word in _SCALES:
            if out and (before is not None or word != "hundred") and out[-1].isdigit():
                before = int(out.pop()[:30]) * _SCALES[word]
                out.append(str(before))
            elif word != "k":
                out.append(str(_SCALES[word]))
        else:
            before = None
            number = number_of(word)
            if number is not None:
                out.append(number)
                before = int(number[:30]) if number.isdigit() else None
    return tuple(out), "one" in words
