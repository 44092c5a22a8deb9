"""Which stored answer's request was nearest to this one? A bounded memory of sketches, scope by scope.

- Looked for is only in the scope that asks: nothing here tells one scope of another.
- It knows what was asked since the start of this process, the latest of it; nothing of it is kept on disk.
- Nearest is what differs least. One parameter is less than another question, so who asks the same with another
  temperature is told of the temperature; who asks another thing in the same setting is told that the question differs.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, islice
from math import inf
from operator import ne
from typing import NamedTuple

from gateway.why.sketch import SIZE, Sketch, continues, differs, pieces

MAX_BYTES = 16 * 1024 * 1024
MAX_IN_SCOPE = 4_096
LOOKS, FEW = 12, 4
"""How many of the latest are looked at for each of two ways of being near, and of two that leave little to choose."""
OVERHEAD = 1_050
"""Bytes charged for a sketch beside its digests (measured: 900 to 1,080)."""
MAX_SHAPES = 1_024
"""Lists of names that sketches share."""

QUESTION, CONTINUED, TURN, MORE_TURNS = 1.5, 1.55, 1.6, 0.1
WEIGHTS = {"system prompt": 1.2, "endpoint": 1.2, "api": 1.2, "endpoint settings": 0.5, "backend": 0.5}
"""What a component counts that differs; any other is 1."""
OVER = 100.0
"""What it counts that the answer's life is over: such an entry is named only where there is no other."""


class Known:
    """A request that came before. `number` says when it came first; `ends` is the end of its answer's life (wall-clock
    seconds); `reason` is why the answer was not kept, None if it was."""

    __slots__ = ("ends", "number", "reason", "scope", "sketch")

    def __init__(self, scope: bytes, sketch: Sketch, number: int, ends: float, reason: str | None) -> None:
        self.scope = scope
        self.sketch = sketch
        self.number = number
        self.ends = ends
        self.reason = reason

    @property
    def size(self) -> int:
        return OVERHEAD + len(self.sketch.digests) + len(self.sketch.turns)


class Before(NamedTuple):
    """What was known when a request came: so many others, and of the very `same` request this."""

    learnt: int
    same: Known | None


@dataclass(frozen=True, slots=True)
class Found:
    """`same`: the very request, if it came before; else the `nearest` one whose answer was stored, and what `differs`.
    `continued`: it is an earlier turn of the same conversation."""

    same: Known | None = None
    nearest: Known | None = None
    differs: tuple[str, ...] = ()
    continued: bool = False


class _Scope:
    """What one scope has asked: all of it by key, and of what was stored the latest by each way of being near."""

    def __init__(self) -> None:
        self.known: OrderedDict[bytes, Known] = OrderedDict()  # the one learnt longest ago first
        self.near: dict[int, list[Known]] = {}

    def add(self, known: Known) -> None:
        self.known[known.sketch.key] = known
        if known.reason is None:
            for way in _ways(known.sketch):
                found = self.near.setdefault(way, [])
                found.append(known)
                if len(found) > LOOKS:
                    del found[0]

    def remove(self, key: bytes) -> Known:
        known = self.known.pop(key)
        if known.reason is None:
            for way in _ways(known.sketch):
                found = self.near.get(way, [])
                if known in found:
                    found.remove(known)
                    if not found:
                        del self.near[way]
        return known


