"""Requests, and what is read of them as questions. The snapshot is a real one; nothing is sent anywhere."""

import json
import time
from typing import Any

from cache.semantic.tier import Query
from gateway.ask import Ask, understand
from gateway.config.load import parse_config
from gateway.fleet import build
from gateway.identity import Identity
from gateway.principal import Principal
from gateway.question import read_question
from gateway.snapshot import Snapshot

Json = dict[str, Any]
CONFIG = parse_config(
    """
auth: {required: false}
store: {url: "memory://"}
backends:
  one: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
  two: {kind: remote, base_url: "http://127.0.0.1:8/v1"}
models: {"*": one}
endpoints:
  default: {}
  other: {}
  backed: {backend: two}
  personal: {share: user}
  permitted: {share: permissions}
  tolerant: {normalize: text}
  without: {cache: {semantic: off}}
  nothing: {cache: {exact: off}}
  brief: {cache: {semantic: {max_words: 4}}}
""",
    {},
)
SNAPSHOT = Snapshot.of(
    CONFIG,
    1,
    {name: build(name, CONFIG.backends[name]) for name in ("one", "two")},
    Identity(time.time).authenticator(CONFIG.auth),
)
ALICE = Principal("acme", "alice", frozenset({"hr"}))
TURNS = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Hello!"},
]
WORDS = CONFIG.endpoints["default"].cache.semantic.max_words  # type: ignore[union-attr]


def ask(
    content: Any = "How are you?",
    *,
    api: Any = "chat",
    endpoint: str = "default",
    principal: Principal = ALICE,
    headers: dict[str, str] | None = None,
    query: str = "",
    last: Json | None = None,
    before: list[Any] = TURNS,
    **fields: Any,
) -> Ask:
    message = {"role": "user", "content": content, **(last or {})}
    body = {"model": "gpt-x", "messages": [*before, message], **fields}
    head = {name.encode(): value.encode() for name, value in (headers or {}).items()}
    return understand(api, json.dumps(body).encode(), head, query, SNAPSHOT.endpoint(endpoint), principal, SNAPSHOT)


def read(*args: Any, **kwargs: Any) -> Query:
    query = read_question(ask(*args, **kwargs))
    assert isinstance(query, Query), query
    return query


def reason(*args: Any, **kwargs: Any) -> str | Query:
    return read_question(ask(*args, **kwargs))
