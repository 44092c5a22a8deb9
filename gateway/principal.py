"""Who asks: a principal, and one that speaks for another (delegation)."""

from dataclasses import dataclass

from gateway.config import Role
from gateway.errors import ApiError, bad_request

ON_BEHALF = b"x-refrain-on-behalf"
MAX_USER = 256


@dataclass(frozen=True, slots=True)
class Principal:
    tenant: str
    user: str
    permissions: frozenset[str] = frozenset()
    role: Role = "member"

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


OPEN = Principal("default", "anonymous", role="admin")
"""Everybody, where `auth.required` is false: loopback only, and everything is open there."""


def on_behalf(key: Principal, header: bytes) -> Principal:
    """Whom a delegating key speaks for, such as `user=u123; permissions=hr,eng`: a user of the key's own tenant, with
    those of the permissions that the key has itself, and no role. Raises ApiError 400."""
    try:
        parts = [part.partition("=") for part in header.decode("utf-8").split(";") if part.strip()]
    except UnicodeDecodeError:
        raise _malformed("is not valid UTF-8") from None
    fields: dict[str, str] = {}
    for name, _, value in parts:
        name = name.strip().lower()
        if name not in ("user", "permissions") or name in fields:
            # Also what two such headers look like when they are joined.
            raise _malformed("has a part that is neither `user=` nor `permissions=`, or one of them twice")
        fields[name] = value.strip()
    user = fields.get("user", "")
    if not user or len(user) > MAX_USER or not user.isprintable() or "," in user:
        raise _malformed(f"needs `user=`: 1 to {MAX_USER} characters, without commas")
    asked = frozenset(word for word in (w.strip() for w in fields.get("permissions", "").split(",")) if word)
    return Principal(key.tenant, user, key.permissions & asked)


def _malformed(what: str) -> ApiError:
    name = ON_BEHALF.decode()
    return bad_request(
        f"{name} {what}. Write it like: user=u123; permissions=hr,eng", param=name, code="invalid_header"
    )
