"""Who asks: credentials -> principal. Keys are kept as digests only, and a request field never chooses a principal."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import urlsplit

from gateway.config import Auth, is_loopback
from gateway.errors import ApiError
from gateway.principal import OPEN, Principal

MAX_TOKEN = 8 * 1024


@dataclass(frozen=True, slots=True)
class Authenticator:
    """`principal` takes the headers of a request, names in lower case, repeated ones joined by ", "."""

    required: bool
    keys: Mapping[bytes, tuple[bytes, Principal]] = field(repr=False)  # SHA-256 of the key -> (the same, who it is)

    @classmethod
    def of(cls, config: Auth) -> "Authenticator":
        keys = {k.digest: (k.digest, Principal(k.tenant, k.user, k.permissions, k.role)) for k in config.keys}
        return cls(bool(config.required), keys)

    def principal(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Raises ApiError 401; its text never repeats what was sent."""
        token = _token(headers.get(b"authorization"), headers.get(b"x-api-key"), strict=self.required)
        if token is not None and (found := self._find(token)) is not None:
            return found
        if not self.required:
            _check_local(headers)
            return OPEN
        if token is None:
            raise _refused("No API key given: send it as `Authorization: Bearer KEY`.", "missing_api_key")
        raise _refused("This API key is not valid here.", "invalid_api_key")

    def _find(self, token: bytes) -> Principal | None:
        # The look-up goes by the digest, so its timing tells nothing about a key; hmac has the last word all the same.
        digest = sha256(token).digest()
        known = self.keys.get(digest)
        return known[1] if known is not None and hmac.compare_digest(known[0], digest) else None


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
