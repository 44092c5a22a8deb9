"""Tokens of an identity provider: from the text of a JWT to the principal that it speaks for.

The signature comes first, with a key of the provider's own set and an algorithm of that key's; nothing that the token
says about itself but the key's name leads anywhere. Then who made it, whom it is for, and when: by our clock.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import jwt
from jwt import PyJWK
from jwt.exceptions import InvalidAudienceError, InvalidIssuerError, InvalidSignatureError, PyJWTError
from jwt.types import Options

from gateway.config import Jwt
from gateway.errors import ApiError
from gateway.jwks import BY_CURVE, RSA, SigningKeys
from gateway.principal import MAX_USER, Principal

ALGORITHMS = frozenset(RSA).union(*BY_CURVE.values())
SKEW = 60.0
"""Seconds by which the provider's clock may differ from ours."""
LATEST = 1e12
"""Seconds; no clock will show them."""
MAX_TOKEN = 8 * 1024
MAX_PERMISSIONS = 1_000
MAX_WORD = 200
REMEMBERED = 4096
"""Tokens that need not be verified anew: a signature takes a tenth of a millisecond."""

_SHAPE = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_WORD = re.compile(r"[^\s,;]+")
# Times are for us to check, since the library reads a clock of its own, and so is the claim that names the user.
_OPTIONS: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_sub": False,
    "verify_jti": False,
    "require": ["exp", "iss", "aud"],
}


@dataclass(frozen=True, slots=True)
class Verified:
    """`until`: wall-clock seconds at which it ends; `version`: of the keys that it was verified with."""

    principal: Principal
    until: float
    version: int


def looks_like_jwt(token: bytes) -> bool:
    """Three parts of base64url: what an API key is not."""
    return _SHAPE.fullmatch(token) is not None


class Tokens:
    """`clock` is wall-clock seconds."""

    def __init__(self, config: Jwt, keys: SigningKeys, clock: Callable[[], float]) -> None:
        self.keys = keys
        self._config = config
        self._clock = clock
        self._remembered: dict[bytes, Verified] = {}

    async def verify(self, token: bytes) -> Verified:
        """Raises ApiError: 401 with what is wrong with the token, 503 where no keys are to be had."""
        if len(token) > MAX_TOKEN:
            raise _invalid(f"is longer than {MAX_TOKEN} bytes")
        digest = sha256(token).digest()
        known = self._remembered.get(digest)
        if known is not None and known.version == self.keys.version and self._clock() < known.until:
            return known
        self._remembered.pop(digest, None)
        key, version = await self._key(token)
        verified = self._read(_claims(token, key, self._config), version)
        if len(self._remembered) >= REMEMBERED:
            del self._remembered[next(iter(self._remembered))]  # the oldest
        self._remembered[digest] = verified
        return verified

    async def _key(self, token: bytes) -> tuple[PyJWK, int]:
        try:
            header = jwt.get_unverified_header(token)
        except (PyJWTError, ValueError, RecursionError):
            raise _invalid("cannot be read") from None
        alg, kid = header.get("alg"), header.get("kid")  # the library has seen to it that an id is text
        if not isinstance(alg, str) or alg not in ALGORITHMS:
            raise _invalid("is signed with an algorithm that is not accepted here")
        if "crit" in header:
            raise _invalid("asks for an extension that is not known here")
        await self.keys.look_up(kid, alg)
        version = self.keys.version  # before the key: one that grows too old after this takes the version with it
        key = self.keys.find(kid, alg)
        if key is None and not self.keys.ready:
            text = "The identity provider's keys cannot be read, so no token can be verified. Try again in a moment."
            raise ApiError(503, text, code="identity_provider_unavailable", headers={"retry-after": "5"})
        if key is None:
            raise _invalid("is signed with a key that the identity provider does not have")
        return key, version

    def _read(self, claims: Mapping[str, Any], version: int) -> Verified:
        now, config = self._clock(), self._config
        end = _instant(claims, "exp")
        if end is None:
            raise _invalid("has no `exp`")
        if end + SKEW <= now:
            raise _invalid("has expired")
        for name in ("nbf", "iat"):
            begin = _instant(claims, name)
            if begin is not None and begin - SKEW > now:
                raise _invalid("is not valid yet")
        tenant = _text(claims, config.tenant)
        # An issuer has no `#` (OpenID Connect Core, 2), so no two pairs make one user.
        user = f"{config.issuer}#{_text(claims, config.user)}"
        permissions = _one_of_each(_permissions(claims, config.permissions))
        return Verified(Principal(tenant, user, permissions), end + SKEW, version)


@lru_cache(maxsize=REMEMBERED)
def _one_of_each(permissions: frozenset[str]) -> frozenset[str]:
    """Sets that are equal are one object: many tokens, and what is remembered for them, have few of them."""
    return permissions


def _claims(token: bytes, key: PyJWK, config: Jwt) -> Mapping[str, Any]:
    """The claims of a token that is signed, and made by and for whom it should be."""
    try:
        return jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=config.audience,
            issuer=config.issuer,
            options=_OPTIONS,
        )
    except InvalidSignatureError:
        raise _invalid("has a signature that does not fit") from None
    except InvalidAudienceError:
        raise _invalid("is not for this gateway (`aud`)") from None
    except InvalidIssuerError:
        raise _invalid("is not of the identity provider that is trusted here (`iss`)") from None
    except jwt.MissingRequiredClaimError as error:
        raise _invalid(f"has no `{error.claim}`") from None
    except (PyJWTError, ValueError, TypeError, RecursionError):
        raise _invalid("cannot be read") from None


def _instant(claims: Mapping[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    # NaN is not less than anything, and no integer is too large to be compared.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LATEST:
        raise _invalid(f"has an `{name}` that is no time")
    return float(value)


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_USER or not value.isprintable():
        raise _invalid(f"has no text of 1 to {MAX_USER} printable characters in its claim `{name}`")
    return value


def _permissions(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    value = claims.get(name, [])
    words = [word for word in value.split(" ") if word] if isinstance(value, str) else value
    # To leave out what cannot be read would be safe, but nobody would know why something is missing.
    if not isinstance(words, list) or len(words) > MAX_PERMISSIONS or not all(map(_is_word, words)):
        raise _invalid(f"has a claim `{name}` that is neither a list of words nor words separated by blanks")
    return frozenset(words)


def _is_word(value: object) -> bool:
    return (
        isinstance(value, str) and len(value) <= MAX_WORD and value.isprintable() and _WORD.fullmatch(value) is not None
    )


def _invalid(what: str) -> ApiError:
    headers = {"www-authenticate": 'Bearer error="invalid_token"', "x-should-retry": "false"}
    return ApiError(401, f"The token {what}.", code="invalid_token", headers=headers)
