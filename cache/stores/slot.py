"""One entry's place in memory.

An entry ages by the wall clock, since its times are absolute, but a clock that is set back must not lengthen its life:
so every slot remembers when it was made by both clocks.
"""

from cache.entry import Entry

SLOT_OVERHEAD = 320
"""Bytes charged per slot beyond its entry: the slot, its two dicts and its place in the order (measured: about 300)."""

STEP = 1.0
"""Seconds by which a wall clock has to fall behind to count as set back: the two clocks are not read at one instant."""


class Slot:
    """One entry's place in memory: the entry, other wire forms of its answer, its aliases, the bytes of all these.

    Readers may keep a slot as long as they like; only the store changes it. `wall` and `mono` are the time of its
    making, by the two clocks.
    """

    __slots__ = ("_mono", "_wall", "aliases", "entry", "rendered", "size")

    def __init__(self, entry: Entry, wall: float, mono: float) -> None:
        self.entry = entry
        self._wall = wall
        self._mono = mono
        self.rendered: dict[str, bytes] = {}
        self.aliases: dict[bytes, int] = {}  # digest -> bytes charged, the oldest first
        self.size = entry.size + SLOT_OVERHEAD

    def now(self, wall: float, mono: float) -> float:
        """The time by which its entry ages: the wall clock's, but when that is set back the entry ages on."""
        return max(wall, self._wall + (mono - self._mono) - STEP)
