"""Flights without sockets: a backend that does as it is told, and clients that read and leave when told."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from cache.exact import ExactCache
from cache.stores.memory import MemoryStore
from gateway.asgi import Outlet
from gateway.ask import Ask, understand
from gateway.batch.plain import PlainCalls
from gateway.config import Config, digest_key
from gateway.config.load import parse_config
from gateway.decisions import Decision
from gateway.embedders import MakeEmbedder
from gateway.fill import Kitchen
from gateway.flights import Flights
from gateway.front import INCOMING, Incoming
from gateway.identity import Identity
from gateway.pipeline import Pipeline
from gateway.reception import Reception
from gateway.recorder import Recorder
from gateway.retrieval.grounds import Grounding
from gateway.semantics import Semantics
from gateway.snapshot import Snapshot
from gateway.visit import Visit
from tests.contract.stores import Clock
from tests.gateway.scripted import ScriptedBackend, UpstreamCall
from tests.support.embedders import Unready
from tests.support.live import FORMS
from tests.support.traffic import events
from tests.support.upstream import chat_answer, chat_chunks, sse

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
ALICE, BOB = "rf-alice-key-0123456789", "rf-bob-key-0123456789"
CONFIG = parse_config(
    f"""
auth: {{keys: [{{key: {ALICE}, tenant: acme, user: alice}}, {{key: {BOB}, tenant: acme, user: bob}}]}}
backends: {{fake: {{kind: remote, base_url: "http://127.0.0.1:9/v1"}}}}
models: {{"*": fake}}
endpoints:
  default: {{mode: stream, share: tenant}}
  rr: {{mode: request_response, share: tenant}}
  lasting: {{mode: stream, share: tenant, finish: true}}
  soft: {{mode: stream, share: tenant, cache: {{exact: {{ttl: 60s, stale_while_revalidate: 1h}}}}}}
  uncached: {{mode: stream, share: tenant, cache: {{exact: off}}}}
