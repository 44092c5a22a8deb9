"""A request for vectors, understood: of what, in which form, and under which keys they live."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from backends.base import Call
from cache.framing import digest
from gateway.asgi import Headers
from gateway.ask import Ask, read_model, read_passed_on, scope_of
from gateway.directives import Directives, read_directives
from gateway.embeddings.elements import Element, read_input
from gateway.errors import bad_request
from gateway.normalize import normalize_text
from gateway.prefixes import party, prefix_salt, tenant_name
from gateway.principal import Principal
from gateway.snapshot import Endpoint, Snapshot
from gateway.strict_json import parse_object

PATH = "embeddings"

_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True, slots=True)
class Batch:
    """`elements` are the distinct ones, in the order in which they come first, and `keys` are theirs; `places` has for
    each input the number of its element. `single`: the input stands in no list. The key of `ask` is the whole
    request's, whatever form it wants."""

    ask: Ask
    elements: tuple[Element, ...] = field(repr=False)
    keys: tuple[bytes, ...] = field(repr=False)
    places: tuple[int, ...] = field(repr=False)
    single: bool
    base64: bool

    def call(self, wanted: Sequence[int]) -> Call:
        """The upstream request for these elements: what the client sent, but for the others and what was meant for us
        alone."""
        ask = self.ask
        sent = [self.elements[number].sent for number in wanted]
        body = {k: v for k, v in ask.body.items() if k != "cache"} | {"input": sent[0] if self.single else sent}
        tenant, user = ask.principal.tenant, ask.principal.user
        return Call(
            PATH,
            _encode(body),
            ask.headers,
            ask.query,
            prefix_salt=prefix_salt(ask.endpoint.config.prefix_scope, tenant, user),
            party=party(tenant, user),
            tenant=tenant_name(tenant),
        )


def understand(
    raw: bytes, headers: Headers, query: str, endpoint: Endpoint, principal: Principal, snapshot: Snapshot
) -> Batch:
    """Raises ApiError 400 (a field is wrong) or 404 (no backend for the model)."""
    body = parse_object(raw)
    model = read_model(body)
    elements, single = read_input(body.get("input"), normalize_text if endpoint.config.normalize == "text" else str)
    base64 = _base64(body)
    _check_dimensions(body)
    directives = read_directives(headers, body.get("cache"))
    backend = snapshot.route(endpoint, model)
    passed_on, query = read_passed_on(headers, query)
    ask = Ask(
        principal=principal,
        endpoint=endpoint,
        api="embeddings",
        model=model,
        body=body,
        raw=raw,
        directives=directives,
        form="json",
        backend=backend,
        scope=scope_of(endpoint, principal),
        key=b"",
        life=endpoint.life,
        headers=passed_on,
        query=query,
        bypass=_bypass(endpoint, directives),
    )
    context = ask.key_of(_around(body))
    distinct: dict[bytes, Element] = {}
    numbers: dict[bytes, int] = {}
    places = []
    for element in elements:
        key = element.key(context)
        distinct.setdefault(key, element)
        places.append(numbers.setdefault(key, len(numbers)))
    keys = tuple(distinct)
    whole = digest("refrain.embeddings.1", [context, *(keys[place] for place in places)])
    return Batch(replace(ask, key=whole), tuple(distinct.values()), keys, tuple(places), single, base64)


def _around(body: dict[str, Any]) -> dict[str, Any]:
    """What the vectors depend on beside their own element. The form is made from the vector, so it is not in it."""
    left_out = {"input", "encoding_format"} | ({"dimensions"} if body.get("dimensions") is None else set())
    return {k: v for k, v in body.items() if k not in left_out}


def _base64(body: dict[str, Any]) -> bool:
    form = body.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise bad_request('`encoding_format` must be "float" or "base64".', param="encoding_format")
    return bool(form == "base64")


def _check_dimensions(body: dict[str, Any]) -> None:
    dimensions = body.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise bad_request("`dimensions` must be a whole number above 0.", param="dimensions")


def _bypass(endpoint: Endpoint, directives: Directives) -> str | None:
    """Why no cache may be used, or None."""
    if endpoint.life is None:
        return "tier_off"
    if "exact" not in directives.tiers:
        return "tier_not_asked"
    return "no_store" if directives.no_store else None
