"""`POST /webhooks/{retriever}`: a service tells by itself which of its documents have changed.

No key is needed: the message is signed with the retriever's `webhook_secret`, and can do nothing else.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.framing import digest
from cache.once import Once
from gateway.api.audit import audited
from gateway.api.documents import announce, read_change
from gateway.asgi import read_headers
from gateway.errors import ApiError, bad_request, shorten
from gateway.front import INCOMING
from gateway.retrieval.changes import ACTION, Change, author
from gateway.retrieval.signature import TOLERANCE, SignatureError, secret_key, verify
from gateway.strict_json import parse_object

if TYPE_CHECKING:
    from gateway.app import Gateway

MAX_DOCUMENTS = 1000
REMEMBERED = 10_000
"""Messages of which it is known what came of them; beyond that the oldest are forgotten, and would be done again."""

Key = tuple[str, bytes, bytes]
"""A retriever, the id of a message to it, and the digest of its body: a message that is sent again has the same."""


class Deliveries:
    """What came of each message, so that one that comes twice is done once. `clock` is wall-clock seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._done: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        self._under_way: Once[Key, int] = Once()

    async def once(self, key: Key, act: Callable[[], Awaitable[int]]) -> int:
        """What `act` gave the first time. What it raises is not remembered: the sender tries again."""
        if key in self._done:
            return self._done[key][0]

        async def act_and_keep() -> int:
            purged = await act()
            self._keep(key, purged)
            return purged

        return (await self._under_way.get(key, act_and_keep))[0]

    def _keep(self, key: Key, purged: int) -> None:
        now = self._clock()
        self._done[key] = purged, now
        # A message may come so early, and again so late.
        while self._done and (len(self._done) > REMEMBERED or _first(self._done)[1] < now - 2 * TOLERANCE):
            self._done.popitem(last=False)


async def webhook(gateway: "Gateway", request: Request) -> Response:
    """Gives how much was stored of these documents."""
    raw = request.scope[INCOMING].body
    name = request.path_params["retriever"]
    managed = gateway.snapshot().retrievers.get(name)
    secret = managed.config.webhook_secret if managed is not None else None
    if managed is None or secret is None:
        raise ApiError(404, f"No webhook is expected for {shorten(name)!r}.", code="webhook_not_found")
    key = secret_key(secret.get_secret_value())
    try:
        id = verify(key, read_headers(request.scope), raw, gateway.clock())
    except SignatureError as error:
        raise ApiError(401, str(error), code=error.code) from None
    changes = read_changes(parse_object(raw))
    who = author(managed, f"webhook:{name}", "webhook")
    details = {"retriever": name, "documents": [change.shown() for change in changes]}

    async def act() -> int:
        return await announce(gateway, managed, changes)

    async def act_and_tell() -> int:
        return await audited(gateway, request, who, ACTION, details, act, lambda purged: {"purged": purged})

    message = name, id, digest("refrain.webhook.1", [raw])
    return JSONResponse({"purged": await gateway.deliveries.once(message, act_and_tell)})


def read_changes(body: dict[str, Any]) -> list[Change]:
    """`{"documents": [change, ...]}`, or one change alone. Raises ApiError 400 with the field."""
    if "documents" not in body:
        return [read_change(body)]
    items = body["documents"]
    for name in body:
        if name != "documents":
            raise bad_request(f"`{shorten(name)}` is no field beside `documents`.", param=shorten(name))
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_DOCUMENTS:
        raise bad_request(f"`documents` must be a list of 1 to {MAX_DOCUMENTS} changes.", param="documents")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise bad_request(f"`documents[{index}]` must be an object.", param=f"documents[{index}]")
    return [read_change(item, f"documents[{index}].") for index, item in enumerate(items)]


def _first(done: OrderedDict[Key, tuple[int, float]]) -> tuple[int, float]:
    return next(iter(done.values()))
