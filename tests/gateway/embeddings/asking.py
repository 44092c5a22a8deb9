"""Requests for embeddings, understood under a real snapshot; nothing is sent anywhere."""

import json
import time
from typing import Any

from gateway.config.load import parse_config
from gateway.embeddings.batch import Batch, understand
from gateway.fleet import build
from gateway.identity import Identity
from gateway.principal import Principal
from gateway.snapshot import Snapshot

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
  careful: {sampled: bypass}
  tolerant: {normalize: text}
  nothing: {cache: {exact: off}}
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


def batch(
    asked: Any = "Hello?",
    *,
    endpoint: str = "default",
    principal: Principal = ALICE,
    headers: dict[str, str] | None = None,
    query: str = "",
    **more: Any,
) -> Batch:
    raw = json.dumps({"model": "m", "input": asked, **more}).encode()
    sent = {name.encode(): value.encode() for name, value in (headers or {}).items()}
    return understand(raw, sent, query, SNAPSHOT.endpoint(endpoint), principal, SNAPSHOT)


def key(asked: Any = "Hello?", **more: Any) -> str:
    """Of a request with one distinct element."""
    (found,) = batch(asked, **more).keys
    return found.hex()
