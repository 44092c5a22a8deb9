"""Scopes: the group of principals that may share an answer.

A scope is a partition, not a filter: its digest is part of every key, so a look-up in one scope cannot see
an entry of another, whatever the look-up does.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from cache.framing import digest

Share = Literal["user", "permissions", "tenant", "public"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Who may share. Fields that do not matter for `share` are empty, so equal groups compare equal."""

    share: Share
    tenant: str = ""
    user: str = ""
    permissions: tuple[str, ...] = ()

    @classmethod
    def of(cls, share: Share, *, tenant: str, user: str, permissions: frozenset[str]) -> "Scope":
        """The scope of one principal under an endpoint's `share` policy."""
        match share:
            case "user":
                # The permission set belongs in: what a user was allowed to see yesterday is not today's answer.
                return cls(share, tenant, user, tuple(sorted(permissions)))
            case "permissions":
                return cls(share, tenant, "", tuple(sorted(permissions)))
            case "tenant":
                return cls(share, tenant)
            case "public":
                return cls(share)

    def digest(self) -> bytes:
        """32 bytes that name this partition."""
        return _digest(self)


@lru_cache(maxsize=8192)
def _digest(scope: Scope) -> bytes:
    names = (scope.share, scope.tenant, scope.user, *scope.permissions)
    return digest("refrain.scope.1", [name.encode() for name in names])
