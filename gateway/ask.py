"""A request understood: who asks, of which endpoint, what exactly, and under which key its answer lives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from backends.base import Backend, Call, Priority
from cache.freshness import Life
from cache.scope import Scope
from gateway.asgi import Headers
from gateway.cacheability import request_reason
from gateway.directives import Directives, read_directives
from gateway.errors import bad_request
from gateway.normalize import Api, canonical, request_key
from gateway.prefixes import party, prefix_salt, tenant_name
from gateway.principal import Principal
from gateway.snapshot import Endpoint, Snapshot
from gateway.strict_json import parse_object
from gateway.volatile import about_now

if TYPE_CHECKING:
    from gateway.retrieval.grounds import Grounds

PATHS: dict[Api, str] = {"chat": "chat/completions", "completions": "completions"}
PASSED_ON = (b"anthropic-version", b"anthropic-beta", b"openai-beta")
QUERY_PASSED_ON = "api-version"
_QUERY = re.compile(r"[\w.~%+:=&-]*", re.ASCII)

Form = Literal["json", "sse", "sse+usage"]

_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True, slots=True)
class Ask:
    """`life` is how long its answer lives, None where none is kept; `bypass` is why no cache may be used (None: they
    may); `form` is the wire form that the client asked for; `grounds` are the documents that the answer rests on,
    None where it rests on none. `key` is empty as long as that is not known."""

    principal: Principal
    endpoint: Endpoint
    api: Api
    model: str
    body: dict[str, Any] = field(repr=False)
    raw: bytes = field(repr=False)
    directives: Directives
    form: Form
    backend: Backend
    scope: Scope
    key: bytes
    life: Life | None
    headers: tuple[tuple[str, str], ...]
    query: str
    bypass: str | None
    grounds: "Grounds | None" = None

    @property
    def plain(self) -> bool:
        """Nothing in the body steers the cache, so the same bytes always mean the same."""
        return "cache" not in self.body

    def key_of(self, body: dict[str, Any]) -> bytes:
        """The key of the same request with this body."""
        return self._key_on(body, self.grounds)

    def resting_on(self, grounds: "Grounds | None") -> "Ask":
        """The same on these grounds, with the key that follows from them."""
        return replace(self, grounds=grounds, key=self._key_on(self.body, grounds))

    def on(self, backend: Backend) -> "Ask":
        """The same for another backend, with the key that it has there."""
        there = replace(self, backend=backend)
        return replace(there, key=there.key_of(self.body))

    def _key_on(self, body: dict[str, Any], grounds: "Grounds | None") -> bytes:
        asked = (self.scope, self.endpoint, self.api, self.model, self.backend, self.headers, self.query, body)
        return _key(*asked, None if grounds is None else grounds.digests)

    def call(self, *, stream: bool, body: dict[str, Any] | None = None, priority: Priority = "interactive") -> Call:
        """The upstream request: `body`, or what the client sent, but for who streams and what is meant for us alone."""
        tenant, user = self.principal.tenant, self.principal.user
        return Call(
            PATHS[self.api],
            self._sent(stream, self.body if body is None else body),
            self.headers,
            self.query,
            prefix_salt=prefix_salt(self.endpoint.config.prefix_scope, tenant, user),
            party=party(tenant, user),
            tenant=tenant_name(tenant),
            priority=priority,
        )

    def _sent(self, stream: bool, body: dict[str, Any]) -> bytes:
        """The bytes that go upstream."""
        streaming = {"stream", "stream_options"}
        if not stream and body is self.body and "cache" not in body and streaming.isdisjoint(body):
            return self.raw
        options = body.get("stream_options") or {}
        body = {k: v for k, v in body.items() if k != "cache" and k not in streaming}
        if stream:
            body |= {"stream": True, "stream_options": {**options, "include_usage": True}}
        return _encode(body)


def understand(
    api: Api, raw: bytes, headers: Headers, query: str, endpoint: Endpoint, principal: Principal, snapshot: Snapshot
) -> Ask:
    """The request, on an endpoint with documents yet without a key: which ones were found is a part of it. Raises
    ApiError 400 (a field is wrong) or 404 (no backend for the model)."""
    body = parse_object(raw)
    model = read_model(body)
    _check(api, body)
    directives = read_directives(headers, body.get("cache"))
    backend = snapshot.route(endpoint, model)
    passed_on, query = read_passed_on(headers, query)
    scope = scope_of(endpoint, principal)
    known = endpoint.config.retrieval is None
    key = _key(scope, endpoint, api, model, backend, passed_on, query, body) if known else b""
    return Ask(
        principal=principal,
        endpoint=endpoint,
        api=api,
        model=model,
        body=body,
        raw=raw,
        directives=directives,
        form=_form(body),
        backend=backend,
        scope=scope,
        key=key,
        life=_life(endpoint, api, body),
        headers=passed_on,
        query=query,
        bypass=_bypass(endpoint, directives, body),
    )


def read_passed_on(headers: Headers, query: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Of a request's headers and query those that go upstream. Raises ApiError 400."""
    passed_on = tuple((n.decode(), _readable(n, headers[n])) for n in PASSED_ON if n in headers)
    query = "&".join(p for p in query.split("&") if p.partition("=")[0] == QUERY_PASSED_ON)
    if not _QUERY.fullmatch(query):
        raise bad_request(f"`{QUERY_PASSED_ON}` holds characters that no version has.", param=QUERY_PASSED_ON)
    return passed_on, query


