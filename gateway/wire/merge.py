"""Values that come in pieces, put together in time proportional to what came.

Strings are joined, lists extended, objects merged; anything else is replaced by the latest value, and null changes
nothing. No piece is ever changed: the same chunk may still be on its way to a client. What one piece brought whole
stays that piece's own value; only a second one makes it a `Text`, `Object` or `Entries`, which are ours to change.
"""

from collections.abc import Iterable
from typing import Any

WHOLE = frozenset({"id", "type", "format", "role"})
"""Fields that name something: they never come in pieces, and some servers repeat them, or an empty one, in every
piece."""

BLOCK = 128
DEEPEST = 64


class Text:
    """A string in pieces. Small pieces are joined block by block: each would weigh ten times its characters."""

    __slots__ = ("_blocks", "_tail")

    def __init__(self, *pieces: str) -> None:
        self._blocks: list[str] = []
        self._tail = list(pieces)

    def add(self, piece: str) -> None:
        self._tail.append(piece)
        if len(self._tail) >= BLOCK:
            self._blocks.append("".join(self._tail))
            self._tail.clear()

    def __str__(self) -> str:
        return "".join([*self._blocks, *self._tail])


class Object(dict[str, Any]):
    """An object in pieces."""

    def add(self, piece: dict[str, Any], depth: int = 0) -> None:
        for name, value in piece.items():
            self[name] = merged(self.get(name), value, name, depth + 1)


class Entries(list[Any]):
    """A list in pieces. An object with an `index` continues the entry of that index and type (`reasoning_details`
    come so), all else is a new entry."""

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__()
        self._at: dict[tuple[int, str | None], int] = {}
        for item in items:
            self._append(item, _place(item))

    def add(self, items: list[Any], depth: int = 0) -> None:
        for item in items:
            place = _place(item)
            at = self._at.get(place) if place is not None else None
            if at is None:
                self._append(item, place)
            else:
                self[at] = merged(self[at], item, depth=depth + 1)

    def _append(self, item: Any, place: tuple[int, str | None] | None) -> None:
        if place is not None:
            self._at[place] = self._at[(place[0], None)] = len(self)  # a later piece may leave the type out
        self.append(item)


def _place(item: Any) -> tuple[int, str | None] | None:
    if not isinstance(item, dict) or type(index := item.get("index")) is not int:
        return None
    kind = item.get("type")
    return index, kind if isinstance(kind, str) else None


def merged(old: Any, new: Any, name: str = "", depth: int = 0) -> Any:
    """The value of field `name` after one more piece of it."""
    if new is None:
        return old
    if old is None:
        return new
    if name in WHOLE:
        return old or new
    if isinstance(new, str):
        return _longer(old, new, name)
    if depth < DEEPEST:
        if isinstance(new, dict) and isinstance(old, dict):
            known = old if isinstance(old, Object) else Object(old)
            known.add(new, depth)
            return known
        if isinstance(new, list) and isinstance(old, list):
            entries = old if isinstance(old, Entries) else Entries(old)
            entries.add(new, depth)
            return entries
    return new


def _longer(old: Any, new: str, name: str) -> Any:
    if not new:
        return old
    if isinstance(old, Text):
        old.add(new)
        return old
    if isinstance(old, str) and old:
        # Servers that repeat the name of a function do so whole.
        return old if name == "name" and new == old else Text(old, new)
    return new


def joined(value: Any) -> Any:
    """The value with all that came in pieces whole; leaves the pieces as they are, so that more may come."""
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, Object):
        return {name: joined(v) for name, v in value.items()}
    if isinstance(value, Entries):
        return [joined(v) for v in value]
    return value
