"""Two readings side by side: what they contradict each other in, and whether what they share is enough."""

from cache.semantic.answers_reading import Number, Word
from cache.semantic.answers_words import OPPOSITE, UNITS, number_of

MIN_SHARED = 3
"""Words, where no number with its unit is shared."""
MAX_AROUND = 8
"""Words that an answer may have around what a brief one says."""

_DEGREES = {UNITS["celsius"], UNITS["fahrenheit"], UNITS["kelvin"], number_of("degree")}
_ONE = number_of("1")  # says little: one film, one of them


class Side:
    """One answer of the two. `meet` tells it the other one."""

    def __init__(self, says: int, brief: bool, code: bool, words: list[Word], numbers: list[Number]) -> None:
        self.says = says
        self.brief = brief
        self.code = code
        self.words = words
        self.numbers = numbers
        self.said = {word.meaning for word in words}

    def meet(self, other: "Side") -> None:
        self.shared = self.said & other.said
        self.extra = self.said - other.said
        self.matched = [n for n in self.numbers if any(_same_number(n, m) for m in other.numbers)]
        self.own = [n for n in self.numbers if n not in self.matched]
        self.names = {word.meaning for word in self.words if word.name}

    def is_contained(self) -> bool:
        """Has it no word and no number that the other has not?"""
        return not self.extra and not self.own

    def is_empty(self) -> bool:
        return not self.said and not self.numbers

    def role(self, role: int) -> set[int]:
        return {word.meaning for word in self.words if word.role == role} & self.shared

    def has_in_place(self) -> bool:
        """Has it words of its own in a sentence that the answers share, apart from what frames its own numbers?"""
        common = {w.sentence for w in self.words if w.meaning in self.shared} | {n.sentence for n in self.matched}
        frames = {said for number in self.own for said in number.before} - self.names
        return any(w.meaning in self.extra and w.meaning not in frames and w.sentence in common for w in self.words)


def contradict(a: Side, b: Side) -> bool:
    """Can the two not be one answer, whatever they share?"""
    return (
        _say_opposites(a, b)
        or _numbers_differ(a, b)
        or _names_differ(a, b)
        or _roles_differ(a, b)
        or (not a.code and a.has_in_place() and b.has_in_place())
    )


def _say_opposites(a: Side, b: Side) -> bool:
    if a.says * b.says < 0:
        return True
    opposed = {said ^ OPPOSITE for said in a.said} & b.said
    if any(said not in a.said or said ^ OPPOSITE not in b.said for said in opposed):
        return True
    # A no at the beginning is repeated by a negation of what follows, or the other does not say it.
    return a.says != b.says and min(a.says, b.says) < 0 and not any(said & OPPOSITE for said in a.shared)


def _numbers_differ(a: Side, b: Side) -> bool:
    """Numbers that only one has are other facts, unless they are of the same thing, or in one place, or nothing else
    is known to be shared."""
    if a.own and b.own and not (a.matched and b.matched):
        return True
    return any(_one_place(n, m) for n in a.own for m in b.own) or any(
        _same_number(n, m) and {n.bound, m.bound} == {1, 2} for n in a.matched for m in b.matched
    )


def _one_place(n: Number, m: Number) -> bool:
    return (
        n.unit == m.unit
        or not n.unit
        or not m.unit
        or n.value == m.value
        or n.frame == m.frame != 0
        or (n.unit in _DEGREES and m.unit in _DEGREES)
    )


def _same_number(n: Number, m: Number) -> bool:
    return n.value == m.value and (n.unit == m.unit or not n.unit or not m.unit)


def _names_differ(a: Side, b: Side) -> bool:
    """Has each a name of its own, or one a name where the other has a number?"""
    named_a, named_b = bool(a.names & a.extra), bool(b.names & b.extra)
    alike = a.matched and b.matched
    return (named_a and named_b) or (not alike and bool((named_a and b.own) or (named_b and a.own)))


def _roles_differ(a: Side, b: Side) -> bool:
    """Larger than Mars in one, than Venus in the other, and both know both."""
    for role in {word.role for word in a.words if word.role}:
        in_a, in_b = a.role(role), b.role(role)
        if in_a and in_b and not in_a & in_b:
            return True
    return False


def say_enough(a: Side, b: Side) -> bool:
    """Is what the two share an answer? For two that do not contradict each other."""
    if a.code:
        return True
    if a.is_empty() or b.is_empty():
        # "Yes." says too little to be "Yes, dogs may come in.": it would be every other yes as well.
        return a.is_empty() and b.is_empty() and a.says == b.says != 0
    numbers = {n.value for n in a.matched if any(n.value == m.value and n.unit == m.unit != 0 for m in b.matched)} - {
        _ONE
    }
    names = (a.names | b.names) & a.shared
    contained = [side for side in (a, b) if side.is_contained()]
    if contained:
        extra = len(a.extra) + len(b.extra)
        if not extra or (extra <= MAX_AROUND and any(side.brief for side in contained)):
            return True
        if not a.matched and not names:
            return len(a.shared) >= max(MIN_SHARED, 2 * extra)
        if not a.matched and len(a.shared) < 2:
            return False
        return len(a.shared) + 3 * len({n.value for n in a.matched}) + len(names) >= extra
    if not numbers and not (names and len(a.shared) >= MIN_SHARED):
        return False
    return bool(a.shared) and 2 * (len(a.shared) + 2 * len(numbers)) >= min(len(a.said), len(b.said))
