"""What a local engine is told of who asks: opaque names, so that it knows no tenant and no user.

The salt names the partition of its prefix cache: a prompt never starts from keys and values that were computed in
another one. The party is who shares the engine fairly with the others; at a gate tenants take turns before parties.
"""

from typing import Literal

from cache.framing import digest

PrefixScope = Literal["user", "tenant", "public"]

DIGITS = 32
"""Hexadecimal digits of a name: 128 bits of a BLAKE2b digest."""


def prefix_salt(scope: PrefixScope, tenant: str, user: str) -> str:
    """The partition of this principal's prompts, where the endpoint's `prefix_scope` is `scope`."""
    match scope:
        case "user":
            return _name("refrain.prefix.1", scope, tenant, user)
        case "tenant":
            return _name("refrain.prefix.1", scope, tenant)
        case "public":
            return _name("refrain.prefix.1", scope)


def party(tenant: str, user: str) -> str:
    """One for each user of each tenant."""
    return _name("refrain.party.1", tenant, user)


def tenant_name(tenant: str) -> str:
    """One for each tenant."""
    return _name("refrain.tenant.1", tenant)


def _name(domain: str, *fields: str) -> str:
    return digest(domain, [field.encode() for field in fields]).hex()[:DIGITS]
