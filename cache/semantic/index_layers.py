"""Layers: rows of one large context, made smaller and put into a FAISS index of their own.

A layer only proposes rows. The proposals are ranked afterwards by the exact vectors in the arena, so no decision
depends on which structure answered. Of each kind it is said what a row takes and what a search costs (384 dimensions,
one thread at 2.5 GHz; flat on a nearly idle machine, scan and graph the best of a few hundred on a busy one):

- flat: a signed byte for each component. Needs no training. 10,000 rows .3 ms, 65,000 3.8 ms.
- scan: half a byte for four components (product quantization), looked at 32 rows at a time in registers. Training
  takes a second, a row 10 us. 10,000 rows .1 ms, 100,000 .6 ms (300,000 were not measured undisturbed). The
  nearest of 100,000 sentences in jittered copies was always among its first 64 proposals, of 300,000 in 99.5 %.
- graph: HNSW over the bytes of the flat kind. A row takes .2 to .5 ms to link, and 100,000 rows .5 ms to search. Of
  those sentences it finds the nearest in 99.8 % (with an effort of 40: 98.6 %, and 95.5 % of 300,000). So it is
  for what a scan no longer manages in a few milliseconds.

Rules:

- A layer never changes, so searching it takes no lock. A larger one is made from a copy, which takes over what was
  trained and linked.
- Its rows were right at `time`. A row that has changed hands since is dead (see the arena) and is left out of the
  proposals; where too few are left, more are asked for. In a copy dead rows become row 0, so that they stay dead.
- When over a quarter of its rows are dead, the next layer is made from the living ones only; a scan also when it has
  twice the rows it was trained for.
- FAISS's setting for threads belongs to the calling thread. It is 1 within `one_thread` and put back afterwards, so
  whoever else uses FAISS in this process keeps theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

import faiss
import numpy as np

from cache.semantic.index_arena import Arena, Rows, Vector

LINKS = 16
"""A row of a graph has so many on the upper levels, twice as many on the lowest."""

LINK_EFFORT = 100
SEARCH_EFFORT = 256

OVERSAMPLE = 16
MIN_PROPOSALS = 128
"""So many are proposed, and so many times what is asked for: what the layer ranks hundredth may be the nearest."""

MAX_DEAD = 0.25

BATCH = 256
"""Rows put into a layer at a time: for a graph about 100 ms, after which other work may take its turn."""

SAMPLE = 16_384
"""Rows looked at for the largest component, and to train a scan."""

HEADROOM = 1.25
"""By this factor a component may exceed the largest of the sample before it is cut off."""


class Kind(Enum):
    FLAT = "flat"
    SCAN = "scan"
    GRAPH = "graph"


class Layer(NamedTuple):
    """`rows[i]` is the arena's row of the index's i-th vector, as of `time`. `scale` turns components into bytes where
    the kind takes bytes. `trained` is the number of rows it was made anew with."""

    kind: Kind
    index: Any
    rows: Rows
    time: int
    scale: float
    trained: int

    def bytes(self) -> int:
        """What it takes."""
        dimensions = int(self.index.d)
        row = {Kind.FLAT: dimensions, Kind.SCAN: _parts(dimensions) // 2, Kind.GRAPH: dimensions + 8 * LINKS + 16}
        return len(self.rows) * (4 + row[self.kind])

    def living(self, arena: Arena) -> Rows:
        living: Rows = self.rows[arena.unchanged(self.rows, self.time)]
        return living

    def is_worn(self, arena: Arena) -> bool:
        """Whether too much of it is dead."""
        return len(self.rows) - len(self.living(arena)) > MAX_DEAD * len(self.rows)

    def nearest(self, arena: Arena, vector: Vector, k: int) -> Rows:
        """At least `k` living rows, the likely nearest of the layer, or all that can be reached when it has fewer."""
        query = self._prepared(vector[np.newaxis])
        asked = max(OVERSAMPLE * k, MIN_PROPOSALS)
        while True:
            asked = min(asked, len(self.rows))
            found: Rows = self.rows[self._search(query, asked)]
            rows: Rows = found[arena.unchanged(found, self.time)]
            if len(rows) >= max(asked // 2, k) or len(found) < asked or asked == len(self.rows):
                return rows
            asked *= 4

    def with_rows(self, vectors: Vector) -> None:
        """Only while it is being made."""
        with one_thread():
            self.index.add(self._prepared(vectors))

    def _search(self, query: Vector, count: int) -> Any:
        parameters = None
        if self.kind is Kind.GRAPH:
            effort = max(SEARCH_EFFORT, count)
            parameters = faiss.SearchParametersHNSW(efSearch=effort)  # type: ignore[attr-defined]  # its stubs lack it
        _, found = self.index.search(query, count, params=parameters)
        places = found[0]
        return places[places >= 0]

    def _prepared(self, vectors: Vector) -> Vector:
        """Whole numbers from -128 to 127, as the float32 that FAISS takes; a scan takes the vectors themselves."""
        if self.kind is Kind.SCAN:
            return vectors
        numbers: Vector = np.clip(np.rint(vectors * np.float32(self.scale)), -128, 127)
        return numbers


def build(arena: Arena, kind: Kind, old: Layer | None, rows: Rows, time: int) -> Iterator[Layer]:
    """Make a layer of the living rows of `old` and of `rows`, all of them right at `time`. There must be a row.

    Gives the layer after every batch; the last time it is whole.
    """
    if old is not None and old.kind is kind and not old.is_worn(arena) and not _outgrown(old, len(rows)):
        index = faiss.clone_index(old.index)
        kept = np.where(arena.unchanged(old.rows, old.time), old.rows, 0).astype(np.int32)
        layer = old._replace(index=index, rows=np.concatenate((kept, rows)), time=time)
    else:
        rows = rows if old is None else np.concatenate((old.living(arena), rows))
        sample = arena.vectors[rows[:: 1 + len(rows) // SAMPLE]]
        scale = float(127 / (HEADROOM * np.abs(sample).max()))
        layer = Layer(kind, _empty(kind, sample), rows, time, scale, len(rows))
    for start in range(0, len(rows), BATCH):
        layer.with_rows(arena.vectors[rows[start : start + BATCH]])
        yield layer


@contextmanager
def one_thread() -> Iterator[None]:
    """FAISS works in the calling thread alone."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _outgrown(old: Layer, more: int) -> bool:
    return old.kind is Kind.SCAN and len(old.rows) + more >= 2 * old.trained


def _empty(kind: Kind, sample: Vector) -> Any:
    dimensions = sample.shape[1]
    bytewise: Any = faiss.ScalarQuantizer.QT_8bit_direct_signed
    if kind is Kind.FLAT:
        return faiss.IndexScalarQuantizer(dimensions, bytewise, faiss.METRIC_INNER_PRODUCT)
    if kind is Kind.GRAPH:
        graph = faiss.IndexHNSWSQ(dimensions, bytewise, LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.is_trained = True  # this quantizer has nothing to learn
        graph.hnsw.efConstruction = LINK_EFFORT
        return graph
    scan = faiss.IndexPQFastScan(dimensions, _parts(dimensions), 4, faiss.METRIC_INNER_PRODUCT)
    scan.pq.cp.niter = 10
    scan.pq.cp.min_points_per_centroid = 1  # or it prints warnings
    with one_thread():
        scan.train(sample)
    return scan


def _parts(dimensions: int) -> int:
    """Of a product quantization: four components each, fewer where that does not come out even."""
    return next(dimensions // width for width in (4, 2, 1) if dimensions % width == 0)
