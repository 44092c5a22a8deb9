"""What speaks against one question having the answer of another, however near they are.

Vectors of whole sentences hardly feel a changed number, name or "not"; these rules look at nothing else.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from cache.semantic.lexicon import ENGLISH, Keys, keys
from cache.semantic.signature import CLASSES, Signature

TEMPLATE = 6
"""Terms that two texts must share at their ends to count as made from one template."""

WEAK = 0.3


@dataclass(frozen=True, slots=True)
class Comparison:
    """`codes` as `differences` gives them; `shared` terms of the asked text that the stored one has too (at least 1
    where all words are the same); `asked` and `stored`: how many terms only one of them has, weak ones counted less."""

    codes: tuple[str, ...]
    shared: int
    asked: float
    stored: float


def differences(asked: Signature, stored: Signature) -> tuple[str, ...]:
    """Codes of all that speaks against it, the gravest first; () where nothing does."""
    return compare(asked, stored).codes


def met(known: Keys, all_keys: Set[str]) -> bool:
    return any(key in all_keys for key in known)


def compare(asked: Signature, stored: Signature) -> Comparison:
    """Linear in the two texts' terms, but for their order (n log n)."""
    codes: list[str] = []
    left_a = [t for t in asked.terms if not met(t, stored.words)]
    left_s = [t for t in stored.terms if not met(t, asked.words)]
    shared = len(asked.terms) - len(left_a)
    least = min(shared, len(stored.terms) - len(left_s))
    if asked.numbers != stored.numbers and not _same_numbers(asked, stored):
        codes.append("number")
    for name, a, s in zip(CLASSES, asked.classes, stored.classes, strict=True):
        if a != s and ((a and s) or name == "date") and not (name == "asks" and (a & s or "how many" in a | s)):
            codes.append(name)
    if asked.signs != stored.signs:
        codes.append("sign")
    if asked.quoted != stored.quoted and not _same_quotes(asked, stored):
        codes.append("quoted")
    if asked.code != stored.code:
        codes.append("code")
    if _opposed(asked.poles - stored.words, stored.poles - asked.words):
        codes.append("antonym")
    if asked.negated != stored.negated and (4 if left_a and left_s else 2) * least >= (
        3 if left_a and left_s else 1
    ) * min(len(asked.terms), len(stored.terms)):
        codes.append("negation")
    if (
        _renumbered(asked, stored)
        or _reanchored(asked, stored)
        or _turned(asked, stored, whole=not left_a and not left_s)
    ):
        codes.append("direction")
    if _unmet(asked.names, stored) or _unmet(stored.names, asked):
        codes.append("name")
    few, many = sorted((len(asked.terms), len(stored.terms)))
    if 2 * many > 5 * few + 8:
        codes.append("length")
    if left_a or left_s:
        if _template(asked.terms, stored.terms):
            codes.append("template")
        if asked.foreign or stored.foreign:
            codes.append("foreign")
    if left_a and left_s:
        if 10 * least >= 3 * min(len(asked.terms), len(stored.terms)) and len(left_a) <= 2 and len(left_s) <= 2:
            codes.append("swapped")
        else:
            codes.append("words")
    elif left_a or left_s:
        codes.append("scope" if _narrows(asked, stored.words) or _narrows(stored, asked.words) else "extra")
    return Comparison(tuple(codes), max(shared, asked.folded == stored.folded), _weight(left_a), _weight(left_s))


def _weight(terms: list[Keys]) -> float:
    return sum(WEAK if known[0] in ENGLISH.weak else 1.0 for known in terms)


def _narrows(text: Signature, others: frozenset[str]) -> bool:
    """Does a word that the other text lacks stand right beside one that it has, as in "gift card"?"""
    here = [met(known, others) for known in text.terms]
    for at, known in enumerate(text.terms):
        if here[at] or known[0] in ENGLISH.weak:
            continue
        after = at + 1 < len(here) and here[at + 1] and text.touching[at + 1]
        if known[0] in ENGLISH.scope or after or (at and here[at - 1] and text.touching[at]):
            return True
    return False


def _same_numbers(asked: Signature, stored: Signature) -> bool:
    if asked.one == stored.one:
        return False
    fewer, more = (asked.numbers, stored.numbers) if asked.one else (stored.numbers, asked.numbers)
    return tuple(sorted((*fewer, "1"))) == more


