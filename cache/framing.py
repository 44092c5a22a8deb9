"""Digests of lists of fields, framed so that no two different lists give the same bytes.

Every field is preceded by its length and the list by its count: ("org_1", "2345") and ("org_12", "345") differ,
and so do ["a"] and ["a", ""].
"""

from collections.abc import Sequence
from hashlib import blake2b

DIGEST_SIZE = 32
"""Bytes in every digest: BLAKE2b-256."""


def digest(domain: str, fields: Sequence[bytes]) -> bytes:
    """BLAKE2b-256 over length-prefixed `fields`; `domain` keeps digests for different purposes apart."""
    h = blake2b(digest_size=DIGEST_SIZE)
    name = domain.encode()
    h.update(len(name).to_bytes(8, "big") + name + len(fields).to_bytes(8, "big"))
    for field in fields:
        h.update(len(field).to_bytes(8, "big"))
        h.update(field)
    return h.digest()
