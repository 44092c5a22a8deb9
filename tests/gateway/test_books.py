"""The books balance to the token, whatever comes: served + unserved = consumed + saved, for every tenant, endpoint,
model, backend and outcome, over random requests through the real pipeline. Calls fail before and after their first
byte, are taken over, joined, abandoned and made again; answers are found by other questions, and fetched anew."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from backends.base import BackendTimeout, ConnectFailed, ReplyBroken
from gateway.config.load import parse_config
from gateway.decisions import Decision
from gateway.ledger.ledger import Key, Sums
from gateway.prices.search import embedded
from tests.gateway.flying import Client, Hub, code_of, passes, pieces
from tests.gateway.scripted import END, OPEN
from tests.gateway.timeless import timeless
from tests.support.embedders import Placed
from tests.support.live import FORMS, TOKENS
from tests.support.traffic import accumulated
from tests.support.upstream import chat_answer

KEYS = {"rf-alice-key-0123456789": "acme", "rf-eve-key-0123456789": "globex"}
ENDPOINTS = ("default", "rr", "lasting", "soft", "stale", "uncached")
CONFIG = parse_config(
    f"""
auth: {{keys: [{", ".join(f"{{key: {key}, tenant: {t}, user: {t}-user}}" for key, t in KEYS.items())}]}}
backends: {{fake: {{kind: remote, base_url: "http://127.0.0.1:9/v1"}}}}
models: {{"*": fake}}
embedder: {{model: placed, base_url: "http://127.0.0.1:9/v1"}}
endpoints:
  default: {{mode: stream, share: tenant}}
  rr: {{mode: request_response, share: tenant}}
  lasting: {{mode: stream, share: tenant, finish: true}}
  soft: {{mode: stream, share: tenant, cache: {{exact: {{ttl: 60s, stale_while_revalidate: 1h}}}}}}
  stale: {{mode: request_response, share: tenant, cache: {{exact: {{ttl: 60s, stale_if_error: 1h}}, semantic: off}}}}
  uncached: {{mode: stream, share: tenant, cache: {{exact: off}}}}
prices:
  model-a: {{input: 1.0, output: 2.0, cached_input: 0.5}}
  model-b: {{input: 3.0, output: 3.0}}
  placed: {{input: 0.125, output: 0}}
""",
    {},
)
SAME = ("How do I reset my password?", "How can I reset my password?")
PROMPTS = (*SAME, "Which planets have rings?")
MODELS = ("model-a", "model-b")
EMBEDDED = 1_000  # tokens of one text
FATES = (
    *("good",) * 6,
    *("cached", "without usage", "cut", "cut late", "error event", "garbage", "500", "429", "unreachable", "silent"),
)


class Counted(Placed):
    """A server's embedder: it reports what it has taken."""

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        vectors = await super().embed(texts, deadline=deadline)
        embedded(EMBEDDED * len(texts), 0)
        return vectors


