"""Processes that die in mid-stream, by `kill -9`: the upstream, a client. What the others get is what the failure
matrix says of a stream that is cut and of a client that leaves."""

import asyncio
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic

import pytest

from tests.faults.matrix.cases import Case, Form, Forms, answer_text
from tests.faults.matrix.client import Client
from tests.faults.matrix.expected import expected
from tests.faults.matrix.world import World, world
from tests.support.gateway import ALICE
from tests.support.process import ROOT, environment
from tests.support.traffic import fixed
from tests.support.upstream import Reply, chat_answer, chat_chunks, numbered, sse

SSE = "text/event-stream"
FORMS: Forms = ("stream", "stream", "json")
CANCELLED_WITHIN = 0.1
"""Seconds from the last client's end to the upstream's knowing it."""

# It leads a stream, says when it has seen the beginning, and goes on reading.
CLIENT = """
import sys, httpx
url, prompt, key = sys.argv[1:]
body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}], "stream": True}
headers = {"authorization": f"Bearer {key}"}
with httpx.stream("POST", url, json=body, headers=headers, timeout=30, trust_env=False) as response:
    for piece in response.iter_text():
        if "one " in piece:
            print("begun", flush=True)
"""

# Its streams begin well, then nothing comes for long.
UPSTREAM = """
import time
from tests.support.upstream import Reply, chat_answer, chat_chunks, sse, upstream
with upstream() as up:
    begun = sse(chat_chunks(chat_answer("one two"), include_usage=True)[:2], done=False)
    up.script = lambda seen, number: Reply([begun], content_type="text/event-stream", hang=60)
    print(up.port, flush=True)
    time.sleep(60)
"""


@pytest.fixture
async def w() -> AsyncIterator[World]:
    async with world("stream") as found:
        yield found


@asynccontextmanager
async def process(script: str, *arguments: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-c", script, *arguments]
    child = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=ROOT, env=environment())
    try:
        yield child
    finally:
        await kill(child)


async def kill(child: Process) -> None:
    if child.returncode is None:
        child.kill()
    await child.wait()


async def word(child: Process) -> str:
    """The child's next line."""
    assert child.stdout is not None
    async with asyncio.timeout(30):
        return (await child.stdout.readline()).decode().strip()


def leader(w: World, prompt: str) -> AbstractAsyncContextManager[Process]:
    return process(CLIENT, f"{w.url}/patient/v1/chat/completions", prompt, ALICE)


def ask(w: World, prompt: str, form: Form, endpoint: str = "patient") -> Client:
    return Client(w.http, endpoint, prompt, form)


def held(gate: threading.Event) -> Reply:
    """An answer that begins, and goes on when it may."""
    parts = chat_chunks(chat_answer(answer_text(1)), include_usage=True)
    return Reply([sse(parts[:2], done=False), sse(parts[2:])], content_type=SSE, gates={1: gate})


async def test_the_upstream_is_killed() -> None:
    prompt = "Who is cut off?"
    async with process(UPSTREAM) as dying, world("stream", upstream_port=int(await word(dying))) as w:
        clients: list[Client] = []
        for there, form in enumerate(FORMS, 1):
            clients.append(ask(w, prompt, form))
            await w.listening(there)
        await clients[0].until_begun()
        await kill(dying)
        row = expected(Case("stream", "cut in mid-stream", False, FORMS))
        assert [await client.got() for client in clients] == [row.leader, row.first, row.second]
        await w.nothing_left()
        again = await ask(w, prompt, "stream").got()
        assert (again.outcome, again.status, again.code) == ("miss", 502, "backend_unreachable")


async def test_the_leading_client_is_killed(w: World) -> None:
    """The others get everything, from the one call, and it is kept."""
    prompt, gate = "Who goes on?", threading.Event()
    w.up.script = fixed(held(gate))
    async with leader(w, prompt) as dying:
        assert await word(dying) == "begun"
        others = []
        for there, form in enumerate(FORMS[1:], 2):
            others.append(ask(w, prompt, form))
            await w.listening(there)
        await kill(dying)
        await w.listening(2)
        gate.set()
        row = expected(Case("stream", "characters split by the network", True, FORMS))
        assert [await client.got() for client in others] == [row.first, row.second]
    await w.nothing_left()
    assert w.calls == row.calls
    assert (await ask(w, prompt, "json").got()).outcome == "exact"


@pytest.mark.slow
async def test_the_last_client_is_killed(w: World) -> None:
    """The upstream knows at once that nobody listens, and nothing is kept."""
    took = []
    for number in range(3):  # the median of three: a busy machine may be slow once, the gateway may not
        prompt = f"Who is the last? {number}"
        w.up.script = fixed(held(threading.Event()))
        async with leader(w, prompt) as dying:
            assert await word(dying) == "begun"
            joined = ask(w, prompt, "json")
            await w.listening(2)
            await joined.leave()
            await w.listening(1)
            assert w.up.cancelled == number
            killed = monotonic()
            await kill(dying)
            await w.nothing_left()
        assert w.up.cancelled == number + 1
        took.append(w.up.left_at[-1] - killed)
        w.up.script = numbered
        assert (await ask(w, prompt, "stream").got()).outcome == "miss"
    assert sorted(took)[1] < CANCELLED_WITHIN, took
    assert w.calls == 2 * len(took)
