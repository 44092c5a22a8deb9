"""Who asks: a principal, and one that speaks for another (delegation)."""

from dataclasses import dataclass

from gateway.config import Role


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
