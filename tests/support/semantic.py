"""What the tests of the semantic tier share: rooms that keep them apart, and one real embedder for all of them.

The model takes seconds to load and milliseconds to answer, on a busy machine many times that. So there is one process
with it for the whole session, every gateway of these tests is given a view of that, and no call is cut off: what
becomes of late vectors is for the tests of faults.
"""

import asyncio
import atexit
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
import numpy as np

from cache.semantic.embedder import LocalEmbedder, State
from gateway.config import Embedder as EmbedderConfig
from tests.support.embedders import Placed
from tests.support.gateway import Running, running
from tests.support.traffic import decision, outcome, text_of, until, upstream_calls
from tests.support.upstream import Upstream

Json = dict[str, Any]
MODEL = "all-MiniLM-L6-v2"
LOADED_WITHIN = 110.0
ANSWERED_WITHIN = 60.0
ASKED, REWORDED = "How do I reset my password?", "How can I reset my password?"
TWICE_REWORDED = "How could I reset my password?"
OTHER = "Which planets have rings?"

_number = itertools.count(1)


class Shared:
    """A view of the session's real embedder; `embedded` are the texts of this view."""

    detail = ""

    def __init__(self, config: EmbedderConfig | None = None) -> None:
        self.embedded: list[str] = []
        self._embedder, self._loop = _real()

    @property
    def state(self) -> State:
        return self._embedder.state

    @property
    def identity(self) -> str:
        return self._embedder.identity

    @property
    def dimensions(self) -> int:
        return self._embedder.dimensions

    async def start(self) -> None:
        pass

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        self.embedded += texts
        work = self._embedder.embed(texts, deadline=ANSWERED_WITHIN)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def aclose(self) -> None:
        pass


@cache
def _real() -> tuple[LocalEmbedder, asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="shared embedder", daemon=True).start()
    embedder = LocalEmbedder(MODEL)
    asyncio.run_coroutine_threadsafe(embedder.start(), loop).result(10)
    atexit.register(lambda: asyncio.run_coroutine_threadsafe(embedder.aclose(), loop).result(10))
    until(lambda: embedder.state == "ready", timeout=LOADED_WITHIN)
    return embedder, loop


@contextmanager
def meaning(text: str, **options: Any) -> Iterator[Running]:
    """A gateway with the real embedder, which is ready."""
    _real()
    with running(text, embedders=Shared, **options) as gw:
        yield gw


def by_wording() -> Placed:
    """One without a model, for what is not about nearness: only the questions of this page that ask the same lie at
    the same place."""
    return Placed(lambda text: ASKED if text in (REWORDED, TWICE_REWORDED) else text)


@dataclass(frozen=True)
class Room:
    """A context of its own on an endpoint: its system prompt is nobody else's. `more` goes into every body."""

    gw: Running
    path: str = "/v1"
    more: Json = field(default_factory=dict)
    system: str = field(default_factory=lambda: f"You are assistant number {next(_number)}.")

    def messages(self, question: str, *before: Json) -> list[Json]:
        return [{"role": "system", "content": self.system}, *before, {"role": "user", "content": question}]

    def ask(self, question: str, **more: Any) -> httpx.Response:
        options = {"path": self.path, "messages": self.messages(question), **self.more, **more}
        return self.gw.chat(**options)

    def told(self, question: str, **more: Any) -> str:
        """Have the backend answer it; gives the answer's text."""
        answer = self.ask(question, **more)
        assert outcome(answer) == "miss", f"{outcome(answer)} {said(self.gw, answer)}"
        return text_of(answer)

    def serves(self, question: str, text: str, **more: Any) -> httpx.Response:
        """It must be answered from the semantic tier with this text."""
        answer = self.ask(question, **more)
        assert outcome(answer) == "semantic", f"{outcome(answer)} {said(self.gw, answer)}"
        assert text_of(answer) == text
        return answer

    def refuses(self, question: str, *, why: str | None = None, **more: Any) -> httpx.Response:
        """The backend must be asked; `why` is what the semantic tier says to it, where it is asked."""
        answer = self.ask(question, **more)
        found = said(self.gw, answer)
        assert outcome(answer) == "miss", f"{outcome(answer)} {found}"
        assert why is None or found["why"] == why, found
        return answer


def said(gw: Running, answer: httpx.Response) -> Json:
    """What the decision holds of the semantic tier; empty where it was not asked."""
    found = [tier for tier in decision(gw, answer)["tiers"] if tier["tier"] == "semantic"]
    assert len(found) < 2, found
    return dict(found[0]) if found else {}


def stats(gw: Running) -> Json:
    """What the tier says of itself."""
    found = gw.admin("GET", "/admin/stats")
    assert found.status_code == 200, found.text
    return dict(found.json()["semantic"])


def sample(gw: Running, name: str, **labels: str) -> float:
    """A sample of /metrics; 0 where there is none yet."""
    wanted = {f'{k}="{v}"' for k, v in labels.items()}
    for line in gw.admin("GET", "/metrics").text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and wanted <= set(head.partition("{")[2].rstrip("}").split(",")):
            return float(value)
    return 0.0


# The tier of an embedder that is ill

DEADLINE = 0.25
"""Seconds that the tier waits for a vector."""
SLACK = 1.25
"""Seconds that a request may take on a busy machine beside that."""
ONLY_CACHED = {"cache-control": "only-if-cached"}


def quick(room: Room, question: str, **more: Any) -> httpx.Response:
    begun = time.monotonic()
    answer = room.ask(question, **more)
    assert time.monotonic() - begun < DEADLINE + SLACK
    return answer


def steps_aside(gw: Running, up: Upstream, *reasons: str) -> None:
    """Paraphrases go to the backend for one of the reasons, exact repeats are served, all is quick and healthy."""
    room = Room(gw)
    text = text_of(quick(room, ASKED))
    with upstream_calls(up, 1):
        missed = quick(room, REWORDED)
    assert outcome(missed) == "miss"
    assert said(gw, missed)["why"] in [f"embedder_{reason}" for reason in reasons], said(gw, missed)
    assert text_of(missed) != text
    only_exact = "semantic" not in missed.headers["cache-status"]
    assert only_exact == (said(gw, missed)["result"] == "skipped")
    with upstream_calls(up, 0):
        for question, own in ((ASKED, text), (REWORDED, text_of(missed))):
            again = quick(room, question)
            assert (outcome(again), text_of(again)) == ("exact", own)
    assert gw.client.get("/readyz").status_code == gw.client.get("/healthz").status_code == 200


def comes_back(gw: Running) -> None:
    until(lambda: stats(gw)["state"] == "ready", timeout=LOADED_WITHIN)
    room = Room(gw)
    text = room.told(ASKED)
    found = until(lambda: (a := room.ask(REWORDED, headers=ONLY_CACHED)).status_code == 200 and a)
    assert (outcome(found), text_of(found)) == ("semantic", text)
    assert sample(gw, "refrain_semantic_ready") == 1
    assert gw.client.get("/readyz").json() == {"status": "ready"}
