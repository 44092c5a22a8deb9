"""The outermost ASGI callable: byte-identical hits, without parsing anything.

A request that was answered before and comes again byte for byte (credentials, whom they speak for, path, query, body)
finds its answer by one digest. That is only right while nothing else could change the answer, so:

- a header that changes behaviour (`BEHAVIOUR`) sends the request the long way, and so does a body whose `cache`
  object does: such requests are never given an alias;
- an alias holds for one policy generation: a changed configuration, a revoked key, another TTL end it at once;
- an answer made from documents holds only while no document of its retriever has changed;
- the credential may expire or be revoked, its limits may be used up, and the entry's life ends, on the byte-identical
  path as on the long one;
- what is purged or evicted takes its aliases with it (cache.stores.memory).

Bodies of all POST requests are read here, bounded, whichever route they go to; but of uploads, which are never whole in
memory.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING

from blake3 import blake3

from cache.stores.memory import MemoryStore, Slot
from gateway.asgi import App, Disconnected, Headers, Receive, Scope, Send, read_body, read_headers, send_error
from gateway.auth import Credential
from gateway.decisions import Decision, new_number, new_request_id, request_id
from gateway.directives import HEADERS as DIRECTIVE_HEADERS
from gateway.errors import ApiError
from gateway.heads import JSON, PRIVATE, SSE, Header, decision_headers, header_text, saved_value
from gateway.hits import Facts
from gateway.principal import ON_BEHALF, Principal
from gateway.recorder import Recorder
from gateway.snapshot import Snapshot

if TYPE_CHECKING:
    from gateway.retrieval.grounds import Grounds

BEHAVIOUR = DIRECTIVE_HEADERS | {
    *(b"prefer", b"content-encoding"),
    *(b"anthropic-version", b"anthropic-beta", b"openai-beta"),
    b"origin",  # a browser's page asks: gateway.auth has its say first
}
INCOMING = "refrain.incoming"
_lengths = Struct("<7Q").pack
SHORT_LENGTH = 5
"""Digits of a Content-Length up to which a body is read before it is known who sends it: below 100 kB."""
UPLOADS = "/v1/files"
SIGNED = "/webhooks/"
"""Below this path it is a signature of the body that says who sends it."""
MAX_SIGNED = 100_000
"""Bytes of such a body. One that long is read from anybody, and signed in a tenth of a millisecond."""
HIT: tuple[bytes, bytes] = (b"x-refrain-cache", b"exact")


class Incoming:
    """What the front has read of a request. `alias` is its digest where it may come the short way next time."""

    __slots__ = ("alias", "body", "started")

    def __init__(self, body: bytes, alias: bytes | None, started: float) -> None:
        self.body = body
        self.alias = alias
        self.started = started


class Replay:
    """What an alias leads to, beside the entry: all that does not change from hit to hit. From `until` on the long way
    has to be gone: the entry's life is over at `expires`, from its soft end on another answer is to be fetched, and a
    token ends. An answer from documents holds while its `corpus` is of this `corpus_generation`. `deadline` is `until`
    by perf_counter(), which nobody sets back."""

    __slots__ = (
        *("corpus", "corpus_generation", "credential", "deadline", "expires", "facts", "form", "generation", "head"),
        *("retrieved", "until"),
    )

    def __init__(
        self,
        *,
        generation: int,
        principal: Principal,
        credential: Credential,
        endpoint: str,
        api: str,
        model: str,
        form: str,
        expires: float,
        until: float,
        deadline: float,
        slot: Slot,
        grounds: "Grounds | None" = None,
    ) -> None:
        entry = slot.entry
        self.generation = generation
        self.credential = credential
        self.form = form
        self.expires = expires
        self.until = until
        self.deadline = deadline
        documents = None if grounds is None else grounds.shown
        self.corpus = None if grounds is None else grounds.corpus
        self.corpus_generation = "" if grounds is None else grounds.generation
        self.retrieved = b"" if grounds is None else b", retrieval; hit"
        self.facts = Facts(entry, principal, endpoint, api, model, stream=form != "json", documents=documents)
        head: list[Header] = [JSON if form == "json" else SSE, PRIVATE, HIT]
        head.append((b"x-refrain-saved", saved_value(entry.usage.total, entry.cost.usd, entry.cost.ms)))
        if entry.upstream_id:
            head.append((b"x-refrain-upstream-id", header_text(entry.upstream_id)))
        if documents:
            head.append((b"x-refrain-documents", documents.encode()))
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
        self._record_hit = recorder.hit
        self._snapshot = snapshot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"].endswith(UPLOADS):
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        snapshot = self._snapshot()
        # Of a header that comes twice the last one is here; such a request goes the long way.
        headers: Headers = dict(scope["headers"])
        try:
            length = headers.get(b"content-length", b"")
            limit, why = snapshot.config.server.max_body, "server.max_body"
            if not length.isdigit() or len(length) > SHORT_LENGTH:
                if not scope["path"].startswith(SIGNED):
                    # Nobody's large body is worth reading. (Of small ones the long way, or the alias, finds out.)
                    await snapshot.auth.enter(read_headers(scope))
                elif limit > MAX_SIGNED:
                    limit, why = MAX_SIGNED, "the most for a webhook: send several"
            body = await read_body(headers, receive, limit, why)
        except ApiError as error:
            await self._refuse(error, started, send)
            return
        except Disconnected:
            return
        snapshot = self._snapshot()  # a slow body may have outlasted the one before
        alias = None
        if is_plain(headers, scope["headers"]):
            alias = alias_of(headers, scope["path"], scope["query_string"], body)
            now = self._clock()
            found = self._memory.by_alias(alias, now)
            if found is not None:
                replay: Replay = found[0]
                entry = found[1].entry
                answer = entry.body if replay.form == "json" else found[1].rendered.get(replay.form)
                if (
                    answer is not None
                    and replay.generation == snapshot.generation
                    and now < replay.until
                    and started < replay.deadline
                    and (replay.corpus is None or replay.corpus.generation == replay.corpus_generation)
                    and replay.credential.good()
                    and ((meter := replay.credential.meter) is None or meter.take())
                ):
                    await self._hit(replay, found[1], answer, now, started, send)
                    return
        scope[INCOMING] = Incoming(body, alias, started)
        await self._app(scope, receive, send)

    async def _refuse(self, error: ApiError, started: float, send: Send) -> None:
        decision = Decision(new_request_id(), self._clock(), "", "")
        decision.error, decision.status = error.code, error.status
        self._finish(decision, started)
        await send_error(send, error, decision_headers(decision))

    async def _hit(self, replay: Replay, slot: Slot, body: bytes, now: float, started: float, send: Send) -> None:
        ttl, age = int(replay.expires - now), slot.entry.age(now)
        number = new_number()
        headers = [
            *replay.head,
            (b"content-length", b"%d" % len(body)),
            (b"age", b"%d" % age),
            (b"cache-status", b"exact; hit; ttl=%d%b" % (ttl, replay.retrieved)),
            (b"server-timing", b"exact;dur=%.2f" % ((perf_counter() - started) * 1000)),
            (b"x-request-id", request_id(number).encode()),
        ]
        if replay.credential.meter is not None:
            headers += replay.credential.meter.headers()
        self._record_hit(replay.facts, number, now, started, age, ttl)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def is_plain(headers: Headers, sent: Sequence[Header]) -> bool:
    """Is no header there that changes behaviour, and none that came twice?"""
    return len(headers) == len(sent) and BEHAVIOUR.isdisjoint(headers)


def alias_of(headers: Headers, path: str, query: bytes, body: bytes) -> bytes:
    """Digest of everything that makes a request, as long as no header changes behaviour."""
    get = headers.get
    parts = (
        get(b"authorization", b""),
        get(b"x-api-key", b""),
        get(ON_BEHALF, b""),
        get(b"host", b""),
        get(b"content-type", b""),
        path.encode(),
        query,
    )
    frame = _lengths(*map(len, parts))
    # Not a key that anybody stores, so the fastest sound digest will do: a sixth of BLAKE2b's time for long prompts.
    return blake3(b"".join((frame, *parts, body))).digest()
