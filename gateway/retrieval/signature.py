"""The signature of a webhook, as https://www.standardwebhooks.com says: who sends it knows the secret, its body is
whole, and it is not an old one.

    webhook-id         a name of the message's own
    webhook-timestamp  when it was sent, seconds since 1970
    webhook-signature  v1,BASE64 of HMAC-SHA256(secret, id.timestamp.body); several are separated by blanks, while a
                       sender goes from one secret to another

The package `standardwebhooks` does the same, but by the machine's clock only, and what is malformed (a body that is no
UTF-8, a signature without a comma or that is no Base64) makes it raise four kinds of errors. It is what the tests sign
with.
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping

TOLERANCE = 300.0
"""Seconds that a timestamp may be off, either way: clocks differ, and messages are tried again."""
ENCODED = "whsec_"
MAX_ID = 256
MAX_SIGNATURES = 16


class SignatureError(Exception):
    """Not what the sender has sent, or not now. `code` is for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def secret_key(text: str) -> bytes:
    """The bytes to sign with: those that Base64 after `whsec_` says, or the text itself. Raises ValueError."""
    if not text.startswith(ENCODED):
        return text.encode()
    encoded = text.removeprefix(ENCODED).rstrip("=")
    key = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    if not key:
        raise ValueError("nothing follows")
    return key


def sign(key: bytes, id: bytes, timestamp: bytes, body: bytes) -> bytes:
    return b"v1," + b64encode(hmac.digest(key, b".".join((id, timestamp, body)), "sha256"))


def verify(key: bytes, headers: Mapping[bytes, bytes], body: bytes, now: float) -> bytes:
    """The message's id. `headers` have names in lower case, `now` is wall-clock seconds. Raises SignatureError."""
    id, timestamp, signatures = (headers.get(b"webhook-" + n, b"") for n in (b"id", b"timestamp", b"signature"))
    if not id or len(id) > MAX_ID or not (timestamp.isdigit() and len(timestamp) <= 12):
        text = f"A webhook needs webhook-id (at most {MAX_ID} bytes) and webhook-timestamp (whole seconds since 1970)."
        raise SignatureError("invalid_signature", text)
    expected = sign(key, id, timestamp, body)
    if not any(hmac.compare_digest(expected, given) for given in signatures.split()[:MAX_SIGNATURES]):
        raise SignatureError("invalid_signature", "No v1 signature in webhook-signature is right for this message.")
    # Said only to who has signed it.
    if abs(now - int(timestamp)) > TOLERANCE:
        text = f"webhook-timestamp is more than {TOLERANCE:g} s from the time here: sign it anew, or set the clocks."
        raise SignatureError("stale_timestamp", text)
    return id
