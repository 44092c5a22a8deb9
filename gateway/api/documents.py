"""`POST /admin/documents`: a document is new, has changed, or is to be found no more."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.stores.base import StoreUnavailable
from gateway.api.audit import audited
from gateway.api.purge import store_down
from gateway.api.roles import enter, forbidden
from gateway.errors import ApiError, bad_request, shorten
from gateway.front import INCOMING
from gateway.principal import Principal
from gateway.retrieval.changes import ACTION, Change
from gateway.retrieval.managed import Managed
from gateway.strict_json import parse_object

if TYPE_CHECKING:
    from gateway.app import Gateway

FIELDS = ("id", "version", "deleted")
MAX_BODY = 32 * 1024
"""Bytes of a request: room for the longest id and version, however they are escaped."""
MAX_ID = 4096
MAX_VERSION = 1024
"""Characters."""


async def documents(gateway: "Gateway", request: Request) -> Response:
    """Gives how much was stored of it. A `tenant_admin` speaks for retrievers that serve its own tenant alone."""
    principal = await enter(gateway, request)
    raw = request.scope[INCOMING].body
    if len(raw) > MAX_BODY:
        raise ApiError(413, f"A document's change has at most {MAX_BODY} bytes.", code="request_too_large")
    body = parse_object(raw)
    name = body.pop("retriever", None)
    if not isinstance(name, str) or not name:
        raise bad_request("`retriever` must be the name of a retriever.", param="retriever")
    change = read_change(body)
    managed = _find(gateway, principal, name)
    details = {"retriever": name, "documents": [change.shown()]}

    async def act() -> int:
        return await announce(gateway, managed, [change])

    purged = await audited(gateway, request, principal, ACTION, details, act, lambda purged: {"purged": purged})
    return JSONResponse({"purged": purged})


async def announce(gateway: "Gateway", managed: Managed, changes: Sequence[Change]) -> int:
    """As Changes.announce. Raises ApiError."""
    try:
        return await gateway.changes.announce(managed, changes)
    except StoreUnavailable:
        raise store_down() from None


def read_change(body: Mapping[str, Any], path: str = "") -> Change:
    """One change as a client writes it; `path` is where it stands in the body. Raises ApiError 400 with the field."""
    for name in body:
        if name not in FIELDS:
            param = path + shorten(name)
            raise bad_request(f"`{param}` is no field of a document's change: {', '.join(FIELDS)}.", param=param)
    document, version, deleted = body.get("id"), body.get("version"), body.get("deleted", False)
    if not isinstance(document, str) or not 1 <= len(document) <= MAX_ID:
        text = f"`{path}id` must be a document's id: a text of at most {MAX_ID} characters."
        raise bad_request(text, param=f"{path}id")
    if version is not None and (not isinstance(version, str) or not 1 <= len(version) <= MAX_VERSION):
        text = f"`{path}version` must be a text of at most {MAX_VERSION} characters."
        raise bad_request(text, param=f"{path}version")
    if not isinstance(deleted, bool):
        raise bad_request(f"`{path}deleted` must be true or false.", param=f"{path}deleted")
    if deleted == (version is not None):
        text = f"Say one of `{path}version` (the document is new or has changed) and `{path}deleted`: true."
        raise bad_request(text, param=f"{path}deleted" if deleted else f"{path}version")
    return Change(document, version, deleted)


def _find(gateway: "Gateway", principal: Principal, name: str) -> Managed:
    """Raises ApiError 404, also for another tenant's: whether there is one is not theirs to know; and 403 for one that
    others use, too."""
    managed = gateway.snapshot().retrievers.get(name)
    tenants = managed.config.tenants if managed is not None else frozenset()
    foreign = not principal.is_admin and bool(tenants) and principal.tenant not in tenants
    if managed is None or foreign:
        text = f"There is no retriever {shorten(name)!r} here."
        raise ApiError(404, text, code="retriever_not_found", param="retriever")
    if not principal.is_admin and tenants != {principal.tenant}:
        raise forbidden()
    return managed
