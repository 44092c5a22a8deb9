"""What the guards need of a text, made once.

A text becomes its *terms* in order: the words that carry its subject, each as the keys it is known by (see lexicon),
without the words that any question may have or lack. Beside them stand what must never be averaged away: numbers,
members of closed classes (units, dates, languages, formats, what is asked for), poles (on, off), negation, names,
quoted text, code, signs of arithmetic, and who stands after "from", "to", "than" ...

Everything is linear in the text. Text of other languages than English keeps all its words, for we do not know which
of them matter; scripts without blanks are cut into characters.
"""

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from cache.semantic.lexicon import ENGLISH, FOREIGN, Keys, keys, listed, spelled, tokens
from cache.semantic.numbers import number_of, numbers_in

CLASSES = ("unit", "date", "language", "format", "manner", "action", "asks")

_UNSEEN = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]+")
_BY_CHARACTER = re.compile("([\u0e00-\u0eff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff])")
_QUOTED = re.compile(
    r"```(.{1,2000}?)```|`([^`\n]{1,400})`|\"([^\"\n]{1,400})\"|“([^“”\n]{1,400})”|„([^„“”\n]{1,400})[“”]"
    r"|«([^«»\n]{1,400})»|「([^「」\n]{1,400})」|『([^『』\n]{1,400})』|(?<!\w)'([^'\n]{1,400})'(?!\w)",
    re.DOTALL,
)
_CODE = re.compile(r"[_{}\[\]\\@]|\w\(|://|--|::|->")
_APOSTROPHES = str.maketrans("’‘ʼ＇", "''''")
_PUNCTUATION = "\"'`()[]{}.,;:!?*_“”„«»"
_SPLIT = frozenset(("turn", "switch", "shut", "crank"))
_PARTICLES = frozenset(("on", "off", "up", "down", "out"))
_DETERMINERS = frozenset("the a an my your our his her their this that these those of".split())
_JOINTS = frozenset("of for on in at from to by with into about as that who which is are was were".split())
_NONE: frozenset[str] = frozenset()
_MARKERS = {w: w for w in "from to than by before after over under versus without against instead".split()}
_MARKERS |= {"into": "to", "onto": "to", "vs": "versus"}


@dataclass(frozen=True, slots=True)
class Signature:
    """`terms` in their order; `touching`: does it stand right behind the one before; `words` all keys; `numbers` sorted, each as often as it stands there; `classes` as CLASSES
    says; `names` the keys of each; `roles` from a marker to the keys of what follows it; `foreign`: not English."""

    terms: tuple[Keys, ...]
    touching: tuple[bool, ...]
    words: frozenset[str]
    numbers: tuple[str, ...]
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


def fold(text: str) -> str:
    text = _UNSEEN.sub("", text) if not text.isascii() else text
    return unicodedata.normalize("NFKC", text).translate(_APOSTROPHES)


def _quoted(text: str) -> frozenset[str]:
    if not any(sign in text for sign in "`\"“„«「『'"):
        return frozenset()
    return frozenset(
        " ".join(next(filter(None, found)).split()).strip(" .,;:!?") for found in _QUOTED.findall(text) if any(found)
    )


def _code(text: str) -> frozenset[str]:
    if not _CODE.search(text):
        return frozenset()
    return frozenset(word.casefold().strip(".,;:!?\"'`") for word in text.split() if _CODE.search(word))


def _capitals(text: str) -> set[str]:
    """Words with a capital where grammar does not ask for one, folded; none where most words have one."""
    found, begins, words, light = [], True, 0, ENGLISH.light
    for word in text.split():
        bare = word.strip(_PUNCTUATION)
        if bare:
            low = bare.casefold().removesuffix("'s")
            words += low not in light
            if low not in light and bare[0].isupper() and not (begins and bare[1:].islower()):
                found.append(low)
            begins = low in light and word[-1] == ","  # after "Hi," something begins
        begins = begins or word[-1] in ".?!:"
    return {part for word in found for part in tokens(word)} if 10 * len(found) <= 7 * max(words, 3) else set()


def _foreign(found: list[str]) -> bool:
    words = [word for word in found if word.isalpha()]
    if 2 * sum(not word.isascii() for word in words) > len(words):
        return True
    ours, theirs = sum(word in ENGLISH.light for word in words), sum(word in FOREIGN for word in words)
    return theirs > ours or (len(words) > 3 and not any(map(listed, words)))


def _plain(word: str) -> str:
    return word.removesuffix("'s")


def _joined(found: list[str]) -> list[str]:
    """"Turn the light off" with its particle beside the verb."""
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


@lru_cache(maxsize=4096)
def signature(text: str) -> Signature:
    """Pure; the last ones are remembered."""
    text = fold(text)
    low = text.casefold()
    if not low.isascii():
        low = _BY_CHARACTER.sub(r" \1 ", low)
    found = tokens(low)
    words = _phrases(_joined([spelled(word) for word in found]))
    numbers, one = numbers_in(words)
    capitals = _capitals(text)
    light, negation, classes = ENGLISH.light, ENGLISH.negation, ENGLISH.classes
    foreign = _foreign(found)
    terms: list[Keys] = []
    touching: list[bool] = []
    touches = False
    everything: set[str] = set()
    members: dict[str, set[str]] = {name: set() for name in CLASSES}
    roles: dict[str, list[Keys]] = {}
    signs: list[str] = []
    measures: list[tuple[str, str]] = []
    marker = before = ""
    negated = False
    for word in words:
        known = keys(word)
        is_term = False
        everything.update(known)
        asks = False
        for name, member in classes.get(word, ()) if word != "am" or number_of(before or " ") else ():
            members[name].add(member)
            if name == "unit" and (before == "one" or number_of(before or " ")):
                measures.append((before, member))
            asks |= name == "asks"
        before = word
        if word in negation:
            negated = True
        if word in _MARKERS:
            marker = _MARKERS[word]
        elif not word[0].isalnum() and word not in ENGLISH.groups:
            signs.append(word)
        elif not asks and word not in light and number_of(word) is None and word not in negation:
            terms.append(known)
            touching.append(touches)
            is_term = True
            if marker:
                roles.setdefault(marker, []).append(known)
                marker = ""
        elif marker and word not in _DETERMINERS and number_of(word) is None:
            marker = ""
        touches = is_term
    return Signature(
        terms=tuple(terms),
        touching=tuple(touching),
        words=frozenset(everything),
        numbers=numbers,
        one=one,
        classes=tuple(frozenset(members[name]) for name in CLASSES),
        poles=frozenset(everything & ENGLISH.opposites.keys()),
        negated=negated,
        names=frozenset(_plain(word) for word in words if not capitals.isdisjoint(_plain(word).split())) if capitals else _NONE,
        spelled=frozenset((*map(_plain, found), *words)),
        measures=frozenset(measures),
        quoted=_quoted(text),
        code=_code(text),
        signs=tuple(sorted(Counter(signs).elements())),
        roles=roles,
        joints=_JOINTS.intersection(found),
        folded=" ".join(found),
        foreign=foreign,
    )
