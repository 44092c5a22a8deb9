"""A backend's vectors, read: little-endian float32, from either of the forms in which they are sent.

They are decoded one after the other, so that a thread that reads a large reply lets others have their turns.
"""

import base64
import binascii
from typing import Any

import msgspec
import numpy as np

from gateway.upstream import broken

SIZE = 4
"""Bytes of a number."""


class _Item(msgspec.Struct):
    index: int
    embedding: msgspec.Raw


class _Reply(msgspec.Struct):
    data: list[_Item] = []
    usage: Any = None
    error: Any = None


_reply = msgspec.json.Decoder(_Reply)
_numbers = msgspec.json.Decoder(list[float])
_text = msgspec.json.Decoder(str)


def read_vectors(raw: bytes, asked: int) -> tuple[list[bytes], dict[str, Any]]:
    """The vectors for so many inputs in their order, and what else is of interest: `usage`, and `error`, with which
    there are no vectors. Raises ApiError 502."""
    try:
        reply = _reply.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise broken("The backend's answer is not a list of embeddings.") from None
    if reply.error:
        return [], {"error": reply.error}
    if len(reply.data) != asked:
        raise broken(f"The backend's answer has {len(reply.data)} embeddings where {asked} were asked for.")
    vectors = {item.index: _vector(bytes(item.embedding)) for item in reply.data}
    if vectors.keys() != set(range(asked)):
        raise broken("The backend's embeddings do not have the indexes of what was asked for.")
    if len(set(map(len, vectors.values()))) > 1:
        raise broken("The backend's embeddings differ in size.")
    return [vectors[number] for number in range(asked)], {"usage": reply.usage}


def whole(body: bytes) -> bool:
    """Is it a vector, as far as can be seen?"""
    return bool(body) and len(body) % SIZE == 0


def _vector(sent: bytes) -> bytes:
    try:
        if sent.startswith(b'"'):
            body = base64.b64decode(_text.decode(sent), validate=True)
        else:
            with np.errstate(over="ignore"):  # what is too large is infinite, and seen below
                body = np.array(_numbers.decode(sent), dtype="<f4").tobytes()
    except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
        raise broken("The backend's answer holds an embedding that is neither numbers nor base64.") from None
    if not whole(body) or not np.isfinite(np.frombuffer(body, dtype="<f4")).all():
        raise broken("The backend's answer holds an embedding that is no vector of finite numbers.")
    return body
