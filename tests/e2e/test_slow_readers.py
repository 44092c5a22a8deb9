"""Clients that do not read: they hold up nobody else, and are told when they are cut off."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Running, config_text, running
from tests.support.live import SSE, Caller, call, error_event, gate, listening, settled, spoken
from tests.support.traffic import fixed, outcome, text_of, until, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, chat_chunks, sse

Json = dict[str, Any]
BLOCK = 64 * 1024
SMALL = 4096  # of a socket's receive buffer; the other end's send buffer takes some megabytes all the same


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    """One that could keep large answers, so that they can be joined."""
    text = config_text(up.url).replace('{url: "memory://"}', '{url: "memory://", max_entry: 64MiB}')
    with running(text) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


class Counted(list[bytes]):
    """The pieces of a reply; `sent` of them have been asked for."""

    sent = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in super().__iter__():
            yield piece
            self.sent += 1


def blocks(count: int, first: int = 0, go: threading.Event | None = None) -> Reply:
    """A stream of `count` blocks of 64 KiB, held after the first ones. It ends with `length`, so it is not stored:
    that would take long."""
    answer = chat_answer(" ".join(["x" * (BLOCK - 1)] * count))
    answer["choices"][0]["finish_reason"] = "length"
    pieces = Counted([sse([c], done=False) for c in chat_chunks(answer, include_usage=True)] + [b"data: [DONE]\n\n"])
    return Reply(pieces, content_type=SSE, gates={} if go is None else {first + 1: go})


def size(response: httpx.Response) -> int:
    """The length of a whole answer's text."""
    assert response.content.endswith(b"data: [DONE]\n\n")
    return len(spoken(response.content))


def lazy(gw: Running, prompt: str, reads: threading.Event, **more: Any) -> Caller:
    """A client that reads nothing until it is told to."""
    return call(gw, prompt, waits=reads, buffer=SMALL, **more)


@pytest.mark.parametrize("lead", [True, False], ids=["the slow one leads", "the slow one joined"])
def test_a_slow_reader_slows_nobody_and_is_cut_off(gw: Running, up: Upstream, prompt: str, lead: bool) -> None:
    """7 MiB: the others have it all while the slow one reads nothing; its stream then ends with an error that says
    why."""
    with gate() as reads, gate() as go:
        up.script = fixed(blocks(112, 1, go))
        with upstream_calls(up, 1):
            callers = []
            for number in range(3):
                slow = number == (0 if lead else 1)
                callers.append(lazy(gw, prompt, reads) if slow else call(gw, prompt))
                listening(gw, number + 1)
            slow_one = callers.pop(0 if lead else 1)
            begun = time.monotonic()
            go.set()
            results = [c.result() for c in callers]
            assert time.monotonic() - begun < 10
            assert not slow_one.content
        assert [size(r) for r in results] == [112 * BLOCK - 1] * 2
        reads.set()
        ended = slow_one.result()
    assert ended.headers["x-refrain-cache"] == ("miss" if lead else "joined")
    assert error_event(ended)["code"] == "client_too_slow"
    assert len(ended.content) < 112 * BLOCK


def test_several_slow_ones_among_quick_ones(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as reads, gate() as go:
        up.script = fixed(blocks(112, 1, go))
        slow = [lazy(gw, prompt, reads) for _ in range(3)]
        quick = [call(gw, prompt), call(gw, prompt, stream=False)]
        listening(gw, 5)
        go.set()
        assert {len(text_of(c.result())) for c in quick} == {112 * BLOCK - 1}
        reads.set()
        assert {error_event(c.result())["code"] for c in slow} == {"client_too_slow"}


def test_alone_it_slows_the_upstream_and_gets_everything(gw: Running, up: Upstream, prompt: str) -> None:
    """Nobody is kept waiting by it, so it is not cut off; and what it does not read is not fetched."""
    reply = blocks(320)
    pieces = reply.pieces
    assert isinstance(pieces, Counted)
    with gate() as reads:
        up.script = fixed(reply)
        caller = lazy(gw, prompt, reads)
        until(lambda: pieces.sent)
        stalled = _stalled(pieces)
        assert stalled < len(pieces) * 3 // 4, f"{stalled} of {len(pieces)} blocks were fetched for nobody"
        reads.set()
        result = caller.result()
    assert size(result) == 320 * BLOCK - 1


def _stalled(pieces: Counted) -> int:
    """The number of pieces sent once it grows no more."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        if pieces.sent != before:
            before, since = pieces.sent, time.monotonic()
        time.sleep(0.01)
    return before


def test_one_that_joined_late_has_time_for_what_had_come(gw: Running, up: Upstream, prompt: str) -> None:
    """6 MiB had come when it joined: to be behind by those is not to be slow. Only the last few hundred KB count."""
    with gate() as reads, gate() as go:
        up.script = fixed(blocks(104, 96, go))
        quick = call(gw, prompt)
        until(lambda: len(quick.content) > 96 * BLOCK)
        late = lazy(gw, prompt, reads)
        listening(gw, 2)
        go.set()
        assert size(quick.result()) == 104 * BLOCK - 1
        reads.set()
        assert size(late.result()) == 104 * BLOCK - 1
    assert late.outcome == "joined"


def test_a_slow_one_within_the_bound_gets_everything(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as reads, gate() as go:
        up.script = fixed(blocks(12, 1, go))
        slow = lazy(gw, prompt, reads)
        quick = call(gw, prompt)
        listening(gw, 2)
        go.set()
        quick.result()
        reads.set()
        assert slow.result().content == quick.result().content


def test_a_slow_one_that_leaves_lets_the_upstream_go(gw: Running, up: Upstream, prompt: str) -> None:
    with gate() as reads:
        reply = blocks(320)
        assert isinstance(reply.pieces, Counted)
        up.script = fixed(reply)
        cancelled = up.cancelled
        slow = lazy(gw, prompt, reads)
        _stalled(reply.pieces)
        slow.leave()
        until(lambda: up.cancelled == cancelled + 1)


def test_the_gateway_stays_responsive_meanwhile(gw: Running, up: Upstream, prompt: str) -> None:
    normal, base = up.script, up.calls
    with gate() as reads:
        up.script = lambda seen, number: blocks(320) if number == base + 1 else normal(seen, number)
        slow = lazy(gw, prompt, reads)
        listening(gw, 1)
        for number in range(20):
            begun = time.monotonic()
            assert outcome(gw.chat(f"{prompt} {number}")) == "miss"
            assert time.monotonic() - begun < 1
        slow.leave()
