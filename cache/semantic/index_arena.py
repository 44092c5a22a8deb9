"""The arena: every vector of the index in one table of rows, and who owns which row since when.

Rules:

- The table is reserved once, as large as the bound allows. That is address space: the system gives memory page by
  page as rows are first written, so the arena grows without copying and a search reads rows where they lie (FAISS
  multiplies by row number: at 1,000 rows .16 ms, gathering them first .31 ms). A freed row is the next to be used.
- Time is counted in changes. `stamps[row]` is the change at which the row was last given or freed, and `now` the
  latest. Whoever noted `now` together with a set of rows may read them without a lock: afterwards, a row whose stamp
  is not above the noted time still holds what it held then, for the same key and context. All others are to be
  ignored. Row 0 belongs to nobody and its stamp is above any time.
- The order of use is a ring through row 0, kept in two arrays of row numbers.

Nothing here locks; `Index` says when it does.
"""

from array import array

import faiss
import numpy as np
from numpy.typing import NDArray

from cache.semantic.index_keys import KeyTable

Rows = NDArray[np.int32]
Vector = NDArray[np.float32]

NEVER = np.iinfo(np.int64).max


class Arena:
    """`capacity` rows of `dimensions` float32 each."""

    def __init__(self, dimensions: int, capacity: int) -> None:
        self.dimensions = dimensions
        self.now = 0
        self.keys = KeyTable(capacity)
        self.vectors: NDArray[np.float32] = np.empty((capacity + 1, dimensions), np.float32)
        self.stamps: NDArray[np.int64] = np.zeros(capacity + 1, np.int64)
        self.stamps[0] = NEVER
        self._contexts = [b""]
        self._freed = array("i")
        self._older = array("i", [0])
        self._newer = array("i", [0])

    def put(self, key: bytes, context: bytes, vector: Vector) -> int:
        """A row for a key that has none, as the most recently used."""
        if self._freed:
            row = self._freed.pop()
            self._contexts[row] = context
        else:
            row = len(self._contexts)
            self._contexts.append(context)
            self._older.append(0)
            self._newer.append(0)
        self._change(row)
        self.vectors[row] = vector
        self.keys.put(key, row)
        self._link(row)
        return row

    def free(self, row: int) -> None:
        self._change(row)
        self._unlink(row)
        self.keys.remove(row)
        self._contexts[row] = b""
        self._freed.append(row)

    def touch(self, row: int) -> None:
        """Make it the most recently used."""
        if self._older[0] != row:
            self._unlink(row)
            self._link(row)

    def least_recent(self) -> int:
        """The row unused for longest; 0 when there is none."""
        return self._newer[0]

    def context(self, row: int) -> bytes:
        return self._contexts[row]

    def unchanged(self, rows: Rows, time: int) -> NDArray[np.bool_]:
        """Which of the rows have not changed hands since `time`."""
        return self.stamps[rows] <= time

    def products(self, vector: Vector, rows: Rows) -> Vector:
        """The inner product of `vector` with each of these rows, exact to float32."""
        products = np.empty(len(rows), np.float32)
        if len(rows) == 0:
            return products
        numbers = rows.astype(np.int64)
        faiss.fvec_inner_products_by_idx(  # type: ignore[attr-defined]  # its stubs lack it
            faiss.swig_ptr(products),
            faiss.swig_ptr(vector),
            faiss.swig_ptr(self.vectors),
            faiss.swig_ptr(numbers),
            self.dimensions,
            1,
            len(rows),
        )
        return products

    def _change(self, row: int) -> None:
        self.now += 1
        self.stamps[row] = self.now

    def _link(self, row: int) -> None:
        last = self._older[0]
        self._older[row], self._newer[row] = last, 0
        self._newer[last] = self._older[0] = row

    def _unlink(self, row: int) -> None:
        older, newer = self._older[row], self._newer[row]
        self._newer[older], self._older[newer] = newer, older
