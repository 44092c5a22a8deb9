"""Leaks to plant. Each takes away one of the things that keep answers apart; those of the semantic tier stand in
`leaks_like`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from math import inf
from typing import Any
from unittest.mock import patch

import cache.exact
import cache.scope
import cache.stores.codec
import cache.stores.memory
import gateway.ask
import gateway.auth
import gateway.flights
import gateway.front
from gateway.normalize import canonical, request_key
from gateway.principal import on_behalf
from tests.scopes import leaks_like
from tests.scopes.leaky import SCOPE, Always, Leaky, always, never
from tests.scopes.world import PERMISSIONS


def _scope_without(**nothing: Any) -> Leaky:
    def leaky(self: cache.scope.Scope) -> bytes:
        return cache.scope._digest(replace(self, **nothing))

    return Leaky(SCOPE, ((cache.scope.Scope, "digest", leaky),))


def _run_together(self: cache.scope.Scope) -> bytes:
    text = "".join((self.share, self.tenant, self.user, *self.permissions))
    return blake2b(text.encode(), digest_size=32).digest()


def _key_without_endpoint(**fields: Any) -> bytes:
    return KEY(**{**fields, "endpoint": ""})


def _alias_of_anybody(headers: Any, path: str, query: bytes, body: bytes) -> bytes:
    return ALIAS({k: v for k, v in headers.items() if k not in (b"authorization", b"x-api-key")}, path, query, body)


def _alias_of_the_key(headers: Any, path: str, query: bytes, body: bytes) -> bytes:
    return ALIAS({k: v for k, v in headers.items() if k != b"x-refrain-on-behalf"}, path, query, body)


def _on_behalf_unbounded(key: Any, header: bytes) -> Any:
    """With all permissions asked for, whether the key has them or not."""
    every = frozenset(" ".join(PERMISSIONS).split())
    return BEHALF(replace(key, permissions=every), header)


def _joined_by_body(visit: Any, ask: Any) -> Any:
    return (canonical(ask.api, ask.body), None, (), 0)


def _replay(**changes: Any) -> Callable[..., None]:
    """A Replay that believes something else."""

    def leaky(self: Any, **fields: Any) -> None:
        REPLAY(self, **{**fields, **changes})

    return leaky


def _any_alias(self: Any, alias_digest: bytes, now: float | None = None) -> Any:
    return self._aliases.get(alias_digest)


def _release_without_aliases(self: Any, slot: Any) -> None:
    self._bytes -= slot.size


def _decoded_for_any_key(raw: bytes, *, key: bytes, max_body: int) -> Any:
    record = cache.stores.codec._decoder.decode(raw[cache.stores.codec._HEADER_SIZE :])
    return replace(DECODE(raw, key=record.key, max_body=max_body), key=key)


KEY = request_key
BEHALF = on_behalf
ALIAS = gateway.front.alias_of
REPLAY = gateway.front.Replay.__init__
DECODE = cache.stores.codec.decode
MEMORY = cache.stores.memory.MemoryStore

LEAKS = {
    "scope-without-tenant": _scope_without(tenant=""),
    "scope-without-user": _scope_without(user=""),
    "scope-without-permissions": _scope_without(permissions=()),
    "scope-run-together": Leaky(SCOPE, ((cache.scope.Scope, "digest", _run_together),)),
    "key-without-endpoint": Leaky(
        frozenset({"another endpoint"}), ((gateway.ask, "request_key", _key_without_endpoint),)
    ),
    "alias-without-credentials": Leaky(SCOPE | {"status"}, ((gateway.front, "alias_of", _alias_of_anybody),)),
    "alias-without-delegation": Leaky(SCOPE | {"status"}, ((gateway.front, "alias_of", _alias_of_the_key),)),
    "alias-of-old-settings": Leaky(
        SCOPE | {"status", "past its life", "reuse not wanted"},
        ((gateway.front.Replay, "__init__", _replay(generation=Always())),),
    ),
    "alias-of-revoked-key": Leaky(frozenset({"status"}), ((gateway.auth.Key, "good", always),)),
    "alias-without-end": Leaky(
        frozenset({"past its life"}),
        (
            (gateway.front.Replay, "__init__", _replay(until=inf, expires=2e9, deadline=inf)),
            (MEMORY, "by_alias", _any_alias),
        ),
    ),
    "delegation-with-any-permissions": Leaky(SCOPE | {"status"}, ((gateway.auth, "on_behalf", _on_behalf_unbounded),)),
    "joined-by-body": Leaky(
        SCOPE | {"another endpoint", "joined", "status"}, ((gateway.flights, "_ident", _joined_by_body),)
    ),
    "purge-forgets-aliases": Leaky(
        frozenset({"purged", "past its life"}),
        ((MEMORY, "_release", _release_without_aliases), (MEMORY, "by_alias", _any_alias)),
    ),
    "purge-loses-to-flight": Leaky(frozenset({"purged"}), ((cache.exact.ExactCache, "purged", never),)),
    "store-unchecked": Leaky(
        SCOPE | {"another endpoint", "another request", "entries", "purge"},
        ((cache.stores.codec, "decode", _decoded_for_any_key),),
        stored=True,
    ),
    **leaks_like.LEAKS,
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With this leak, for as long as it lasts; None: without any."""
    patches = [patch.object(*plant) for plant in LEAKS[name].plants] if name is not None else []
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
