"""The word lists of the answer comparer (answers_words.txt), and the numbers that stand for words.

A word is compared by a 32-bit number. The two ends of an axis (safe, unsafe) differ in the lowest bit alone, and so do
a word and its negation: of whatever one answer says, the opposite is one bit away.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from importlib import resources

OPPOSITE = 1


def number_of(word: str) -> int:
    """32 bits, the lowest of them 0. The same in every process."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "little") & ~OPPOSITE


_ENDINGS = re.compile(r"(?:ingly|edly|ings|ing|ied|ies|ed|es|ly|s|e|y)$")


def stem(word: str) -> str:
    """English endings off, so that `boils` is `boiling`; what is left has three letters or more."""
    if word.endswith(("'s", "’s")):
        word = word[:-2]
    if not word.isascii() or not word.isalpha():
        return word
    short = _ENDINGS.sub("", word)
    if len(short) < 3:
        return word
    return short[:-1] if len(short) > 4 and short[-1] == short[-2] else short


def _read(lists: str) -> dict[str, list[str]]:
    """Each list's lines by its heading."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in lists.splitlines():
        if line.startswith("["):
            heading = line.strip("[]")
            found[heading] = []
        elif not line.startswith("--"):
            found[heading].append(line)
    return found


_LISTS = _read(resources.files("cache.semantic").joinpath("answers_words.txt").read_text("utf-8"))


def _words(kind: str) -> Iterator[tuple[str, str]]:
    """(language, word) of all lists of that kind."""
    for heading, lines in _LISTS.items():
        name, _, language = heading.partition(" ")
        if name == kind:
            yield from ((language, word) for line in lines for word in line.split())


LANGUAGES: dict[str, str] = {}
"""Of each word that says nothing by itself, the languages that have it, one after the other."""
for _language, _word in _words("stop"):
    LANGUAGES[_word] = f"{LANGUAGES.get(_word, '')} {_language}"

_AXES = {
    word: number_of(f"axis {at}") | end
    for at, line in enumerate(_LISTS["axis"])
    for end, words in enumerate(line.split("|"))
    for word in words.split()
}
_SILENT = (LANGUAGES.keys() | {word for _, word in _words("talk")}) - _AXES.keys()
UNITS = {word: number_of(line.split()[0]) for line in _LISTS["unit"] for word in line.split()}
NEGATORS = {word for _, word in _words("not")}
NUMBERS = {
    (heading.partition(" ")[2], word): value
    for heading, lines in _LISTS.items()
    if heading.startswith("number ")
    for value, word in enumerate(" ".join(lines).split())
}
MONTHS = {word: month for month, line in enumerate(_LISTS["month"], 1) for word in line.split()}
ROLES = {word: role for role, line in enumerate(_LISTS["role"], 1) for word in line.split()}
SAYS = {word: 1 for _, word in _words("yes")} | {word: -1 for _, word in _words("no")}


def _phrases(kind: str) -> list[tuple[str, ...]]:
    return [tuple(phrase.split()) for phrase in " ".join(_LISTS[kind]).split(";")]


IDIOM, MOST, LEAST = "idiom", "most", "least"
PHRASES: dict[str, list[tuple[tuple[str, ...], str]]] = {}
"""By their first word, the longest first: phrases that are read as one, and of which list they are."""
for _kind in (IDIOM, MOST, LEAST):
    for _phrase in _phrases(_kind):
        PHRASES.setdefault(_phrase[0], []).append((_phrase, _kind))
for _found in PHRASES.values():
    _found.sort(key=lambda entry: -len(entry[0]))


@lru_cache(maxsize=8192)
def meaning(word: str) -> int:
    """The number of a folded word; 0 when it says nothing by itself."""
    if word in _SILENT:
        return 0
    return _AXES.get(word) or number_of(stem(word))
