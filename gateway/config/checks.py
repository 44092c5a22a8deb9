"""What must agree across the sections of a configuration."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gateway.config.fields import is_loopback
from gateway.config.problems import Found
from gateway.retrieval.signature import secret_key, sign

if TYPE_CHECKING:
    from gateway.config.models import Config

# First segments of paths that the gateway itself answers.
RESERVED = frozenset({"v1", "admin", "metrics", "dashboard", "healthz", "readyz", "docs", "webhooks"})


def disagreements(config: "Config") -> list[Found]:
    return [
        *_server(config),
        *_access(config),
        *_store(config),
        *_routes(config),
        *_retrievers(config),
        *_endpoints(config),
    ]


def _server(config: "Config") -> Iterator[Found]:
    if config.server.admin_port is not None and config.server.admin_port == config.server.port:
        yield ("server", "admin_port"), "must differ from `server.port`"


def _access(config: "Config") -> Iterator[Found]:
    auth, loopback = config.auth, is_loopback(config.server.host)
    if not auth.required and not loopback:
        yield ("auth", "required"), "may be false only while `server.host` is a loopback address"
    if auth.required and not auth.keys and auth.jwt is None:
        why = "" if loopback else ", since `server.host` is no loopback address"
        yield ("auth", "keys"), f"needs at least one key{why}; make one with `refrain keys new`"
    first: dict[bytes, int] = {}
    for index, key in enumerate(auth.keys):
        if first.setdefault(key.digest, index) != index:
            yield ("auth", "keys", index), f"is the same key as auth.keys.{first[key.digest]}"


def _store(config: "Config") -> Iterator[Found]:
    # Starting without the store that was asked for would lose every answer and tell nobody.
    if config.store.url.startswith("redis"):
        yield ("store", "url"), "Redis is not supported yet; use sqlite:///path or memory://"
    if config.embedder.api_key is not None and config.embedder.base_url is None:
        yield ("embedder", "api_key"), "does nothing without `base_url`"


def _routes(config: "Config") -> Iterator[Found]:
    if not config.models:
        yield ("models",), 'must say which backend serves which model, such as {"gpt-*": openai, "*": local}'
    for glob, backend in config.models.items():
        if backend not in config.backends:
            yield ("models", glob), _undefined("backend", config.backends)


def _retrievers(config: "Config") -> Iterator[Found]:
    first: dict[bytes, str] = {}
    for name, retriever in config.retrievers.items():
        if retriever.webhook_secret is None:
            continue
        here = ("retrievers", name, retriever.kind, "webhook_secret")
        try:
            key = secret_key(retriever.webhook_secret.get_secret_value())
        except ValueError:
            yield here, "begins with whsec_, but what follows is no Base64"
            continue
        # By what it signs, since a secret can be written in several ways. A message does not say whom it is for.
        other = first.setdefault(sign(key, b"", b"", b""), name)
        if other != name:
            text = f"is the same secret as retrievers.{other}.webhook_secret, so each would take the other's messages"
            yield here, f"{text}; give each retriever a secret of its own"


def _endpoints(config: "Config") -> Iterator[Found]:
    for name, endpoint in config.endpoints.items():
        here = ("endpoints", name)
        if name.lower() in RESERVED:
            yield here, "this name is taken by the gateway itself"
        if endpoint.backend is not None and endpoint.backend not in config.backends:
            yield (*here, "backend"), _undefined("backend", config.backends)
        for index, backend in enumerate(endpoint.fallback):
            where = (*here, "fallback", index)
            if backend not in config.backends:
                yield where, _undefined("backend", config.backends)
            elif backend == endpoint.backend:
                yield where, "is the endpoint's own backend"
            elif backend in endpoint.fallback[:index]:
                yield where, "is named twice"
        if endpoint.retrieval is not None and endpoint.retrieval.retriever not in config.retrievers:
            yield (*here, "retrieval", "retriever"), _undefined("retriever", config.retrievers)


def _undefined(what: str, defined: Mapping[str, object]) -> str:
    return f"is not a defined {what}; defined: {', '.join(defined) or 'none'}"
