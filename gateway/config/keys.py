"""API keys: how they are made, and how they are kept.

A key made here carries 256 random bits, so nobody finds it by trying, and a plain SHA-256 keeps it as safe as a slow
password hash would, at a price that every request can pay. The slow kind protects secrets that people can guess.
"""

import hashlib
import re
import secrets

_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def digest_key(token: str) -> bytes:
    """The 32 bytes by which a presented key is known."""
    return hashlib.sha256(token.encode()).digest()


def hash_key(token: str) -> str:
    """What `auth.keys[].hash` holds: "sha256:" and 64 hexadecimal digits."""
    return f"sha256:{digest_key(token).hex()}"


def parse_hash(value: str) -> bytes:
    """The digest in a `hash`. Raises ValueError."""
    if not _HASH.fullmatch(value):
        raise ValueError("must be sha256: and 64 hexadecimal digits, as `refrain keys new` prints it")
    return bytes.fromhex(value.removeprefix("sha256:"))


def new_key() -> tuple[str, str]:
    """A new key and its hash. The key itself is kept nowhere."""
    token = f"rf-{secrets.token_urlsafe(32)}"
    return token, hash_key(token)