def _same_quotes(asked: Signature, stored: Signature) -> bool:
    """What one puts in quotes the other may have without them."""
    if asked.quoted and stored.quoted:
        return not asked.code and {q.casefold() for q in asked.quoted} == {q.casefold() for q in stored.quoted}
    quoted, other = (asked.quoted, stored) if asked.quoted else (stored.quoted, asked)
    return all(" ".join(q.casefold().split()) in other.folded for q in quoted)


def _opposed(a: frozenset[str], s: frozenset[str]) -> bool:
    if not a or not s:
        return False
    return any(not ENGLISH.opposites[key].isdisjoint(s) for key in a)


_CONTRARY = [{"to", "from"}, {"into", "from"}, {"before", "after"}, {"over", "under"}, {"with", "without"}]


def _renumbered(asked: Signature, stored: Signature) -> bool:
    """The same numbers in each other's place, where no units say which is which: 2 to the power of 3."""
    if asked.ordered == stored.ordered or asked.numbers != stored.numbers:
        return False
    return not (len(asked.measures) == len(asked.numbers) and asked.measures == stored.measures)


def _reanchored(asked: Signature, stored: Signature) -> bool:
    """Do two things change places about a preposition (what did A think of B), or does one hang on the contrary one (a
    letter to, from my boss)?"""
    if asked.anchors == stored.anchors and asked.terms == stored.terms:
        return False
    hung = {key: anchor for known, anchor in zip(stored.terms, stored.anchors, strict=True) for key in known}
    moved = set()
    for known, anchor in zip(asked.terms, asked.anchors, strict=True):
        other = next((hung[key] for key in known if key in hung), anchor)
        if {anchor, other} in _CONTRARY:
            return True
        if bool(anchor) != bool(other):
            moved.add(bool(anchor))
    return len(moved) == 2


def _turned(asked: Signature, stored: Signature, *, whole: bool) -> bool:
    """The same two things, in each other's place."""
    if asked.terms == stored.terms:
        return False
    for marker, mine in asked.roles.items():
        theirs = stored.roles.get(marker, ())
        gone, came = _others(mine, theirs), _others(theirs, mine)
        if gone and came and any(met(k, stored.words) for k in gone) and any(met(k, asked.words) for k in came):
            return True
    if _exchanged(asked, stored):
        return True
    if not whole:
        return False
    if asked.joints != stored.joints:
        return False
    places = {key: at for at, known in enumerate(stored.terms) for key in known}
    order = [max(places.get(key, -1) for key in known) for known in asked.terms]
    return _falls(order) >= (2 if asked.foreign else 3)


def _others(these: Sequence[Keys], those: Sequence[Keys]) -> list[Keys]:
    known = {key for one in those for key in one}
    return [one for one in these if not met(one, known)]


def _unmet(names: frozenset[str], other: Signature) -> bool:
    """Names stay as they are spelled: Aliens is not Alien."""
    return any(name not in other.spelled and not met(keys(name)[1:], other.words) for name in names)


def _exchanged(asked: Signature, stored: Signature) -> bool:
    """Two units (currencies), languages or formats in each other's place, where no number and no "from" or "to" says
    which is which."""
    for name, a, s in zip(CLASSES, asked.classes, stored.classes, strict=True):
        if name in ("asks", "date", "manner", "action") or len(a) != 2 or a != s:
            continue
        if asked.measures and asked.measures == stored.measures:
            continue
        if any(asked.roles.get(m) and stored.roles.get(m) for m in ("from", "to")):
            continue
        if _first_of(asked, name) != _first_of(stored, name):
            return True
    return False


def _falls(order: list[int]) -> int:
    """The length of the longest strictly falling run of places, not side by side; up to 3."""
    highest, pairs = -1, -1  # the highest so far; the highest that has a higher one before it
    best = 1
    for place in order:
        if place < pairs:
            return 3
        if place < highest:
            best = 2
            pairs = max(pairs, place)
        highest = max(highest, place)
    return best


def _first_of(text: Signature, name: str) -> str:
    return next((m for known in text.terms for n, m in ENGLISH.classes.get(known[0], ()) if n == name), "")


def _template(a: tuple[Keys, ...], s: tuple[Keys, ...]) -> bool:
    size = min(len(a), len(s))
    head = 0
    while head < size and a[head] == s[head]:
        head += 1
    tail = 0
    while tail < size - head and a[-1 - tail] == s[-1 - tail]:
        tail += 1
    return head + tail >= TEMPLATE
