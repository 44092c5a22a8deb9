"""Pieces of documents: as a search gives them, and as results name them without their text."""

import json
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Annotated

import msgspec
from msgspec import Meta

from cache.framing import DIGEST_SIZE, digest


@dataclass(frozen=True, slots=True)
class Passage:
    """Piece number `position` (from 0) of the `version` of a document; the higher the `score`, the better it fits. It
    may be used again for `lasting` seconds."""

    document: str
    version: str
    position: int
    text: str = field(repr=False)
    score: float
    title: str = ""
    lasting: float = inf


class Reference(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A passage without its text. `digest` is 32 bytes over document, version, title and text: two references with the
    same one are to the same words of the same document."""

    document: str
    version: str
    position: Annotated[int, Meta(ge=0)]
    score: float
    title: str
    digest: Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]


def refer(passage: Passage) -> Reference:
    made = _digest(passage.document, passage.version, passage.title, passage.text)
    return Reference(passage.document, passage.version, passage.position, passage.score, passage.title, made)


def encode(references: tuple[Reference, ...]) -> bytes:
    """The body of an entry."""
    return _encoder.encode(references)


def decode(body: bytes, *, most: int) -> tuple[Reference, ...] | None:
    """What `encode` was given; None where it can have been no such thing. Whoever can write to the store may have."""
    try:
        references = _decoder.decode(body)
    except ValueError:  # msgspec's are among them
        return None
    if len(references) > most or not all(isfinite(reference.score) for reference in references):
        return None
    return references


def said(body: bytes) -> str | None:
    """What results say, as a JSON text: equal for the same pieces in whichever order. None where they are broken, or
    say nothing."""
    try:
        references = _decoder.decode(body)
    except ValueError:
        return None
    return json.dumps(sorted({r.digest.hex() for r in references})) if references else None


def text_of(body: bytes, reference: Reference) -> str | None:
    """The text that the reference is to; None where the body is another one."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    made = _digest(reference.document, reference.version, reference.title, text)
    return text if made == reference.digest else None


def _digest(document: str, version: str, title: str, text: str) -> bytes:
    return digest("refrain.chunk.1", [document.encode(), version.encode(), title.encode(), text.encode()])


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Reference, ...])
