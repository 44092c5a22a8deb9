"""`/v1/files`: the input files of batches, and what came of them. Everybody sees their own."""

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gateway.api.owned import Paging, enter, lane_of, not_found, read_page
from gateway.asgi import Disconnected, read_headers
from gateway.batch.records import LIVES, FileRecord
from gateway.batch.shown import shown_file
from gateway.batch.store import BatchStoreError
from gateway.batch.stored import translated
from gateway.batch.upload import read_upload
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.app import Gateway

MAX_FILE = 200 * 2**20
"""Bytes of an input file, as at OpenAI."""
PAGING = Paging(most=10_000, usual=10_000)


async def upload(gateway: "Gateway", request: Request) -> Response:
    """The file is on the disk when this returns, or nothing of it is kept."""
    entrant = await enter(gateway, request)
    store = lane_of(gateway).store
    id = f"file-{secrets.token_hex(12)}"
    who = entrant.principal
    kept = False

    async def piece(data: bytes) -> None:
        await store.piece(id, data)

    try:
        with translated():
            await store.begin(id)
            sent = await read_upload(read_headers(request.scope), request.receive, piece, limit=MAX_FILE)
            now = gateway.clock()
            lives = LIVES if sent.lives is None else sent.lives
            file = FileRecord(id, who.tenant, who.user, sent.purpose, sent.filename, sent.size, now, now + lives)
            await store.keep(file)
        kept = True
        return JSONResponse(shown_file(file))
    except Disconnected:
        raise ApiError(400, "The upload broke off.", code="client_disconnected") from None
    finally:
        if not kept:
            with suppress(BatchStoreError):  # then it goes with the next start
                await store.abandon(id)


async def list_files(gateway: "Gateway", request: Request) -> Response:
    entrant = await enter(gateway, request)
    page = read_page(request, PAGING)
    asked = request.query_params
    who = (entrant.principal.tenant, entrant.principal.user)
    with translated():
        found = await lane_of(gateway).store.files(
            who, after=page.after, limit=page.limit + 1, newest_first=page.newest_first, purpose=asked.get("purpose")
        )
    return JSONResponse(page.shown([shown_file(file) for file in found] if found is not None else None))


async def get_file(gateway: "Gateway", request: Request) -> Response:
    return JSONResponse(shown_file(await _find(gateway, request)))


async def delete_file(gateway: "Gateway", request: Request) -> Response:
    entrant = await enter(gateway, request)
    id = request.path_params["id"]
    who = (entrant.principal.tenant, entrant.principal.user)
    with translated():
        gone = await lane_of(gateway).store.delete_file(who, id, at=gateway.clock())
    if not gone:
        raise not_found("file", id)
    return JSONResponse({"id": id, "object": "file", "deleted": True})


async def content(gateway: "Gateway", request: Request) -> Response:
    file = await _find(gateway, request)
    head = {"content-length": str(file.size)}
    pieces = lane_of(gateway).store.content(file.id)
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=head)


async def _find(gateway: "Gateway", request: Request) -> FileRecord:
    entrant = await enter(gateway, request)
    id = request.path_params["id"]
    with translated():
        file = await lane_of(gateway).store.file((entrant.principal.tenant, entrant.principal.user), id)
    if file is None:
        raise not_found("file", id)
    return file
