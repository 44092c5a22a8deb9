"""Which row a key has, and which key a row has, in less than a dict takes.

A dict of row numbers costs 85 to 130 bytes a key beyond the key itself. Here a table of row numbers, open addressing
with linear probing, costs about 10, and the keys stand in a list by row. It never grows: at most two thirds of its
places are taken when all rows are. A lookup takes half a microsecond.
"""

import numpy as np


class KeyTable:
    """At most `capacity` keys; rows are numbers from 1, given in order the first time."""

    def __init__(self, capacity: int) -> None:
        self._mask = (1 << (capacity * 3 // 2).bit_length()) - 1
        # A place holds a row, or 0. A view of it gives plain numbers, twice as fast; memory comes with use.
        self._places = np.zeros(self._mask + 1, np.int32).data
        self._keys: list[bytes | None] = [None]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def row(self, key: bytes) -> int:
        """0 when it has none."""
        row: int = self._places[self._place(key)]
        return row

    def key(self, row: int) -> bytes:
        """KeyError when the row has none."""
        key = self._keys[row]
        if key is None:
            raise KeyError(row)
        return key

    def all(self) -> list[bytes]:
        return [key for key in self._keys if key is not None]

    def put(self, key: bytes, row: int) -> None:
        """For a key that has no row, and a row that has no key."""
        if row == len(self._keys):
            self._keys.append(key)
        else:
            self._keys[row] = key
        self._places[self._place(key)] = row
        self._count += 1

    def remove(self, row: int) -> None:
        """Those behind it that would no longer be found move up."""
        places, mask = self._places, self._mask
        gap = self._place(self.key(row))
        self._keys[row] = None
        self._count -= 1
        place = gap
        while other := places[place := (place + 1) & mask]:
            home = hash(self._keys[other]) & mask
            if (place - home) & mask >= (place - gap) & mask:
                places[gap] = other
                gap = place
        places[gap] = 0

    def _place(self, key: bytes) -> int:
        """Where the key's row stands, or the free place where it belongs."""
        place = hash(key) & self._mask
        while (row := self._places[place]) and self._keys[row] != key:
            place = (place + 1) & self._mask
        return place
