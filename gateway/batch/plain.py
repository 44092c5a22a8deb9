"""A plain call on an endpoint in `batch` mode: a batch of one request. Who waits for it (`Prefer: wait=N`, RFC 7240)
may have the answer as if there were no batch; else it is told where to look."""

import asyncio
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.ask import Ask
from gateway.auth import Entrant
from gateway.batch.inside import APIS, owner_of, steering
from gateway.batch.lane import Lane
from gateway.batch.records import LIVES, WINDOW, BatchRecord, FileRecord, Url
from gateway.batch.shown import shown_batch
from gateway.batch.store import BatchStoreError
from gateway.batch.stored import translated
from gateway.cacheability import well_formed
from gateway.deliver import attended
from gateway.errors import ApiError
from gateway.heads import JSON, Header
from gateway.normalize import Api
from gateway.reception import Arrival
from gateway.upstream import broken
from gateway.visit import Visit
from gateway.wire.render import render_stream

LONGEST_WAIT = 600.0
"""Seconds for which a connection is held open, at most."""
_WAIT = re.compile(r"(?:^|,)\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?:[;,]|$)", re.IGNORECASE)
URLS: dict[Api, Url] = {api: url for url, api in APIS.items()}


@dataclass(frozen=True, slots=True)
class PlainCalls:
    """One per application. `lane` gives the batch lane, None where there is none; `clock` is wall-clock seconds."""

    lane: Callable[[], Lane | None]
    clock: Callable[[], float]

    def take(self, visit: Visit, ask: Ask) -> bool:
        """Does this call wait in the lane? Not where nothing can wait: there it is answered at once."""
        return ask.endpoint.config.mode == "batch" and not visit.batch and self.lane() is not None

    async def __call__(self, visit: Visit, ask: Ask, arrival: Arrival) -> None:
        """Answer it, now or later. Raises ApiError and Disconnected; in either case the batch goes on."""
        lane = self.lane()
        assert lane is not None
        with translated():
            batch, ended = await self._keep(lane, visit, ask, arrival)
        seconds = wait_of(arrival.headers.get(b"prefer", b"").decode("latin-1"))
        if seconds:
            with translated():
                answer = await attended(arrival.receive, lane.answer(ended, seconds))
            if answer is not None:
                await _deliver(visit, ask, *answer)
                return
        visit.decision.status = 202
        place: Header = (b"location", _path(batch).encode())
        await visit.outlet.whole(202, [JSON, *visit.head(), place], msgspec.json.encode(shown_batch(batch)))

    async def _keep(
        self, lane: Lane, visit: Visit, ask: Ask, arrival: Arrival
    ) -> tuple[BatchRecord, asyncio.Future[BatchRecord]]:
        """The batch, on the disk when this returns, and the same when it has ended."""
        assert visit.credential is not None
        url, id, now, who = URLS[ask.api], visit.decision.id, self.clock(), ask.principal
        body = {name: value for name, value in ask.body.items() if name not in ("stream", "stream_options")}
        line = _encode({"custom_id": id, "method": "POST", "url": url, "body": body})
        file = f"file-{secrets.token_hex(12)}"
        record = FileRecord(file, who.tenant, who.user, "batch", f"{id}.jsonl", len(line), now, now + LIVES)
        batch = BatchRecord(
            id=f"batch_{secrets.token_hex(12)}",
            owner=owner_of(Entrant(who, visit.credential)),
            endpoint=ask.endpoint.name,
            url=url,
            input_file=file,
            created=now,
            deadline=now + WINDOW,
            headers=steering(arrival.headers),
            query=ask.query,
        )
        try:
            await lane.store.begin(file)
            await lane.store.piece(file, line)
            await lane.store.keep(record)
            return batch, await lane.create(batch, plain=True)
        except (ApiError, BatchStoreError):
            with suppress(BatchStoreError):
                await lane.store.abandon(file)
                await lane.store.delete_file(batch.owner.who, file, at=now)
            raise


_encode = msgspec.json.Encoder(decimal_format="number").encode


def wait_of(prefer: str) -> float:
    """Seconds that the client would wait, by its `Prefer` header; 0: it would not. What cannot be read is ignored, as
    RFC 7240 wants it."""
    found = _WAIT.search(prefer)
    return min(LONGEST_WAIT, float(found[1])) if found is not None else 0.0


def _path(batch: BatchRecord) -> str:
    """Where to look for it."""
    prefix = "" if batch.endpoint == "default" else f"/{batch.endpoint}"
    return f"{prefix}/v1/batches/{batch.id}"


async def _deliver(visit: Visit, ask: Ask, status: int, body: bytes) -> None:
    if status >= 400:
        raise _error(status, body)
    visit.decision.status = 200
    if ask.form != "json":
        answer = msgspec.json.decode(body)
        if not well_formed(ask.api, answer):
            raise broken("The backend's answer has no choices to stream.")
        body = render_stream(ask.api, answer, include_usage=ask.form == "sse+usage")
    await visit.outlet.whole(200, visit.headers(ask), body)


def _error(status: int, body: bytes) -> ApiError:
    """The error that the request has had."""
    envelope: dict[str, Any] = msgspec.json.decode(body)["error"]
    return ApiError(
        status,
        str(envelope["message"]),
        code=envelope.get("code"),
        param=envelope.get("param"),
        type=envelope.get("type"),
        headers={"x-should-retry": "false"},  # it was tried as often as it makes sense
    )
