"""The answer to a request for vectors, in the form that it wants. It is always made from what is kept, so the first
answer and the later ones are the same."""

import base64
from collections.abc import Sequence

import msgspec
import numpy as np
import orjson

NUMPY = orjson.OPT_SERIALIZE_NUMPY


def render(vectors: Sequence[bytes], places: Sequence[int], *, model: str, tokens: int, as_base64: bool) -> bytes:
    """`vectors` are little-endian float32, and `places` has for each index the number of its vector. A number is
    written with the fewest digits that read back as the same float32."""
    # One after the other: a thread that is at this lets others have their turns between two.
    written = [b'"' + base64.b64encode(vector) + b'"' if as_base64 else _numbers(vector) for vector in vectors]
    pieces = [b'{"object":"list","data":[']
    for index, place in enumerate(places):
        pieces += (b',{"object":"embedding","index":%d,"embedding":' % index, written[place], b"}")
    pieces[1] = pieces[1].removeprefix(b",")
    tail = msgspec.json.encode({"model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    pieces += (b"],", tail[1:])
    return b"".join(pieces)


def _numbers(vector: bytes) -> bytes:
    return orjson.dumps(np.frombuffer(vector, dtype="<f4"), option=NUMPY)
