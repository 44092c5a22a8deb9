"""The outermost ASGI callable: byte-identical hits, without parsing anything.

A request that was answered before and comes again byte for byte (credentials, path, query, body) finds its answer by
one digest. That is only right while nothing else could change the answer, so:

- a header that changes behaviour (`BEHAVIOUR`) sends the request the long way, and so does a body whose `cache`
  object does: such requests are never given an alias;
- an alias holds for one policy generation: a changed configuration, a revoked key, another TTL end it at once;
- the principal's credentials may expire, and the entry's life ends, on the byte-identical path as on the long one;
- what is purged or evicted takes its aliases with it (cache.stores.memory).

Bodies of all POST requests are read here, bounded, whichever route they go to.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from time import perf_counter

from cache.stores.memory import MemoryStore, Slot
from gateway.asgi import App, Disconnected, Receive, Scope, Send, read_body, send_error
from gateway.auth import Principal
from gateway.decisions import Decision, Tier, new_request_id
from gateway.directives import HEADERS as DIRECTIVE_HEADERS
from gateway.errors import ApiError
from gateway.heads import JSON, PRIVATE, SSE, Header, header_text, reuse, saved_value
from gateway.recorder import Recorder
from gateway.snapshot import Snapshot

BEHAVIOUR = DIRECTIVE_HEADERS | {
    *(b"prefer", b"content-encoding", b"x-refrain-on-behalf"),
    *(b"anthropic-version", b"anthropic-beta", b"openai-beta"),
    b"origin",  # a browser's page asks: gateway.auth has its say first
}
WATCHED = BEHAVIOUR | {b"authorization", b"x-api-key", b"host", b"content-type", b"content-length"}
INCOMING = "refrain.incoming"
HIT: tuple[bytes, bytes] = (b"x-refrain-cache", b"exact")


class Incoming:
    """What the front has read of a request. `alias` is its digest where it may come the short way next time."""

    __slots__ = ("alias", "body", "started")

    def __init__(self, body: bytes, alias: bytes | None, started: float) -> None:
        self.body = body
        self.alias = alias
        self.started = started


class Replay:
    """What an alias leads to, beside the entry: all that does not change from hit to hit."""

    __slots__ = ("api", "endpoint", "expires", "form", "generation", "head", "key", "model", "principal", "until")

    def __init__(
        self,
        *,
        generation: int,
        principal: Principal,
        endpoint: str,
        api: str,
        model: str,
        form: str,
        expires: float,
        slot: Slot,
    ) -> None:
        self.generation = generation
        self.principal = principal
        self.endpoint = endpoint
        self.api = api
        self.model = model
        self.form = form
        self.expires = expires
        self.key = slot.entry.key
        entry = slot.entry
        head: list[Header] = [JSON if form == "json" else SSE, PRIVATE, HIT]
        head.append((b"x-refrain-saved", saved_value(entry.usage.total, entry.cost.usd, entry.cost.ms)))
        if entry.upstream_id:
            head.append((b"x-refrain-upstream-id", header_text(entry.upstream_id)))
        self.head = head

    SIZE = 900
    """Bytes charged for one Replay with its headers (measured: about 850)."""


class Front:
    """Wraps the application. `snapshot` gives the configuration in force."""

    def __init__(
        self,
        app: App,
        memory: MemoryStore,
        recorder: Recorder,
        snapshot: Callable[[], Snapshot],
        clock: Callable[[], float],
    ) -> None:
        self._app = app
        self._clock = clock
        self._memory = memory
        self._finish = recorder.finish
        self._snapshot = snapshot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        snapshot = self._snapshot()
        seen = Survey(scope["headers"])
        try:
            limit = snapshot.config.server.max_body
            body = await read_body(receive, limit, declared=seen.length, encoding=seen.encoding)
        except ApiError as error:
            await send_error(send, error, (PRIVATE, (b"x-request-id", new_request_id().encode())))
            return
        except Disconnected:
            return
        alias = None
        if seen.plain:
            alias = alias_of(seen, scope["path"], scope["query_string"], body)
            now = self._clock()
            found = self._memory.by_alias(alias, now)
            if found is not None:
                replay: Replay = found[0]
                entry = found[1].entry
                answer = entry.body if replay.form == "json" else found[1].rendered.get(replay.form)
                if answer is not None and replay.generation == snapshot.generation and now < replay.expires:
                    await self._hit(replay, found[1], answer, now, started, send)
                    return
        scope[INCOMING] = Incoming(body, alias, started)
        await self._app(scope, receive, send)

    async def _hit(self, replay: Replay, slot: Slot, body: bytes, now: float, started: float, send: Send) -> None:
        ttl = int(replay.expires - now)
        decision = Decision(new_request_id(), now, replay.endpoint, replay.api)
        decision.principal = replay.principal
        decision.model = replay.model
        decision.stream = replay.form != "json"
        decision.outcome = "exact"
        decision.key = replay.key
        decision.tiers = (Tier("exact", "hit", "byte_identical", ttl),)
        age = reuse(decision, slot.entry, now)
        took = (perf_counter() - started) * 1000
        decision.phases = {"exact": took}
        headers = [
            *replay.head,
            (b"content-length", b"%d" % len(body)),
            (b"age", b"%d" % age),
            (b"cache-status", b"exact; hit; ttl=%d" % ttl),
            (b"server-timing", b"exact;dur=%.2f" % took),
            (b"x-request-id", decision.id.encode()),
        ]
        self._finish(decision, started)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Survey:
    """What the front looks for in the headers, in one pass. `plain`: none of them changes behaviour."""

    __slots__ = ("api_key", "authorization", "content_type", "encoding", "host", "length", "plain")

    def __init__(self, headers: Iterable[Header]) -> None:
        self.authorization = self.api_key = self.host = self.content_type = self.encoding = self.length = b""
        self.plain = True
        for name, value in headers:
            if name not in WATCHED:
                continue
            if name == b"content-length":
                self.length = value
            elif name == b"authorization":
                self.authorization += b"\n" + value  # repeated: another digest than once
            elif name == b"host":
                self.host = value
            elif name == b"content-type":
                self.content_type = value
            elif name == b"x-api-key":
                self.api_key += b"\n" + value
            else:
                self.plain = False
                if name == b"content-encoding":
                    self.encoding = value


def alias_of(seen: Survey, path: str, query: bytes, body: bytes) -> bytes:
    """Digest of everything that makes a request whose headers are `plain`."""
    where = path.encode()
    a, b, c, d = seen.authorization, seen.api_key, seen.host, seen.content_type
    frame = b"%d,%d,%d,%d,%d,%d;" % (len(a), len(b), len(c), len(d), len(where), len(query))
    return blake2b(b"".join((frame, a, b, c, d, where, query, body)), digest_size=32).digest()
