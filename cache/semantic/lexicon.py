"""The word lists of the verifier, read once.

A word is known by its *keys*: its stem, and the number of every group of words that it belongs to ("=12"). Two words
mean the same for us when they share a key. Phrases of several words are found like words, the longest first.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from cache.semantic.numbers import NUMBER_WORDS

Keys = tuple[str, ...]

# Longest first; a root keeps at least so many letters.
_SUFFIXES = (
    ("ications", "i", 4), ("ication", "i", 4), ("ations", "", 5), ("ation", "", 5), ("ating", "", 5), ("ates", "", 5),
    ("ated", "", 5), ("ions", "", 5), ("ments", "", 5), ("ment", "", 5), ("ings", "", 4), ("ion", "", 5),
    ("ate", "", 5), ("ing", "", 3), ("ies", "i", 3), ("ied", "i", 3), ("ses", "s", 3), ("ed", "", 3), ("es", "", 3),
    ("ly", "", 4), ("s", "", 3), ("e", "", 3), ("y", "i", 3),
)  # fmt: skip
_TOKEN = re.compile(
    r"\d+(?:[.,:/-]\d+)*"
    r"|\bc(?:\+\+|\#)"
    r"|[^\W\d_]+(?:'[^\W\d_]+)*"
    r"|-(?=\s*\d)|[+*<>^%$€£¥₹₽°]"
    r"|[^\s\w!-/:-@\[-`{-~\u00a1-\u00bf\u2000-\u206f\u3000-\u303f]"
)


def tokens(text: str) -> list[str]:
    """The words, numbers and signs of a folded text, in their order. Linear in the text."""
    return _TOKEN.findall(text)


@dataclass(frozen=True, slots=True)
class Lexicon:
    light: frozenset[str]
    weak: frozenset[str]
    scope: frozenset[str]
    negation: frozenset[str]
    groups: dict[str, Keys]
    phrases: dict[str, tuple[tuple[str, ...], ...]]
    """By the first word: the phrases that begin with it, the longest first."""
    classes: dict[str, tuple[tuple[str, str], ...]]
    """Of a word or phrase: (class, member)."""
    opposites: dict[str, frozenset[str]]
    whole: frozenset[str]


_FORMS = {
    verb + ending: verb
    for verb in ("turn", "switch", "shut", "log", "sign", "call", "top", "pay", "look")
    for ending in ("s", "es", "ed", "ing", "ged", "ging", "ting", "ped", "ping")
}


def _stem(word: str, whole: frozenset[str]) -> str:
    if word.endswith("'s"):
        word = word[:-2]
    if word in whole or not word.isascii():
        return word
    for suffix, instead, least in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= least and not (suffix == "s" and word[-2] in "su"):
            word = word[: -len(suffix)] + instead
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]
    return word


@lru_cache(maxsize=1 << 15)
def spelled(word: str) -> str:
    """The word itself, or the listed word that it is with two neighbouring letters in each other's place."""
    if word in _FORMS:
        return _FORMS[word]
    if len(word) < 5 or word in _KNOWN or not word.isascii():
        return word
    for known in _BY_LETTERS.get("".join(sorted(word)), ()):
        wrong = [at for at, (a, b) in enumerate(zip(word, known, strict=True)) if a != b]
        if len(wrong) == 2 and wrong[1] == wrong[0] + 1 and wrong[0]:
            return known
    return word


@lru_cache(maxsize=1 << 15)
def keys(word: str) -> Keys:
    """Of a word, or of a phrase joined by blanks."""
    found = ENGLISH.groups.get(word)
    if found is not None:
        return found
    stem = _stem(word, _WHOLE)
    return (stem, *_STEM_GROUPS.get(stem, ()))


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("--"):
            lines.append(line)
    return sections


def _entries(lines: list[str]) -> list[list[str]]:
    return [[" ".join(tokens(entry)) for entry in line.split(";")] for line in lines]


def _load(name: str) -> Lexicon:
    sections = _sections(resources.files("cache.semantic").joinpath(name).read_text("utf-8"))
    members: dict[str, list[str]] = {}
    classes: dict[str, list[tuple[str, str]]] = {}
    number = 0
    for section, lines in sections.items():
        if section != "same" and not section.startswith("class "):
            continue
        for group in _entries(lines):
            number += 1
            for entry in group:
                members.setdefault(entry, []).append(f"={number}")
                if section != "same":
                    classes.setdefault(entry, []).append((section.removeprefix("class "), group[0]))
    groups = {entry: (entry, *dict.fromkeys(numbers)) for entry, numbers in members.items()}
    flat = {
        s: frozenset(e for line in _entries(sections[s]) for e in line)
        for s in ("light", "weak", "scope", "negation", "whole")
    }
    opposites: dict[str, set[str]] = {}
    phrases = {entry for entry in (*groups, *flat["light"]) if " " in entry}
    for line in sections["opposite"]:
        one, other = (" ".join(tokens(side)) for side in line.split(" / "))
        phrases |= {side for side in (one, other) if " " in side}
        for a in groups.get(one, (one if " " in one else _stem(one, flat["whole"]),)):
            for b in groups.get(other, (other if " " in other else _stem(other, flat["whole"]),)):
                opposites.setdefault(a, set()).add(b)
                opposites.setdefault(b, set()).add(a)
    by_first: dict[str, list[tuple[str, ...]]] = {}
    for phrase in sorted(phrases, key=lambda p: (-p.count(" "), p)):
        first, *_ = words = phrase.split()
        by_first.setdefault(first, []).append(tuple(words))
    return Lexicon(
        light=flat["light"],
        weak=frozenset(key for word in flat["weak"] for key in (word, _stem(word, flat["whole"]))),
        scope=frozenset(key for word in flat["scope"] for key in (word, _stem(word, flat["whole"]))),
        negation=flat["negation"],
        groups=groups,
        phrases={first: tuple(found) for first, found in by_first.items()},
        classes={entry: tuple(found) for entry, found in classes.items()},
        opposites={key: frozenset(found) for key, found in opposites.items()},
        whole=flat["whole"],
    )


ENGLISH = _load("words_english.txt")
_WHOLE = ENGLISH.whole
_STEM_GROUPS: dict[str, Keys] = {}
for _entry, _keys in ENGLISH.groups.items():
    if " " not in _entry:
        _STEM_GROUPS.setdefault(_stem(_entry, _WHOLE), _keys[1:])
_KNOWN = NUMBER_WORDS | frozenset(
    word
    for entry in (*ENGLISH.light, *ENGLISH.negation, *ENGLISH.groups, *ENGLISH.opposites, *ENGLISH.whole)
    for word in entry.split()
)
_BY_LETTERS: dict[str, list[str]] = {}
for _entry in sorted(_KNOWN):
    _BY_LETTERS.setdefault("".join(sorted(_entry)), []).append(_entry)
FOREIGN = frozenset(
    word.strip()
    for line in resources.files("cache.semantic").joinpath("words_foreign.txt").read_text("utf-8").splitlines()
    if not line.startswith("--")
    for word in line.split(";")
)
"""Small words of other languages."""


def listed(word: str) -> bool:
    """Whether the English lists have this word."""
    return word in _KNOWN
