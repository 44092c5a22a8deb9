"""The phases of a request as a waterfall, and as shares of its time."""

from collections.abc import Mapping, MutableMapping
from fractions import Fraction
from typing import Any, TypeVar

OTHER = "other"
"""What no phase accounts for: a stream's client that reads it, the gateway's own steps between the phases."""
WITHIN = {
    "search": "retrieval",
    **dict.fromkeys(("first_byte", "upstream_queue", "upstream_prefill"), "upstream"),
}
"""Phases that are parts of another one."""
AFTER = {"upstream_prefill": "upstream_queue"}
"""Of those, the ones that do not begin with it but after another part."""

CALL = ("queue", "upstream")
"""What a call to a backend takes."""
FALLBACK = "fallback"
"""What was lost on backends that failed, before another one was asked."""

N = TypeVar("N", float, Fraction)


def shares(parts: Mapping[str, N]) -> dict[str, N]:
    """What share each has of all together, which is above 0."""
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()}


def spans(phases: Mapping[str, float], ms: float) -> list[dict[str, Any]]:
    """`phases` are milliseconds by name, in the order in which they ended, of a request that took `ms`. Gives for each
    its name, its start after the request's, its length and its share of the whole; a part of another one comes after
    that, names it as `within`, and is in no sum. Of the others, with `other` at the end, the shares sum to 1.

    Phases follow one another, so each starts where the one before ended; what went on beyond the request's end (a call
    that was finished though its client had left) is cut there."""
    inner = {name: length for name, length in phases.items() if WITHIN.get(name) in phases}
    left = max(ms, 0.0)
    outer: dict[str, float] = {}
    for name, length in phases.items():
        if name not in inner:
            outer[name] = min(max(length, 0.0), left)
            left -= outer[name]
    outer[OTHER] = outer.get(OTHER, 0.0) + left
    share = shares(outer) if ms > 0 else dict.fromkeys(outer, 0.0)
    found, start = [], 0.0
    for name, length in outer.items():
        found.append({"name": name, "start": start, "ms": length, "share": share[name]})
        found += _parts(inner, name, start, length, ms)
        start += length
    return found


def give_up(phases: MutableMapping[str, float]) -> None:
    """The call that these phases tell of is over, and another one is made in its place: its time is lost."""
    lost = sum(phases.pop(name, 0.0) for name in (FALLBACK, *CALL))
    for name in [name for name in phases if WITHIN.get(name) in CALL]:
        del phases[name]
    phases[FALLBACK] = lost


def _parts(inner: Mapping[str, float], within: str, start: float, length: float, ms: float) -> list[dict[str, Any]]:
    found = []
    for name, part in inner.items():
        if WITHIN[name] == within:
            begin = start + min(inner.get(AFTER.get(name, ""), 0.0), length)
            part = min(max(part, 0.0), start + length - begin)
            share = part / ms if ms > 0 else 0.0
            found.append({"name": name, "start": begin, "ms": part, "share": share, "within": within})
    return found