def scope_of(endpoint: Endpoint, principal: Principal) -> Scope:
    """Who shares what this principal is answered on this endpoint."""
    share = endpoint.config.share
    return Scope.of(share, tenant=principal.tenant, user=principal.user, permissions=principal.permissions)


def _key(
    scope: Scope,
    endpoint: Endpoint,
    api: Api,
    model: str,
    backend: Backend,
    headers: tuple[tuple[str, str], ...],
    query: str,
    body: dict[str, Any],
    chunks: Sequence[bytes] | None = None,
) -> bytes:
    return request_key(
        scope=scope,
        endpoint=endpoint.name,
        settings=endpoint.settings,
        api=api,
        model=model,
        backend=backend.name,
        revision=backend.revision,
        headers=[*headers, ("?", query)] if query else headers,
        body=canonical(api, body, text=endpoint.config.normalize),
        chunks=chunks,
    )


def _readable(name: bytes, value: bytes) -> str:
    text = value.decode("latin-1")
    if not (text.isascii() and text.isprintable()):
        raise bad_request(f"{name.decode()} holds characters other than printable ASCII.", param=name.decode())
    return text


def _life(endpoint: Endpoint, api: Api, body: dict[str, Any]) -> Life | None:
    if endpoint.life == endpoint.short_life or not about_now(api, body):
        return endpoint.life
    return endpoint.short_life


def _bypass(endpoint: Endpoint, directives: Directives, body: dict[str, Any]) -> str | None:
    if endpoint.life is None:
        return "tier_off"
    if directives.tiers.isdisjoint(_keeping(endpoint)):
        return "tier_not_asked"
    if directives.no_store:
        return "no_store"
    return request_reason(body, sampled=endpoint.config.sampled)


def _keeping(endpoint: Endpoint) -> tuple[str, ...]:
    """The tiers of this endpoint that reuse whole answers."""
    return ("exact",) if endpoint.config.cache.semantic is None else ("exact", "semantic")


def read_model(body: dict[str, Any]) -> str:
    """Raises ApiError 400."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise bad_request("`model` is required: the name of a model.", param="model", code="missing_model")
    if len(model) > 256:
        raise bad_request("`model` is longer than 256 characters.", param="model")
    return model


def _check(api: Api, body: dict[str, Any]) -> None:
    """Only what the gateway itself relies on; the rest is the backend's to judge."""
    if api == "chat":
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise bad_request("`messages` is required: a list of at least one message.", param="messages")
        for i, message in enumerate(messages):
            if not isinstance(message, dict):
                raise bad_request(f"`messages[{i}]` must be an object.", param=f"messages[{i}]")
    elif "prompt" not in body:
        raise bad_request("`prompt` is required.", param="prompt")
    for name, kind, what in (("stream", bool, "true or false"), ("stream_options", dict, "an object")):
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise bad_request(f"`{name}` must be {what}.", param=name)
    if body.get("stream_options") is not None and not body.get("stream"):
        raise bad_request("`stream_options` is only allowed with `stream: true`.", param="stream_options")
    n = body.get("n")
    if n is not None and (type(n) is not int or not 1 <= n <= 128):
        raise bad_request("`n` must be a whole number from 1 to 128.", param="n")


def _form(body: dict[str, Any]) -> Form:
    if not body.get("stream"):
        return "json"
    usage = (body.get("stream_options") or {}).get("include_usage")
    if usage is not None and not isinstance(usage, bool):
        message = "`stream_options.include_usage` must be true or false."
        raise bad_request(message, param="stream_options.include_usage")
    return "sse+usage" if usage else "sse"
