"""The latest records, of a number that does not grow.

Hits of the short way, of which there are by far the most, are no objects here but rows of numbers: nothing is made and
nothing is torn down for them, in memory that no cache of the processor holds any more.
"""

from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct

from gateway.decisions import Decision
from gateway.hits import Facts, Hit, Record

NEAR = 64
"""Places around the one where a record should be that are looked at before all others."""
_ROW = Struct("<Qddqq")
"""Of a hit: the number of its id, when it came, what it took, its age, its ttl."""
_write, _WIDTH, _EMPTY = _ROW.pack_into, _ROW.size, bytes(_ROW.size)


class Ring:
    """Newest first. Who goes through it while it grows does not see what comes, nor what goes before its turn."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._kept: list[Decision | Facts] = []
        self._rows = bytearray()
        self._count = 0  # of the records that were ever added; the last one's place is that before

    def add(self, decision: Decision) -> None:
        self._put(decision)

    def add_hit(self, facts: Facts, number: int, at: float, ms: float, age: int, ttl: int) -> None:
        """What makes a `Hit`."""
        _write(self._rows, self._put(facts) * _WIDTH, number, at, ms, age, ttl)

    def _put(self, record: Decision | Facts) -> int:
        """Its place."""
        place = self._count % self.length
        self._count += 1
        if place == len(self._kept):
            self._kept.append(record)
            self._rows += _EMPTY
        else:
            self._kept[place] = record
        return place

    def resize(self, length: int) -> None:
        """Keep the latest `length` from now on."""
        oldest = self._count % self.length if len(self._kept) == self.length else 0
        kept = self._kept[oldest:] + self._kept[:oldest]
        rows = self._rows[oldest * _WIDTH :] + self._rows[: oldest * _WIDTH]
        self.length, self._kept, self._rows = length, kept[-length:], rows[-length * _WIDTH :]
        self._count = len(self._kept)

    def copy(self) -> "Ring":
        """As it is now, for who needs time to go through it."""
        ring = Ring(self.length)
        ring._kept, ring._rows, ring._count = self._kept.copy(), self._rows.copy(), self._count
        return ring

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Record]:
        kept, end = self._kept, self._count
        for n in range(end - 1, end - 1 - len(kept), -1):
            if self._kept is not kept or self._count - n > self.length:
                return
            yield self._at(n)

    def _at(self, n: int) -> Record:
        """The n-th that was ever added."""
        place = n % self.length
        record = self._kept[place]
        return record if isinstance(record, Decision) else Hit(record, *_ROW.unpack_from(self._rows, place * _WIDTH))

    def _number(self, n: int) -> int:
        """That of its id."""
        place = n % self.length
        record = self._kept[place]
        if isinstance(record, Decision):
            return _number_in(record.id)
        return int.from_bytes(self._rows[place * _WIDTH : place * _WIDTH + 8], "little")

    def find(self, id: str) -> Record | None:
        """Ids carry a running number, and requests end about in the order in which they came: so it is looked for
        first where it should be."""
        first, end = self._count - len(self._kept), self._count
        about = first + bisect_left(range(first, end), _number_in(id), key=self._number)
        for n in range(max(first, about - NEAR), min(end, about + NEAR)):
            if (record := self._at(n)).id == id:
                return record
        return next((record for record in self if record.id == id), None)


def _number_in(id: str) -> int:
    digits = id.rpartition("_")[2][:18]
    return int(digits) if digits.isascii() and digits.isdigit() else 0
