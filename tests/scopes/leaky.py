"""What a planted leak is: what stands in place of what, and which rules that breaks."""

from dataclasses import dataclass
from typing import Any

Plant = tuple[object, str, Any]
SCOPE = frozenset({"another scope"})


@dataclass(frozen=True)
class Leaky:
    """`rules` are those that it breaks, one of which is found first; `plants`: what is put in place of what; `stored`:
    it is in the store behind the memory."""

    rules: frozenset[str]
    plants: tuple[Plant, ...]
    stored: bool = False


class Always:
    """Equal to everything."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def always(*_: object) -> bool:
    return True


def never(*_: object, **__: object) -> bool:
    return False
