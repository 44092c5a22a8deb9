"""Who may ask: API keys and tokens, and whom they stand for."""

from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gateway.config.fields import HttpUrl, RateLimit, Secret, Section, Text, UsdRate, Words
from gateway.config.keys import digest_key, parse_hash

Role = Literal["member", "tenant_admin", "admin"]


def _hash(value: str) -> str:
    parse_hash(value)
    return value


class Limits(Section):
    requests: RateLimit | None = None
    tokens: RateLimit | None = None
    usd: UsdRate | None = None


class ApiKey(Section):
    """One key. It is known by the `hash` of its text, or by the text itself (`key`, for `${ENV}`)."""

    hash: Annotated[str, AfterValidator(_hash)] | None = None
    key: Secret | None = None
    # Tenant and user have no defaults: two keys that shared one by accident would share answers.
    tenant: Text
    user: Text
    permissions: Words = frozenset()
    role: Role = "member"
    delegate: bool = False
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _hash_or_key(self) -> "ApiKey":
        if (self.hash is None) == (self.key is None):
            raise ValueError("needs either `hash` or `key`")
        return self

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the key's text, 32 bytes."""
        if self.key is not None:
            return digest_key(self.key.get_secret_value())
        assert self.hash is not None  # by _hash_or_key
        return parse_hash(self.hash)


class Jwt(Section):
    """Tokens of an identity provider. The last three name the claims that hold tenant, user and permissions."""

    jwks_url: HttpUrl = Field(repr=False)
    issuer: Text
    audience: Text
    tenant: Text
    user: Text = "sub"
    permissions: Text = "permissions"


class Auth(Section):
    required: bool = True
    keys: tuple[ApiKey, ...] = ()
    jwt: Jwt | None = None
