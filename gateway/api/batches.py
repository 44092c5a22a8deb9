"""`/v1/batches`: files of requests that nobody waits for. Everybody sees their own."""

import secrets
from typing import TYPE_CHECKING, Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.owned import Paging, as_json, enter, lane_of, not_found, read_page
from gateway.asgi import read_headers
from gateway.ask import read_passed_on
from gateway.batch.inside import owner_of, steering
from gateway.batch.records import WINDOW, BatchRecord, Url
from gateway.batch.shown import shown_batch
from gateway.batch.store import BatchStore
from gateway.batch.stored import translated
from gateway.directives import read_directives
from gateway.errors import ApiError, bad_request, shorten
from gateway.front import INCOMING
from gateway.strict_json import parse_object

if TYPE_CHECKING:
    from gateway.app import Gateway

WORD = "24h"
URLS: tuple[Url, ...] = get_args(Url)
FIELDS = frozenset({"input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"})
MAX_BODY = 128 * 1024
"""Bytes: the longest metadata are 108 KiB where each character is written as two escapes."""
SHORTEST, LONGEST = 3_600, 2_592_000
"""Seconds that output files may be kept."""
PAGING = Paging(most=100, usual=20)


async def create(gateway: "Gateway", request: Request) -> Response:
    """The batch is on the disk when this returns."""
    entrant = await enter(gateway, request)
    lane = lane_of(gateway)
    raw = request.scope[INCOMING].body
    if len(raw) > MAX_BODY:
        raise ApiError(413, f"The request's body is over {MAX_BODY} bytes.", code="request_too_large")
    asked = read_batch(parse_object(raw))
    headers = read_headers(request.scope)
    read_directives(headers, None)  # what is wrong with them is told now, and not by each line
    _, query = read_passed_on(headers, request.scope["query_string"].decode("latin-1"))
    who = (entrant.principal.tenant, entrant.principal.user)
    now = gateway.clock()
    batch = BatchRecord(
        id=f"batch_{secrets.token_hex(12)}",
        owner=owner_of(entrant),
        endpoint=request.path_params.get("endpoint", "default"),
        headers=steering(headers),
        query=query,
        created=now,
        deadline=now + WINDOW,
        **asked,
    )
    with translated():
        if await lane.store.file(who, batch.input_file) is None:
            raise not_found("file", batch.input_file, "input_file_id")
        await lane.create(batch)
    return as_json(shown_batch(batch))


async def list_batches(gateway: "Gateway", request: Request) -> Response:
    entrant = await enter(gateway, request)
    page = read_page(request, PAGING)
    if not page.newest_first:
        raise bad_request("`order` is not for batches: the newest come first.", param="order")
    who = (entrant.principal.tenant, entrant.principal.user)
    store = lane_of(gateway).store
    with translated():
        found = await store.batches(who, after=page.after, limit=page.limit + 1)
        faults = await store.first_faults([batch.id for batch in found or () if batch.state == "failed"])
    shown = None if found is None else [shown_batch(batch, faults.get(batch.id, b"")) for batch in found]
    return as_json(page.shown(shown))


async def get_batch(gateway: "Gateway", request: Request) -> Response:
    entrant = await enter(gateway, request)
    id = request.path_params["id"]
    store = lane_of(gateway).store
    with translated():
        batch = await store.batch((entrant.principal.tenant, entrant.principal.user), id)
        if batch is None:
            raise not_found("batch", id)
        return await _whole(store, batch)


async def cancel(gateway: "Gateway", request: Request) -> Response:
    """What is in flight is given up; what is done stays done. One that has ended stays as it is."""
    entrant = await enter(gateway, request)
    lane, id = lane_of(gateway), request.path_params["id"]
    with translated():
        batch = await lane.store.cancel((entrant.principal.tenant, entrant.principal.user), id, at=gateway.clock())
    if batch is None:
        raise not_found("batch", id)
    lane.cancel(id)
    with translated():
        return await _whole(lane.store, batch)


async def _whole(store: BatchStore, batch: BatchRecord) -> Response:
    """With all that is wrong with its file."""
    return as_json(shown_batch(batch, await store.faults(batch.id) if batch.state == "failed" else b""))


def read_batch(body: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, as BatchRecord's fields. Raises ApiError 400 with the field."""
    for name in body:
        if name not in FIELDS:
            raise bad_request(f"`{shorten(name)}` is no field of a batch.", param=shorten(name))
    file, url, window = (body.get(name) for name in ("input_file_id", "endpoint", "completion_window"))
    if not isinstance(file, str) or not file:
        raise bad_request("`input_file_id` is required: the id of an uploaded file.", param="input_file_id")
    if url not in URLS:
        raise bad_request(f"`endpoint` must be one of {', '.join(URLS)}.", param="endpoint")
    if window != WORD:
        raise bad_request(f"`completion_window` must be {WORD!r}.", param="completion_window")
    metadata = body.get("metadata")
    metadata = {} if metadata is None else metadata
    _check_metadata(metadata)
    return {
        "input_file": file,
        "url": url,
        "metadata": metadata,
        "output_lives": _read_lives(body.get("output_expires_after")),
    }


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or len(metadata) > 16:
        raise bad_request("`metadata` must be an object of at most 16 pairs.", param="metadata")
    for name, value in metadata.items():
        if len(name) > 64 or not isinstance(value, str) or len(value) > 512:
            text = "`metadata` takes names of at most 64 and texts of at most 512 characters."
            raise bad_request(text, param=f"metadata.{shorten(name)}")


def _read_lives(asked: Any) -> float | None:
    if asked is None:
        return None
    param = "output_expires_after"
    if not isinstance(asked, dict) or asked.keys() != {"anchor", "seconds"} or asked["anchor"] != "created_at":
        text = f'`{param}` must be {{"anchor": "created_at", "seconds": N}}.'
        raise bad_request(text, param=param)
    seconds = asked["seconds"]
    if type(seconds) is not int or not SHORTEST <= seconds <= LONGEST:
        text = f"`{param}.seconds` must be a whole number from {SHORTEST} to {LONGEST}."
        raise bad_request(text, param=f"{param}.seconds")
    return float(seconds)
