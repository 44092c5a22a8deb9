"""What the guards need of a text, made once.

A text becomes its *terms* in order: the words that carry its subject, each as the keys it is known by (see lexicon),
without the words that any question may have or lack. Beside them stand what must never be averaged away: numbers,
members of closed classes (units, dates, languages, formats, what is asked for), poles (on, off), negation, names,
quoted text, code, signs of arithmetic, and who stands after "from", "to", "than" ...

Everything is linear in the text. Text of other languages than English keeps all its words, for we do not know which
of them matter; scripts without blanks are cut into characters.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from cache.semantic.lexicon import ENGLISH, FOREIGN, Keys, keys, listed, spelled, tokens
from cache.semantic.marks import capitals_in, code_in, fold, quoted_in
from cache.semantic.numbers import number_of, numbers_in

CLASSES = ("unit", "date", "language", "format", "manner", "action", "asks")

_BY_CHARACTER = re.compile("([\u0e00-\u0eff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff])")
_SPLIT = frozenset(("turn", "switch", "shut", "crank"))
_PARTICLES = frozenset(("on", "off", "up", "down", "out"))
_DETERMINERS = frozenset(
    (
        *("the", "a", "an", "my", "your", "our", "his", "her", "their", "this", "that", "these", "those", "of"),
        *("i", "you", "we", "he", "she", "they", "it"),
    )
)
_JOINTS = frozenset(
    (
        *("of", "for", "on", "in", "at", "from", "to", "by", "with", "into", "about", "as", "that", "who", "which"),
        *("is", "are", "was", "were"),
    )
)
_PREPOSITIONS = frozenset(
    (
        *("of", "for", "from", "to", "into", "onto", "by", "with", "without", "against", "about", "than", "before"),
        *("after", "over", "under", "versus", "vs"),
    )
)
_NONE: frozenset[str] = frozenset()
_POSSESSIVE = frozenset(("'s",))
_MARKERS = {
    marker: marker
    for marker in ("from", "to", "than", "by", "before", "after", "over", "under", "versus", "without", "against")
}
_MARKERS |= {"into": "to", "onto": "to", "vs": "versus"}


@dataclass(frozen=True, slots=True)
class Signature:
    """`terms` in their order, each with the preposition that it hangs on (its anchor, "" without one), and whether it
    stands right behind the one before; `words`: all keys; `numbers` sorted, each as often as it stands there, `ordered`
    as they stand there, and whether "one" does; `classes` as CLASSES says; `names` and all words as they
    are `spelled`; `measures`: number and unit side by side; `roles`: what follows a marker; `foreign`: not English."""

    terms: tuple[Keys, ...]
    anchors: tuple[str, ...]
    touching: tuple[bool, ...]
    words: frozenset[str]
    numbers: tuple[str, ...]
    ordered: tuple[str, ...]
    one: bool
    classes: tuple[frozenset[str], ...]
    poles: frozenset[str]
    negated: bool
    names: frozenset[str]
    spelled: frozenset[str]
    measures: frozenset[tuple[str, str]]
    quoted: frozenset[str]
    code: frozenset[str]
    signs: tuple[str, ...]
    roles: dict[str, list[Keys]]
    joints: frozenset[str]
    folded: str
    foreign: bool


def _foreign(found: list[str]) -> bool:
    words = [word for word in found if word.isalpha()]
    if 2 * sum(not word.isascii() for word in words) > len(words):
        return True
    ours, theirs = sum(word in ENGLISH.light for word in words), sum(word in FOREIGN for word in words)
    return theirs > ours or (len(words) > 3 and not any(map(listed, words)))


def _plain(word: str) -> str:
    return word.removesuffix("'s")


def _joined(found: list[str]) -> list[str]:
    """ "Turn the light off" with its particle beside the verb."""
    if _SPLIT.isdisjoint(found):
        return found
    out = list(found)
    for at, word in enumerate(found):
        if word not in _SPLIT or found[at + 1 : at + 2] == [] or found[at + 1] in _PARTICLES:
            continue
        then = next((n for n in range(at + 2, min(at + 6, len(found))) if found[n] in _PARTICLES), 0)
        if then:
            out[at + 1 : then + 1] = [found[then], *found[at + 1 : then]]
    return out


def _phrases(found: list[str]) -> list[str]:
    """Words that are a phrase together become one, joined by blanks."""
    by_first = ENGLISH.phrases
    if not any(word in by_first for word in found):
        return found
    out, at, size = [], 0, len(found)
    while at < size:
        word = found[at]
        for phrase in by_first.get(word, ()):
            if found[at + 1 : at + len(phrase)] == list(phrase[1:]):
                out.append(" ".join(phrase))
                at += len(phrase)
                break
        else:
            out.append(word)
            at += 1
    return out


@dataclass(frozen=True, slots=True)
class _Word:
    """What is the same wherever the word stands."""

    keys: Keys
    members: tuple[tuple[str, str], ...]
    number: bool
    negation: bool
    marker: str
    sign: bool
    term: bool


@lru_cache(maxsize=1 << 14)
def _word(word: str) -> _Word:
    members = ENGLISH.classes.get(word, ())
    number, negation, marker = number_of(word) is not None, word in ENGLISH.negation, _MARKERS.get(word, "")
    sign = not word[0].isalnum() and word not in ENGLISH.groups
    asks = any(name == "asks" for name, _ in members)
    term = not (marker or sign or asks or number or negation or word in ENGLISH.light)
    return _Word(keys(word), members, number, negation, marker, sign, term)


@lru_cache(maxsize=8192)  # 4 KB each
def signature(text: str) -> Signature:
    """Pure; the last ones are remembered."""
    text = fold(text)
    low = text.casefold()
    if not low.isascii():
        low = _BY_CHARACTER.sub(r" \1 ", low)
    found = tokens(low)
    words = _phrases(_joined([spelled(word) for word in found]))
    ordered, one = numbers_in(words)
    terms: list[Keys] = []
    anchors: list[str] = []
    touching: list[bool] = []
    everything: set[str] = set()
    members: dict[str, set[str]] = {}
    roles: dict[str, list[Keys]] = {}
    signs: list[str] = []
    measures: list[tuple[str, str]] = []
    marker = before = anchor = ""
    counted = touches = negated = False  # counted: the word before is a number
    for word in words:
        known = _word(word)
        everything.update(known.keys)
        for name, member in known.members:
            if word == "am" and not counted:
                continue  # "I am", not "5 am"
            members.setdefault(name, set()).add(member)
            if name == "unit" and (counted or before == "one"):
                measures.append((before, member))
        negated = negated or known.negation
        if known.term:
            terms.append(known.keys)
            anchors.append(anchor)
            touching.append(touches)
            if marker:
                roles.setdefault(marker, []).append(known.keys)
                marker = ""
        elif known.marker:
            marker = known.marker
        elif known.sign:
            signs.append(word)
        elif marker and not known.number and word not in _DETERMINERS:
            marker = ""
        if word in _PREPOSITIONS:
            anchor = word
        elif word not in _DETERMINERS:
            anchor = ""
        touches, counted, before = known.term, known.number, word
    return Signature(
        terms=tuple(terms),
        anchors=tuple(anchors),
        touching=tuple(touching),
        words=frozenset(everything),
        numbers=tuple(sorted(ordered)),
        ordered=ordered,
        one=one,
        classes=tuple(frozenset(members[name]) if name in members else _NONE for name in CLASSES),
        poles=frozenset(everything & ENGLISH.opposites.keys()),
        negated=negated,
        names=_names(capitals_in(text), words),
        spelled=frozenset((*map(_plain, found), *words)),
        measures=frozenset(measures),
        quoted=quoted_in(text),
        code=code_in(text),
        signs=tuple(sorted(signs)),
        roles=roles,
        joints=_JOINTS.intersection(found) | (_POSSESSIVE if _possessive(found) else _NONE),
        folded=" ".join(found),
        foreign=_foreign(found),
    )


def _names(capitals: set[str], words: list[str]) -> frozenset[str]:
    if not capitals:
        return _NONE
    return frozenset(plain for plain in map(_plain, words) if not capitals.isdisjoint(plain.split()))


def _possessive(found: list[str]) -> bool:
    return any("'" in word and word.endswith("'s") and word not in ENGLISH.light for word in found)
