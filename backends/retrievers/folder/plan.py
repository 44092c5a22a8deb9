"""What follows from a look at the folder: pure decisions, without files, clock or model."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from backends.retrievers.folder.acl import Acl
from backends.retrievers.folder.chunking import Piece
from backends.retrievers.folder.files import FileState
from backends.retrievers.folder.index import Index, Indexed, Permissions, Vectors, stacked
from backends.retrievers.folder.pieces import digest
from backends.retrievers.folder.table import Row

Mark = tuple[str, Permissions]
"""Version and required permissions: where one differs, what was made of the document must not be used any more."""


@dataclass(frozen=True, slots=True)
class Read:
    """A document that was read while its file had this state, with a vector for each piece."""

    state: FileState
    version: str
    checksum: bytes
    pieces: tuple[Piece, ...] = field(repr=False)
    vectors: Vectors = field(repr=False)


@dataclass(frozen=True, slots=True)
class Changes:
    """From one index to the next."""

    put: Mapping[str, tuple[Indexed, Vectors]]
    away: Collection[str]
    required: Mapping[str, Permissions]

    def __bool__(self) -> bool:
        return bool(self.put or self.away or self.required)


def unread(files: Mapping[str, FileState], known: Mapping[str, FileState]) -> dict[str, FileState]:
    """Files that must be read: new, or in another state than when they were read."""
    return {name: state for name, state in sorted(files.items()) if known.get(name) != state}


def changes(
    index: Index,
    files: Collection[str],
    refused: Collection[str],
    fresh: Mapping[str, Read],
    acl: Acl,
    *,
    other_rules: bool,
) -> Changes:
    """What must change so that the index has the documents `fresh`, none that is refused or has no file any more, and
    all under the permissions that `acl` requires. `other_rules`: it is another one than that of the index."""
    put: dict[str, tuple[Indexed, Vectors]] = {}
    required: dict[str, Permissions] = {}
    for name, read in fresh.items():
        if name in files and name not in refused:
            new = Indexed(read.version, read.checksum, acl.required(name), read.pieces)
            old = index.documents.get(name)
            if old is None or replace(old, pieces=new.pieces) != new:
                put[name] = new, read.vectors
    away = {name for name in index.documents if name not in files or name in refused}
    if other_rules:
        for name, document in index.documents.items():
            if name not in away and name not in put and (needed := acl.required(name)) != document.required:
                required[name] = needed
    return Changes(put, away, required)


def marks(documents: Mapping[str, Indexed]) -> dict[str, Mark]:
    return {name: (document.version, document.required) for name, document in documents.items()}


def ended(before: Mapping[str, Mark], after: Mapping[str, Mark]) -> list[str]:
    """Documents whose dependants have to go. A new one has none."""
    return sorted(name for name, mark in before.items() if after.get(name) != mark)


def restored(rows: Iterable[Row], kept: Mapping[bytes, Vectors], embedder: str, dimensions: int) -> Index:
    """Of the documents that have all their vectors still, under the permissions that they needed then."""
    put: dict[str, tuple[Indexed, Vectors]] = {}
    for row in rows:
        vectors = [kept.get(digest(piece)) for piece in row.document.pieces]
        whole = [vector for vector in vectors if vector is not None]
        if len(whole) == len(vectors):
            put[row.id] = row.document, stacked(whole, dimensions)
    return Index(embedder, dimensions).changed(put=put, away=(), required={})


def vectors(index: Index) -> list[tuple[bytes, Vectors]]:
    """All that an index has, by the digest of the piece."""
    return [
        (digest(piece), row)
        for name, document in index.documents.items()
        for piece, row in zip(document.pieces, index.vectors(name), strict=True)
    ]
