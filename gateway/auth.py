"""Who asks: credentials -> principal. Keys are kept as digests only, and a request field never chooses a principal,
except through a key that may delegate."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from urllib.parse import urlsplit

from gateway.config import is_loopback
from gateway.errors import ApiError
from gateway.jwks import SigningKeys
from gateway.limits import Meter
from gateway.principal import ON_BEHALF, OPEN, Principal, on_behalf
from gateway.tokens import MAX_TOKEN, Tokens, Verified, looks_like_jwt


class Key:
    """An API key that is known here. It is good until it is revoked."""

    __slots__ = ("delegate", "digest", "meter", "principal", "revoked")
    until = inf

    def __init__(
        self, digest: bytes, principal: Principal, *, delegate: bool = False, meter: Meter | None = None
    ) -> None:
        self.digest = digest
        self.principal = principal
        self.delegate = delegate
        self.meter = meter
        self.revoked = False

    def good(self) -> bool:
        return not self.revoked


class Token:
    """A verified token: good until its wall-clock end, while the provider stands by the keys that signed it."""

    __slots__ = ("_keys", "_version", "principal", "until")
    delegate = False
    meter: Meter | None = None

    def __init__(self, verified: Verified, keys: SigningKeys) -> None:
        self.principal = verified.principal
        self.until = verified.until
        self._version = verified.version
        self._keys = keys

    def good(self) -> bool:
        return self._version == self._keys.version


Credential = Key | Token

ANYBODY = Key(b"", OPEN)
"""No credential, where none is needed."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Who asks, and by which credential: the holder of the credential, or whom the holder speaks for."""

    principal: Principal
    credential: Credential

    def take(self) -> None:
        """Count one request against the limits. Raises ApiError 429."""
        meter = self.credential.meter
        if meter is not None and not meter.take():
            raise meter.refusal()


@dataclass(frozen=True, slots=True)
class Authenticator:
    """`enter` takes the headers of a request, names in lower case, repeated ones joined by ", "."""

    required: bool
    keys: Mapping[bytes, Key] = field(repr=False)  # by the SHA-256 of their text
    tokens: Tokens | None = field(repr=False, default=None)

    async def enter(self, headers: Mapping[bytes, bytes]) -> Entrant:
        """Raises ApiError 401, 403, 503, or 400 for a delegation that cannot be read; its text never repeats what was
        sent."""
        presented = _token(headers.get(b"authorization"), headers.get(b"x-api-key"), strict=self.required)
        if presented is not None and (key := self._find(presented)) is not None:
            header = headers.get(ON_BEHALF) if key.delegate else None
            return Entrant(key.principal if header is None else on_behalf(key.principal, header), key)
        if presented is not None and self.tokens is not None and looks_like_jwt(presented):
            try:
                verified = await self.tokens.verify(presented)
                return Entrant(verified.principal, Token(verified, self.tokens.keys))
            except ApiError:
                if self.required:
                    raise
        if not self.required:
            _check_local(headers)
            return Entrant(OPEN, ANYBODY)
        if presented is None:
            raise _refused("No API key given: send it as `Authorization: Bearer KEY`.", "missing_api_key")
        raise _refused("This API key is not valid here.", "invalid_api_key")

    def _find(self, token: bytes) -> Key | None:
        # The look-up goes by the digest, so its timing tells nothing about a key; hmac has the last word all the same.
        digest = sha256(token).digest()
        known = self.keys.get(digest)
        if known is None or not hmac.compare_digest(known.digest, digest):
            return None
        return known if known.good() else None


def _check_local(headers: Mapping[bytes, bytes]) -> None:
    """Where no key is needed, being on this machine is the credential, and a browser lends it to every page: one can
    post here (Origin tells), or give its own name this address (Host tells). Raises ApiError 403."""
    host = b"//" + headers.get(b"host", b"localhost")
    origin = headers.get(b"origin", b"http://localhost")
    if _foreign(host) or _foreign(origin):
        text = "Without keys this gateway answers only requests from this machine. Set auth.keys to serve others."
        raise ApiError(403, text, code="not_local")


def _foreign(url: bytes) -> bool:
    """Can this host be somebody else's? Names of the public DNS have a dot; `localhost` and container names do not."""
    try:
        name = urlsplit(url.decode("latin-1")).hostname
    except ValueError:
        return True
    return not name or (("." in name or ":" in name) and not is_loopback(name))


def _token(authorization: bytes | None, api_key: bytes | None, *, strict: bool) -> bytes | None:
    bearer = None
    if authorization is not None:
        scheme, _, rest = authorization.strip().partition(b" ")
        bearer = rest.strip() if scheme.lower() == b"bearer" else b""
    if bearer is not None and api_key is not None and bearer != api_key.strip():
        if not strict:
            return None
        raise _refused("Authorization and x-api-key name different credentials: send one.", "conflicting_credentials")
    token = bearer if bearer is not None else api_key and api_key.strip()
    if token is not None and (not token or len(token) > MAX_TOKEN):
        return b"" if strict else None
    return token


def _refused(message: str, code: str) -> ApiError:
    # A retry with the same key cannot help, and SDKs obey this header.
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer", "x-should-retry": "false"})
