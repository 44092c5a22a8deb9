"""Leaks to plant in the semantic tier. Each takes away one of the things that keep answers from other questions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import cache.semantic.tier
import gateway.question
import gateway.semantics
from cache.scope import Scope
from cache.semantic.verifier import Verdict
from gateway.semantics import Semantics
from tests.scopes.leaky import SCOPE, Always, Leaky, Plant

NOBODY = Scope.of("tenant", tenant="nobody", user="", permissions=frozenset())
REQUEST = frozenset({"another request"})

CONTEXT = gateway.question._context
QUERY = cache.semantic.tier.Query
REMEMBER, REMEMBERED = Semantics.remember, Semantics.remembered


def _context_without(change: Callable[[Any], dict[str, Any]], rules: frozenset[str], *more: Plant) -> Leaky:
    def leaky(ask: Any) -> bytes:
        return CONTEXT(replace(ask, **change(ask)))

    return Leaky(rules, ((gateway.question, "_context", leaky), *more))


def _for_any_scope(key: bytes, scope: bytes, context: bytes, text: str) -> Any:
    """The tier looks at the scope once more before it serves an answer."""
    return QUERY(key, Always(), context, text)  # type: ignore[arg-type]


def _only_last_turn(ask: Any) -> dict[str, Any]:
    return {"body": {**ask.body, "messages": ask.body["messages"][-1:]}}


def _only_messages(ask: Any) -> dict[str, Any]:
    return {"body": {"model": ask.model, "messages": ask.body["messages"]}}


def _any_model(ask: Any) -> dict[str, Any]:
    return {"model": "", "body": {**ask.body, "model": ""}}


def _any_endpoint(ask: Any) -> dict[str, Any]:
    return {"endpoint": replace(ask.endpoint, name="")}


def _any_scope(ask: Any) -> dict[str, Any]:
    return {"scope": NOBODY}


def _unscoped(ask: Any) -> Any:
    """With a key that says nothing of the scope."""
    nobodys = replace(ask, scope=NOBODY)
    return replace(ask, key=nobodys.key_of(ask.body))


def _remember_unscoped(self: Semantics, ask: Any, reuse: Any, generation: int) -> None:
    REMEMBER(self, _unscoped(ask), reuse, generation)


def _remembered_unscoped(self: Semantics, ask: Any, generation: int) -> Any:
    return REMEMBERED(self, _unscoped(ask), generation)


def _remember_apart(self: Any, ask: Any, reuse: Any, generation: int) -> None:
    """Where no purge looks."""
    vars(self).setdefault("apart", {})[ask.key, generation] = reuse


def _remembered_apart(self: Any, ask: Any, generation: int) -> Any:
    kept = vars(self).get("apart", {}).get((ask.key, generation))
    wanted = ask.endpoint.config.cache.semantic is not None and "semantic" in ask.directives.tiers
    if kept is None or not wanted or (ask.key, kept.slot.entry.key) in self._wrong:
        return None
    return self._reuse(kept.slot, kept.similarity, ask)


def _nothing_wrong(*_: object) -> frozenset[bytes]:
    return frozenset()


def _reported_to_the_tier(self: Any, asked: bytes, served: bytes) -> list[tuple[bytes, bytes]]:
    """What is remembered of that question stays."""
    return [(asked, served)] if self.tier is None else self.tier.report(asked, served)


def _remembered_unasked(self: Any, ask: Any, generation: int) -> Any:
    """Whatever was reported."""
    if self.tier is None:
        return None
    with patch.object(self.tier, "is_wrong", lambda *_: False):
        return REMEMBERED(self, ask, generation)


def _nearest(*_: object, **__: object) -> Verdict:
    """Whatever is nearest will do."""
    return Verdict(0, 1.0, "")


def _life_of_its_own(ask: Any) -> Any:
    """As long as it serves its own question."""
    return ask.life


LEAKS = {
    "context-without-scope": _context_without(_any_scope, SCOPE, (gateway.question, "Query", _for_any_scope)),
    "context-without-endpoint": _context_without(_any_endpoint, frozenset({"another endpoint"})),
    "context-without-model": _context_without(_any_model, REQUEST),
    "context-without-parameters": _context_without(_only_messages, REQUEST),
    "context-without-earlier-turns": _context_without(_only_last_turn, REQUEST),
    "meaning-unverified": Leaky(REQUEST, ((cache.semantic.tier, "verify", _nearest),)),
    "meaning-ttl-ignored": Leaky(frozenset({"past its life"}), ((gateway.semantics, "life_of", _life_of_its_own),)),
    "meaning-remembered-without-scope": Leaky(
        SCOPE | {"reported wrong"},
        ((Semantics, "remember", _remember_unscoped), (Semantics, "remembered", _remembered_unscoped)),
    ),
    "meaning-remembered-through-purge": Leaky(
        frozenset({"purged"}), ((Semantics, "remember", _remember_apart), (Semantics, "remembered", _remembered_apart))
    ),
    "wrong-pairs-ignored": Leaky(
        frozenset({"reported wrong"}), ((cache.semantic.tier.SemanticTier, "_wrong_for", _nothing_wrong),)
    ),
    "wrong-pairs-remembered": Leaky(
        frozenset({"reported wrong"}),
        ((Semantics, "report", _reported_to_the_tier), (Semantics, "remembered", _remembered_unasked)),
    ),
}
