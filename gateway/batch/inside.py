"""A request that the gateway makes for somebody who is not there: it goes the way of every other one, but there is no
socket."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from gateway.asgi import Headers, Message, Receive, Scope, Send
from gateway.ask import PASSED_ON
from gateway.auth import ANYBODY, Authenticator, Entrant, Key
from gateway.batch.records import BatchRecord, Owner, Url
from gateway.directives import HEADERS as DIRECTIVES
from gateway.errors import ApiError
from gateway.front import INCOMING, Incoming
from gateway.normalize import Api
from gateway.principal import OPEN, Principal

APIS: dict[Url, Api] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}

Serve = Callable[[Api, str, Scope, Receive, Send, Entrant], Awaitable[None]]
"""Answers one request of this kind to the endpoint of this name, for somebody who has been let in."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` have names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Inside:
    """One per application."""

    serve: Serve

    async def __call__(self, batch: BatchRecord, body: bytes, entrant: Entrant) -> Answer:
        """What a client would be answered that sends this, as one of the batch's requests; errors, too."""
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": batch.url,
            "query_string": batch.query.encode("latin-1"),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in batch.headers],
            INCOMING: Incoming(body, None, perf_counter()),
        }
        sent = _Sent()
        await self.serve(APIS[batch.url], batch.endpoint, scope, partial(_stays, asyncio.Event()), sent, entrant)
        return Answer(sent.status, sent.headers, b"".join(sent.pieces))


class _Sent:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.pieces.append(message.get("body", b""))


async def _stays(never: asyncio.Event) -> Message:
    """This client does not leave."""
    await never.wait()
    return {"type": "http.disconnect"}


def steering(headers: Headers) -> tuple[tuple[str, str], ...]:
    """Of the headers that a batch was made with those that each of its requests is to have."""
    return tuple((name.decode(), headers[name].decode("latin-1")) for name in _STEERING if name in headers)


_STEERING = (*sorted(DIRECTIVES), *PASSED_ON)


def owner_of(entrant: Entrant) -> Owner:
    """Who has come in, for later."""
    who, credential = entrant.principal, entrant.credential
    key = credential.digest.hex() if isinstance(credential, Key) else ""
    return Owner(who.tenant, who.user, tuple(sorted(who.permissions)), who.role, key)


def returning(owner: Owner, auth: Authenticator) -> Entrant:
    """The owner come in again, as no more than it was then, and than its key may be today. Raises ApiError 401 when
    that is good no more. A token is long over by then, so whoever came by one is believed as long as any are taken."""
    if not owner.key and owner.who == (OPEN.tenant, OPEN.user):  # no token names such a user
        if auth.required:
            raise _refused()
        return Entrant(OPEN, ANYBODY)
    if not owner.key:
        if auth.tokens is None:
            raise _refused()
        principal = Principal(owner.tenant, owner.user, frozenset(owner.permissions), owner.role)
        return Entrant(principal, Key(b"", principal))
    key = auth.keys.get(bytes.fromhex(owner.key))
    if key is None or not key.good() or key.principal.tenant != owner.tenant:
        raise _refused()
    if key.principal.user != owner.user and not key.delegate:
        raise _refused()
    permissions = key.principal.permissions & frozenset(owner.permissions)
    role = owner.role if owner.role == key.principal.role else "member"
    return Entrant(Principal(owner.tenant, owner.user, permissions, role), key)


def _refused() -> ApiError:
    text = "The key that this batch was made with is not valid any more."
    return ApiError(401, text, code="invalid_api_key", headers={"x-should-retry": "false"})