class World:
    """A hub, its clients, and a backend whose calls take random ends at random times."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.endpoints = self.chance.sample(ENDPOINTS, 2)  # so few that requests meet
        self.models = self.chance.sample(MODELS, self.chance.choice((1, 1, 2)))
        self.embedder = Counted(lambda text: SAME[0] if text in SAME else text)
        self.hub = Hub(config=CONFIG, embedders=lambda config: self.embedder)
        self.hub.backend.script = self.script
        self.clients: list[Client] = []
        self.held: list[asyncio.Event] = []

    def script(self, number: int) -> list[Any]:
        """What this call brings, with pauses in between that last until somebody ends them."""
        call = self.hub.calls[number - 1].call
        fate = self.chance.choice(FATES)
        steps = {
            "500": [(500, "text/plain"), END],
            "429": [(429, "application/json"), b'{"error": {"message": "no"}}', END],
            "unreachable": [ConnectFailed("It cannot be reached.")],
            "silent": [BackendTimeout("It did not answer.", "first_byte")],
        }.get(fate)
        if steps is None:
            steps = self.answer(fate, stream=json.loads(call.body).get("stream", False))
        place = self.chance.randrange(len(steps))
        pauses = [] if self.chance.random() < 0.4 else [self.pause()]
        return [*steps[:place], *pauses, *steps[place:]]

    def answer(self, fate: str, *, stream: bool) -> list[Any]:
        changes: dict[str, Any] = {}
        if fate == "cached":
            usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
            changes = {"usage": {**usage, "prompt_tokens_details": {"cached_tokens": 4}}}
        events = pieces(**changes)
        if fate == "without usage":
            events = [event for event in events if b'"choices": []' not in event]
        whole = chat_answer("one two three", **changes)
        if not stream:
            if fate == "without usage":
                del whole["usage"]
            raw = json.dumps(whole).encode()
            ends: dict[str, list[Any]] = {
                "cut": [raw[:20], ReplyBroken("It broke off.")],
                "cut late": [raw, ReplyBroken("It broke off.")],
                "error event": [b'{"error": {"message": "overloaded"}}', END],
                "garbage": [b"<html>", END],
            }
            return [(200, "application/json"), *ends.get(fate, [raw, END])]
        some = events[: self.chance.randrange(3)]
        ends = {
            "cut": [*some, ReplyBroken("It broke off.")],
            "cut late": [*events[:-1], ReplyBroken("It broke off.")],
            "error event": [*some, b'data: {"error": {"message": "overloaded"}}\n\n', END],
            "garbage": [*some, b"data: <html>\n\n", END],
        }
        return [OPEN, *ends.get(fate, [*events, END])]

    def pause(self) -> asyncio.Event:
        self.held.append(asyncio.Event())
        return self.held[-1]

    async def step(self) -> None:
        kind = self.chance.choice(("come", "come", "come", "leave", "go on", "wait", "later"))
        if kind == "come":
            for _ in range(self.chance.choice((1, 1, 2, 4))):
                self.clients.append(self.client())
        elif kind == "leave":
            if there := [c for c in self.clients if not c.task.done()]:
                self.chance.choice(there).leave()
        elif kind == "go on":
            if self.held:
                self.held.pop(self.chance.randrange(len(self.held))).set()
        elif kind == "later":
            self.hub.clock.time += self.chance.choice((1, 40, 70))
        await passes(self.chance.choice((0.0, 0.01, 0.3)))

    def client(self) -> Client:
        pick = self.chance.choice
        headers = pick(({}, {}, {}, {}, {"cache-control": pick(("no-cache", "no-store", "only-if-cached"))}))
        return self.hub.client(
            pick(tuple(FORMS)),
            pick(PROMPTS),
            endpoint=pick(self.endpoints),
            model=pick(self.models),
            key=pick(tuple(KEYS)),
            headers=headers,
        )

    async def end(self) -> None:
        """Let everything come to its end."""
        while any(not c.task.done() for c in self.clients) or self.hub.flights.count:
            while self.held:
                self.held.pop().set()
            await passes(1)

    # What the books must say

    def check(self) -> None:
        books = dict(self.hub.recorder.ledger.totals())
        for key, sums in books.items():
            balanced(key, sums)
        groups = self.groups(books)
        for key, (sums, mine) in groups.items():
            assert sum(s.requests for s in sums) == len(mine), key
            for name in ("served", "unserved", "consumed", "billable", "saved", "estimated", "cached"):
                assert sum(getattr(s, name) for s in sums) == sum(getattr(d, name) or 0 for d in mine), (key, name)
            for name in ("usd", "usd_billable", "usd_saved", "usd_overhead"):
                found = sum(getattr(s, name) for s in sums)
                assert found == pytest.approx(sum(getattr(d, name) or 0 for d in mine)), (key, name)
        for d in self.hub.recorder.ring:
            assert d.served + d.unserved == d.consumed + d.saved, d
            assert d.error != "internal_error"

    def groups(self, books: dict[Key, Sums]) -> dict[tuple[str, ...], tuple[list[Sums], list[Decision]]]:
        """Books and decisions that speak of the same. (Models apart: one gets its name once it has answered.)"""
        found: dict[tuple[str, ...], tuple[list[Sums], list[Decision]]] = {}
        for key, sums in books.items():
            group = (key.tenant, key.endpoint, key.backend, key.outcome)
            found.setdefault(group, ([], []))[0].append(sums)
        for d in self.hub.recorder.ring:
            found[d.tenant, d.endpoint, d.backend, d.outcome or "error"][1].append(d)
        return found


def balanced(key: Key, sums: Sums) -> None:
    assert sums.served + sums.unserved == sums.consumed + sums.saved, key
    numbers = {name: getattr(sums, name) for name in Sums.__slots__ if name.startswith("usd")}
    assert all(value >= -1e-12 for value in numbers.values()), (key, numbers)
    assert min(sums.served, sums.unserved, sums.consumed, sums.saved) >= 0, key
    assert sums.billable == sums.consumed, key  # a provider is paid for all of it
    assert sums.usd_billable == pytest.approx(sums.usd), key
    assert sums.estimated <= sums.consumed, key
    given = sums.usd + sums.usd_saved - sums.usd_unserved
    assert (given > 1e-12) == (sums.served > 0), key
    assert given <= sums.served * 3e-6 + 1e-12, key  # the dearest token


async def played(seed: int, steps: int = 60) -> World:
    world = World(seed)
    await world.hub.semantics.apply(CONFIG)
    try:
        for _ in range(steps):
            await world.step()
        await world.end()
    finally:
        await world.hub.semantics.aclose()
    return world


@pytest.mark.parametrize("seed", range(12))
@timeless
async def test_the_books_balance_over_random_requests(seed: int) -> None:
    world = await played(seed)
    world.check()


@timeless
async def test_the_figures_are_those_of_the_backend_and_of_the_clients() -> None:
    """What comes out is held against what has gone in, not only against itself."""
    outcomes: Counter[str] = Counter()
    for seed in range(100, 112):
        world = await played(seed)
        hub = world.hub
        outcomes.update(d.outcome or "error" for d in hub.recorder.ring)
        stats = hub.recorder.ledger.stats()
        tokens, parts = stats["tokens"], stats["parts"]
        texts = len(world.embedder.embedded)
        overhead = sum(d.usd_overhead or 0 for d in hub.recorder.ring)
        assert parts["usd"]["overhead"] == pytest.approx(overhead) == pytest.approx(texts * EMBEDDED * 0.125e-6)
        reported = tokens["consumed"] - parts["tokens"]["estimated"] - texts * EMBEDDED
        assert reported % TOKENS == 0
        assert reported <= TOKENS * len(hub.calls)
        good = [c for c in world.clients if not c.left and c.complete and code_of(c) == "ok"]
        told = sum(usage_told(client) for client in good)
        assert told <= tokens["served"]
        assert all(d.served for d in hub.recorder.ring if d.status == 200 and d.error is None)
    assert all(outcomes[o] >= 5 for o in ("exact", "semantic", "joined", "stale", "miss", "bypass")), outcomes


def usage_told(client: Client) -> int:
    """Tokens that the answer itself speaks of."""
    if client.headers["content-type"] == "application/json":
        answer = json.loads(client.content)
    else:
        answer = accumulated(client.content.decode())
    return int((answer.get("usage") or {}).get("total_tokens", 0))