class Nearest:
    """At most `max_bytes`, and so many requests of one scope. For the event loop's thread."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, in_scope: int = MAX_IN_SCOPE) -> None:
        self._max_bytes = max_bytes
        self._in_scope = in_scope
        self._scopes: dict[bytes, _Scope] = {}
        self._order: OrderedDict[bytes, Known] = OrderedDict()  # of all scopes, the one learnt longest ago first
        self._shapes: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.bytes = 0
        self.count = 0
        """How many were learnt so far: a point in their order."""

    def __len__(self) -> int:
        return len(self._order)

    def before(self, key: bytes) -> Before:
        """What is known now, for a request of this key that has just come."""
        return Before(self.count, self._order.get(key))

    def find(self, scope: bytes, sketch: Sketch, *, before: Before, now: float) -> Found:
        """What of this scope is nearest, of what was known before."""
        if before.same is not None:
            return Found(before.same)
        mine = self._scopes.get(scope)
        if mine is None:
            return Found()
        nearest, least, scale = None, inf, _Scale(sketch)
        for known in _candidates(mine, sketch):
            if known.number > before.learnt or known.sketch.key == sketch.key:
                continue
            weight = scale.weigh(known.sketch) + (OVER if known.ends <= now else 0.0)
            if weight < least:
                nearest, least = known, weight
        if nearest is None:
            return Found()
        return Found(None, nearest, differs(sketch, nearest.sketch), continues(sketch, nearest.sketch))

    def learn(self, scope: bytes, sketch: Sketch, *, ends: float, reason: str | None) -> None:
        """The answer to this request was kept until `ends`, or not kept for that reason."""
        former = self._order.get(sketch.key)
        if former is not None:
            self._forget(former)
        sketch.names = self._shared(sketch.names)
        self.count += 1
        known = Known(scope, sketch, self.count if former is None else former.number, ends, reason)
        mine = self._scopes.get(scope)
        if mine is None:
            mine = self._scopes[scope] = _Scope()
        mine.add(known)
        self._order[sketch.key] = known
        self.bytes += known.size
        if len(mine.known) > self._in_scope:
            self._forget(next(iter(mine.known.values())))
        while self.bytes > self._max_bytes and self._order:
            self._forget(next(iter(self._order.values())))

    def _forget(self, known: Known) -> None:
        key, mine = known.sketch.key, self._scopes[known.scope]
        mine.remove(key)
        del self._order[key]
        self.bytes -= known.size
        if not mine.known:
            del self._scopes[known.scope]

    def _shared(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """One object for equal lists of names."""
        if len(self._shapes) >= MAX_SHAPES and names not in self._shapes:
            self._shapes.clear()
        return self._shapes.setdefault(names, names)


def _ways(s: Sketch) -> tuple[int, ...]:
    """The ways of being near that lead to this request. Only hashes: a false friend costs one comparison."""
    setting = (s.names, s.digests)
    return (
        hash(("last", s.last)),
        hash(("before", setting, s.before)),
        hash(("said", setting, s.turns)),
        hash(("setting", setting)),
    )


def _candidates(mine: _Scope, s: Sketch) -> Iterator[Known]:
    """At most 2 * (LOOKS + FEW), the latest first: those with the same last turn; with all the same but that; the turns
    of the same conversation before this one; and those in the same setting, or else the latest of all."""
    last, before, _, setting = _ways(s)
    former = hash(("said", (s.names, s.digests), s.turns[: -2 * SIZE]))
    yield from reversed(mine.near.get(last, ()))
    for way in (before, former):
        yield from islice(reversed(mine.near.get(way, ())), FEW)
    if setting in mine.near:
        yield from reversed(mine.near[setting])
    else:
        yield from (k for k in islice(reversed(mine.known.values()), LOOKS) if k.reason is None)


class _Scale:
    """Weighs what differs from one request: most that are looked at are not the nearest, and need no names."""

    def __init__(self, mine: Sketch) -> None:
        self._mine = mine
        self._digests = pieces(mine.digests)
        self._before = pieces(mine.before)
        self._named = set(zip(mine.names, self._digests, strict=True))

    def weigh(self, other: Sketch) -> float:
        mine, weight = self._mine, 0.0
        if mine.digests != other.digests or mine.names != other.names:
            theirs = pieces(other.digests)
            if mine.names == other.names:
                weight += sum(compress(_weights(mine.names), map(ne, self._digests, theirs)))
            else:
                both = self._named.symmetric_difference(zip(other.names, theirs, strict=True))
                weight += sum(WEIGHTS.get(name, 1.0) for name in {name for name, _ in both})
        elif len(mine.turns) > len(other.turns) and continues(mine, other):
            return CONTINUED
        if mine.last != other.last:
            weight += QUESTION
        before = other.before
        if mine.before != before:
            theirs = pieces(before)
            turns = sum(map(ne, self._before, theirs)) + abs(len(self._before) - len(theirs))
            weight += TURN + MORE_TURNS * (turns - 1)
        return weight


@lru_cache(maxsize=MAX_SHAPES)
def _weights(names: tuple[str, ...]) -> tuple[float, ...]:
    return tuple(WEIGHTS.get(name, 1.0) for name in names)
