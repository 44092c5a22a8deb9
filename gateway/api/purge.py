"""`POST /admin/purge`: take stored answers away, or mark them stale (`soft`), by criteria that must all hold."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.match import Match
from cache.semantic.embedder import EmbedderError
from cache.stores.base import StoreUnavailable
from gateway.api.audit import audited
from gateway.api.roles import enter, own
from gateway.config.units import parse_duration
from gateway.errors import ApiError, bad_request, shorten
from gateway.front import INCOMING
from gateway.retrieval.changes import Change
from gateway.retrieval.labels import documents_named, named
from gateway.strict_json import parse_object

if TYPE_CHECKING:
    from gateway.app import Gateway

CRITERIA = ("key", "tags", "documents", "endpoint", "model", "tenant", "user", "older_than", "like")
FLAGS = ("soft", "dry_run")
LIKE_ABOVE = 0.75
"""Cosine from which a question is like another. Below what could ever be served: better one too many."""
LIKE_SECONDS = 30.0
"""Seconds that it may take to find all that is like a text: vectors may have to be made for that."""
MAX_BODY = 16 * 1024
"""Bytes of a purge request: each is remembered for a while, and for long in the audit log."""


async def purge(gateway: "Gateway", request: Request) -> Response:
    """Gives how many answers it has met; `dry_run` only counts them."""
    principal = await enter(gateway, request)
    raw = request.scope[INCOMING].body
    if len(raw) > MAX_BODY:
        text = f"A purge request has at most {MAX_BODY} bytes: send several."
        raise ApiError(413, text, code="request_too_large")
    body = parse_object(raw)
    match = own(read_match(body, gateway.clock(), gateway.retrievers.names()), principal)
    like = _text(body, "like")
    soft, dry_run = _flag(body, "soft"), _flag(body, "dry_run")

    # Nobody's answers are in a retriever, but everybody's documents: it is the whole gateway's.
    alone = principal.is_admin and not soft and body.keys() - set(FLAGS) == {"documents"}

    async def act() -> int:
        failed = await _remake(gateway, body) if alone and not dry_run else None
        matches = [match] if like is None else [replace(match, key=key) for key in await _like(gateway, match, like)]
        try:
            purged = [await gateway.cache.purge(m, dry_run=dry_run, soft=soft) for m in matches]
        except StoreUnavailable:
            raise store_down() from None
        if not dry_run:
            gateway.semantics.purged()
        if failed is not None:
            raise failed
        return sum(purged)

    if dry_run:
        return JSONResponse({"purged": await act()})
    details = {name: value for name, value in body.items() if name != "dry_run"}
    purged = await audited(gateway, request, principal, "purge", details, act, lambda purged: {"purged": purged})
    return JSONResponse({"purged": purged})


def read_match(body: dict[str, Any], now: float, retrievers: Iterable[str]) -> Match:
    """The criteria of a purge request. A document's name may be about any of the `retrievers`. Raises ApiError 400 with
    the field's name."""
    for name in body:
        if name not in (*CRITERIA, *FLAGS):
            raise bad_request(f"`{shorten(name)}` is no criterion: {', '.join(CRITERIA)}.", param=shorten(name))
    if not any(name in body for name in CRITERIA):
        raise bad_request(f'Say what to purge: {", ".join(CRITERIA)}. Everything is {{"older_than": "0s"}}.')
    documents = _names(body, "documents")
    return Match(
        key=_key(body),
        tags=_names(body, "tags"),
        documents=documents and frozenset().union(*(named(name, retrievers) for name in documents)),
        endpoint=_text(body, "endpoint"),
        model=_text(body, "model"),
        tenant=_text(body, "tenant"),
        user=_text(body, "user"),
        older_than=_before(body, now),
    )


async def _remake(gateway: "Gateway", body: dict[str, Any]) -> ApiError | None:
    """Have the documents named here read anew by their retrievers. Gives what went wrong: what is stored has to go all
    the same."""
    names = gateway.retrievers.names()
    failed = None
    for retriever, changes in _by_retriever(_names(body, "documents") or (), names).items():
        managed = gateway.retrievers.get(retriever)
        if managed is not None:
            try:
                await gateway.changes.tell(managed, changes)
            except ApiError as error:
                failed = failed or error
    return failed


def _by_retriever(documents: Iterable[str], retrievers: Sequence[str]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for name in documents:
        for retriever, document in documents_named(name, retrievers):
            found.setdefault(retriever, []).append(Change(document))
    return found


async def _like(gateway: "Gateway", match: Match, text: str) -> list[bytes]:
    """Keys of the answers whose questions are like this text, as far as the semantic tier knows them."""
    tier = gateway.semantics.tier
    if tier is None:
        text = "`like` needs the semantic tier, and no endpoint has it on."
        raise ApiError(409, text, code="semantic_off", param="like")
    try:
        found = await tier.similar(text, above=LIKE_ABOVE, seconds=LIKE_SECONDS)
    except EmbedderError as error:
        if error.reason == "too_long":
            raise bad_request("`like` is longer than the embedding model reads.", param="like") from None
        message = f"What is like a text cannot be found now: the embedder says {error.reason!r}."
        raise ApiError(503, message, code="semantic_unavailable", headers={"retry-after": "5"}) from None
    return [key for key in found if match.key in (None, key)]


def _key(body: dict[str, Any]) -> bytes | None:
    text = _text(body, "key")
    return None if text is None else read_key(text)


def read_key(text: str) -> bytes:
    """The key of an entry. Raises ApiError 400."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise bad_request("`key` must be 64 hexadecimal digits, as /admin/entries shows them.", param="key")
    return key


def _text(body: dict[str, Any], name: str) -> str | None:
    if name not in body:
        return None
    if not isinstance(body[name], str) or not body[name]:
        raise bad_request(f"`{name}` must be a text.", param=name)
    return str(body[name])


def _names(body: dict[str, Any], name: str) -> frozenset[str] | None:
    if name not in body:
        return None
    value = body[name]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
        raise bad_request(f"`{name}` must be a list of texts.", param=name)
    return frozenset(names)


def _before(body: dict[str, Any], now: float) -> float | None:
    text = _text(body, "older_than")
    if text is None:
        return None
    try:
        # Everything is older than nothing, also what was made before the clock was set back.
        return now - seconds if (seconds := parse_duration(text)) else None
    except ValueError as error:
        raise bad_request(f"`older_than`: {error}", param="older_than") from None


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise bad_request(f"`{name}` must be true or false.", param=name)
    return value


def store_down() -> ApiError:
    return ApiError(
        503, "The store does not answer; try again.", code="store_unavailable", headers={"retry-after": "5"}
    )
