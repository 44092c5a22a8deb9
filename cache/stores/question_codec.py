"""Questions as rows of bytes, for stores outside this process.

As with entries (codec), what comes back may be damaged, put under another key, or made by somebody hostile. So every
row carries a digest of its fields, and nothing but strings, bytes and tuples of bytes is built from it, no larger than
the bounds here. Whether a vector's numbers are finite is for its user to see.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from cache.framing import digest
from cache.question import Question

KEY_SIZE = 32
MAX_SAME = 64
"""Keys in `same`."""


class Row(NamedTuple):
    """The stored fields: text in UTF-8, `same` in msgpack, and the seal of all these."""

    key: bytes
    context: bytes
    text: bytes
    embedder: bytes
    vector: bytes
    same: bytes
    seal: bytes


LIMITS = {
    "key": KEY_SIZE,
    "context": KEY_SIZE,
    "text": 64 * 1024,
    "embedder": 4096,
    "vector": 16 * 1024,
    "same": MAX_SAME * (KEY_SIZE + 2) + 3,
    "seal": 32,
}
"""The most bytes of each field of a `Row`, in their order."""

_Key = Annotated[bytes, msgspec.Meta(min_length=KEY_SIZE, max_length=KEY_SIZE)]
_Same = Annotated[tuple[_Key, ...], msgspec.Meta(max_length=MAX_SAME)]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Same)


def encode(question: Question) -> Row:
    """The stored form. ValueError where it has none that could be read back."""
    text, embedder = question.text.encode(), question.embedder.encode()
    fields = (question.key, question.context, text, embedder, question.vector, _encoder.encode(question.same))
    row = Row(*fields, seal_of(fields))
    decode(*row)
    return row


def decode(*fields: object) -> Question:
    """The question that `encode` made these fields from, in the order of `Row`; ValueError if they are none."""
    bounded = [_bounded(value, most) for value, most in zip(fields, LIMITS.values(), strict=True)]
    key, context, text, embedder, vector, same, seal = bounded
    if seal != seal_of(bounded[:-1]):
        raise ValueError("damaged")
    if not len(key) == len(context) == KEY_SIZE:
        raise ValueError("a key or context of another length")
    if len(vector) % 4:
        raise ValueError("a vector that is no row of float32")
    return Question(key, context, text.decode(), embedder.decode(), vector, _decoder.decode(same))


def seal_of(fields: Sequence[bytes]) -> bytes:
    """The digest of the other fields of a row."""
    return digest("refrain.question", fields)


def _bounded(value: object, most: int) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("not of its column's type")
    if len(value) > most:
        raise ValueError("too long")
    return value
