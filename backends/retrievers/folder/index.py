"""The index of a folder, at one moment: which pieces of which documents are nearest to a vector.

Rules:

- An index never changes. A change makes another one, which shares with the former all that has stayed the same; so a
  search that has begun goes on in what it began with, and never sees a mixture.
- Documents that need the same permissions are a partition with rows of its own. A search visits the partitions that
  the principal may see, and no others: there is nothing to filter, and so nothing to forget to filter.
- Scores are inner products of unit vectors, computed row by row: the same text has the same score wherever it lies.
  Equal scores are put in the order of (document, position), so that equal indexes find equal things.
- FAISS's setting for threads belongs to the calling thread. It is 1 within `_one_thread` and put back afterwards.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from heapq import nsmallest
from itertools import accumulate

import faiss
import numpy as np
from numpy.typing import NDArray

from backends.retrievers.base import Found
from backends.retrievers.folder.chunking import Piece

LARGE = 4_096
"""Rows from which a search is better made in a thread: 4,000 of 384 numbers take half a millisecond (one thread at 2.5
GHz), 10,000 take two."""
SPARE = 16
"""Ranked beyond what is asked for: as many may have the same score as the last."""

Vectors = NDArray[np.float32]
Permissions = frozenset[str]


@dataclass(frozen=True, slots=True)
class Indexed:
    """A document as it is found. `checksum` is that of its pieces."""

    version: str
    checksum: bytes
    required: Permissions
    pieces: tuple[Piece, ...]


def stacked(vectors: Sequence[Vectors], dimensions: int) -> Vectors:
    """Rows and tables of rows, one below the other."""
    return np.vstack(vectors) if vectors else np.zeros((0, dimensions), np.float32)


class Partition:
    """Documents that need the same permissions. Their rows lie in the order of (document, position)."""

    def __init__(self, documents: Mapping[str, Indexed], vectors: Mapping[str, Vectors], dimensions: int) -> None:
        self._ids = sorted(documents)
        self._documents = documents
        self._starts = list(accumulate((len(documents[name].pieces) for name in self._ids), initial=0))
        self._index = faiss.IndexFlatIP(dimensions)
        with _one_thread():
            self._index.add(stacked([vectors[name] for name in self._ids], dimensions))
        if len(self) != self._starts[-1]:
            raise ValueError(f"{len(self)} vectors of {self._starts[-1]} pieces")

    def __len__(self) -> int:
        """Pieces."""
        return int(self._index.ntotal)

    def vectors(self, document: str) -> Vectors:
        """A copy of a document's rows."""
        place = bisect_left(self._ids, document)
        start, end = self._starts[place], self._starts[place + 1]
        if start == end:
            return np.zeros((0, self._index.d), np.float32)
        rows: Vectors = self._index.reconstruct_n(start, end - start)
        return rows

    def nearest(self, vector: Vectors, count: int) -> Iterator[tuple[float, str, int]]:
        """(score, document, position) of the `count` best, and of all others that score as high as the last of them."""
        count = min(count, len(self))
        if not count:
            return
        asked = min(count + SPARE, len(self))
        while True:
            with _one_thread():
                scores, rows = self._index.search(vector[np.newaxis], asked)
            if asked == len(self) or scores[0, -1] < scores[0, count - 1]:
                break
            asked = min(4 * asked, len(self))
        for score, row in zip(scores[0].tolist(), rows[0].tolist(), strict=True):
            if score < scores[0, count - 1]:
                break
            place = bisect_right(self._starts, row) - 1
            yield score, self._ids[place], row - self._starts[place]


class Index:
    """Documents by id, with unit vectors of `dimensions` numbers by the embedder `embedder`."""

    def __init__(
        self,
        embedder: str,
        dimensions: int,
        documents: Mapping[str, Indexed] | None = None,
        partitions: Mapping[Permissions, Partition] | None = None,
    ) -> None:
        self.embedder = embedder
        self.dimensions = dimensions
        self.documents: Mapping[str, Indexed] = documents or {}
        self._partitions: Mapping[Permissions, Partition] = partitions or {}
        self.pieces = sum(map(len, self._partitions.values()))
        self.digest = _digest(embedder, self.documents)

    def __repr__(self) -> str:
        return f"Index({len(self.documents)} documents, {self.pieces} pieces, {len(self._partitions)} partitions)"

    def rows(self, permissions: Permissions | None) -> int:
        """How many rows a search with these permissions looks at."""
        return sum(map(len, self._visible(permissions)))

    def search(self, vector: Vectors, top_k: int, permissions: Permissions | None) -> list[Found]:
        """At most `top_k`, the best first, of the documents that these permissions may see (None: all)."""
        near = (found for partition in self._visible(permissions) for found in partition.nearest(vector, top_k))
        best = nsmallest(top_k, near, key=lambda found: (-found[0], found[1], found[2]))
        return [self._found(*found) for found in best]

    def changed(
        self,
        *,
        put: Mapping[str, tuple[Indexed, Vectors]],
        away: Collection[str],
        required: Mapping[str, Permissions],
    ) -> "Index":
        """Another index: without the documents of `away`, with those of `put` new or in place of the former ones, and
        with other permissions `required` of documents that stay."""
        documents = {name: document for name, document in self.documents.items() if name not in away}
        documents |= {name: replace(documents[name], required=needed) for name, needed in required.items()}
        documents |= {name: document for name, (document, _) in put.items()}
        touched: dict[Permissions, dict[str, Indexed]] = {}
        for name in {*put, *away, *required}:
            for version in (self.documents.get(name), documents.get(name)):
                if version is not None:
                    touched[version.required] = {}
        for name, document in documents.items():
            if document.required in touched:
                touched[document.required][name] = document
        partitions = {needed: same for needed, same in self._partitions.items() if needed not in touched}
        for needed, members in touched.items():
            if members:
                vectors = {name: put[name][1] if name in put else self.vectors(name) for name in members}
                partitions[needed] = Partition(members, vectors, self.dimensions)
        return Index(self.embedder, self.dimensions, documents, partitions)

    def vectors(self, document: str) -> Vectors:
        """A copy of those of a document that is here, a row for each piece."""
        return self._partitions[self.documents[document].required].vectors(document)

    def _visible(self, permissions: Permissions | None) -> list[Partition]:
        return [
            partition
            for required, partition in self._partitions.items()
            if permissions is None or required <= permissions
        ]

    def _found(self, score: float, name: str, position: int) -> Found:
        document = self.documents[name]
        piece = document.pieces[position]
        return Found(name, document.version, position, piece.text, max(-1.0, min(1.0, score)), piece.title)


def _digest(embedder: str, documents: Mapping[str, Indexed]) -> str:
    """Of all that decides what is found."""
    state = blake2b(digest_size=16)

    def add(*fields: bytes) -> None:
        for field in fields:
            state.update(len(field).to_bytes(8))
            state.update(field)

    add(embedder.encode())
    for name in sorted(documents):
        document = documents[name]
        required = sorted(permission.encode() for permission in document.required)
        add(name.encode(), document.version.encode(), document.checksum, len(required).to_bytes(8), *required)
    return state.hexdigest()


@contextmanager
def _one_thread() -> Iterator[None]:
    """FAISS works in the calling thread alone."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