prices: {{test-model: {{input: 1.0, output: 2.0}}}}
""",
    {},
)


class Client:
    """One request through the pipeline. While it does not read, what is sent to it waits, but for `credit` messages;
    if its connection is `full` of what it was sent before, already the head does."""

    def __init__(
        self, hub: "Hub", endpoint: str, body: Json, headers: Mapping[str, str], *, reads: bool, full: bool = False
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = b""
        self.complete = False
        self.left = False
        self.reads = reads
        self.credit = 0
        self._full = full
        self._changed = asyncio.Event()
        raw = json.dumps(body).encode()
        scope = {
            "type": "http",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "query_string": b"",
            INCOMING: Incoming(raw, None, perf_counter()),
        }
        self.task = asyncio.create_task(hub.pipeline("chat", endpoint, scope, self._receive, self._send))

    def read(self, messages: int | None = None) -> None:
        """Take so many messages more, or all from now on."""
        if messages is None:
            self.reads = True
        else:
            self.credit += messages
        self._changed.set()

    def leave(self) -> None:
        self.left = True
        self._changed.set()

    async def _receive(self) -> Json:
        while not self.left:
            await self._wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.left:
            return
        if message["type"] == "http.response.start":
            while self._full and not (self.reads or self.left):
                await self._wait()
            assert not self.status, "two heads"
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        assert not self.complete, "something comes after the end"
        self.content += message["body"]
        self.complete = not message.get("more_body")
        while not (self.reads or self.credit or self.left):
            await self._wait()
        self.credit = max(0, self.credit - 1)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Hub:
    """The parts of a gateway that a flight needs, around a scripted backend. Made inside a running loop."""

    def __init__(
        self,
        *,
        max_entry: int = 2**20,
        memory: int = 2**26,
        config: Config = CONFIG,
        embedders: MakeEmbedder = Unready,
    ) -> None:
        self.clock = Clock()
        self.config = config
        self.backend = ScriptedBackend()
        self.generation = 1
        self.identity = Identity(self.clock)
        self.cache = ExactCache(MemoryStore(memory, now=self.clock), max_entry=max_entry)
        self.recorder = Recorder(1000)
        self.semantics = Semantics(self.cache, self.clock, embedders)  # not in force before it is told of the config
        self.flights = Flights(Kitchen(self.cache, self.semantics, self.clock, self.snapshot), self.recorder)
        reception = Reception(self.recorder, self.snapshot, self.clock)
        self.pipeline = Pipeline(
            self.cache,
            Grounding(None),
            self.flights,
            self.semantics,
            self.recorder,
            reception,
            PlainCalls(lambda: None, self.clock),
            self.clock,
        )

    def snapshot(self) -> Snapshot:
        auth = self.identity.authenticator(self.config.auth)
        return Snapshot.of(self.config, self.generation, {"fake": self.backend}, auth)

    @property
    def calls(self) -> list[UpstreamCall]:
        return self.backend.calls

    def client(
        self, form: str = "sse", prompt: str = "Hello?", *, endpoint: str = "default", reads: bool = True, **more: Any
    ) -> Client:
        """A request in this form; `headers`, `key`, `full` and fields of the body as given."""
        full = more.pop("full", False)
        headers = {"authorization": f"Bearer {more.pop('key', ALICE)}", **more.pop("headers", {})}
        return Client(self, endpoint, request(prompt, form, **more), headers, reads=reads, full=full)

    def visit(self, form: str = "json", prompt: str = "Hello?", *, endpoint: str = "default", **more: Any) -> Any:
        """A request understood, and its visit, for whoever boards flights by hand."""
        headers = {name.encode(): value.encode() for name, value in more.pop("headers", {}).items()}
        key = more.pop("key", ALICE)
        snapshot = self.snapshot()
        principal = snapshot.auth.keys[digest_key(key)].principal
        raw = json.dumps(request(prompt, form, **more)).encode()
        ask: Ask = understand("chat", raw, headers, "", snapshot.endpoint(endpoint), principal, snapshot)
        decision = Decision("req_1", self.clock(), endpoint, "chat")
        decision.principal, decision.outcome = principal, "miss"
        visit = Visit(snapshot, Incoming(raw, None, perf_counter()), decision, Outlet(_nowhere, lambda: None))
        return visit, ask

    def books(self) -> Json:
        """The sums of tokens, which must be in balance."""
        stats = self.recorder.ledger.stats()
        for sums in (stats["tokens"], stats["usd"]):
            assert abs(sums["served"] + sums["unserved"] - sums["consumed"] - sums["saved"]) < 1e-9, sums
            assert all(value >= 0 for value in sums.values()), sums
        return dict(stats["tokens"])


async def _nowhere(message: Any) -> None:
    raise AssertionError("nobody is there to send to")


def request(prompt: str, form: str, **more: Any) -> Json:
    return {"model": "test-model", "messages": [{"role": "user", "content": prompt}], **FORMS[form], **more}


def pieces(text: str = "one two three", **changes: Any) -> list[bytes]:
    """The events of a streamed answer, `[DONE]` included: the role, each word, the end, the usage."""
    chunks = chat_chunks(chat_answer(text, **changes), include_usage=True)
    return [*(sse([chunk], done=False) for chunk in chunks), DONE]


async def passes(seconds: float = 0.1) -> None:
    """Let everybody do what they can; so much time passes."""
    await asyncio.sleep(seconds)


async def ended(*clients: Client) -> None:
    """Wait until these have their answers, or their errors. Raises Stuck if one never will."""
    await asyncio.gather(*(client.task for client in clients))


async def crowd(hub: Hub, forms: Sequence[str], **more: Any) -> list[Client]:
    """Clients of one flight, the leader first."""
    clients = []
    for form in forms:
        clients.append(hub.client(form, **more))
        await passes()
    assert len(hub.calls) == 1
    return clients


def code_of(client: Client) -> Any:
    """The code of the error that this one got; "ok" for an answer. There is no third."""
    assert client.complete
    text = client.content.decode()
    if client.headers["content-type"] == "application/json":
        body = json.loads(text)
        assert (client.status == 200) == ("error" not in body)
    else:
        assert client.status == 200
        *before, last = events(text)
        assert all("choices" in json.loads(event) for event in before)
        body = {} if last == "[DONE]" else json.loads(last)
        assert last == "[DONE]" or "error" in body
    return body["error"]["code"] if "error" in body else "ok"


async def settled(hub: Hub) -> Json:
    """Nothing is left over, and the books balance; gives the sums of tokens."""
    await passes(1)
    assert (hub.flights.count, hub.flights.listening) == (0, 0)
    assert not hub.flights._open
    assert not hub.flights._refreshing
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all(call.closed for call in hub.calls)
    return hub.books()
