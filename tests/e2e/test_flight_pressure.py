"""Much at once, and readers that stop: what one client does not take keeps nobody else from the answer."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import Running, config_text, running
from tests.support.live import FORMS, SSE, call, error_event, gate, listening, settled, spoken
from tests.support.traffic import fixed, text_of, until, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, chat_chunks, sse

Json = dict[str, Any]
BLOCK = 64 * 1024
SMALL = 4096  # of a socket's receive buffer; the other end's send buffer takes some megabytes all the same
MANY = 240  # blocks: more than all buffers on the way hold


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
            self.sent += 1
            yield piece


def parts(count: int) -> list[bytes]:
    """The events of an answer of `count` blocks of 64 KiB. It ends with `length`, so it is not stored: that would take
    long."""
    answer = chat_answer(" ".join(["x" * (BLOCK - 1)] * count))
    answer["choices"][0]["finish_reason"] = "length"
    return [sse([c], done=False) for c in chat_chunks(answer, include_usage=True)] + [b"data: [DONE]\n\n"]


def size(response: httpx.Response) -> int:
    """The length of a whole answer's text."""
    if response.headers["content-type"] != SSE:
        return len(text_of(response))
    assert response.content.endswith(b"data: [DONE]\n\n"), response.content[-300:]
    return len(spoken(response.content))


def stalled(pieces: Counted) -> None:
    """Wait until no more of these are sent, although there are more."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 0.3:
        if pieces.sent != before:
            before, since = pieces.sent, time.monotonic()
        time.sleep(0.01)
    assert 0 < pieces.sent < len(pieces)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["sse", "sse+usage"])
def test_whoever_joins_a_leader_that_has_stopped_reading_waits_for_nothing(
    gw: Running, up: Upstream, prompt: str, form: str
) -> None:
    """The upstream waits for the leader alone; for one that wants JSON there is no reason to."""
    pieces = Counted(parts(MANY))
    with gate() as reads:
        up.script = fixed(Reply(pieces, content_type=SSE))
        with upstream_calls(up, 1):
            leader = call(gw, prompt, waits=reads, buffer=SMALL, **FORMS[form])
            until(lambda: pieces.sent)
            stalled(pieces)
            joiner = call(gw, prompt, **FORMS["json"])
            assert size(joiner.result(10)) == MANY * BLOCK - 1
            assert not leader.content
        assert joiner.outcome == "joined"
        reads.set()
        # By then it was far behind.
        assert error_event(leader.result())["code"] == "client_too_slow"


@pytest.mark.parametrize("leader", FORMS)
def test_a_burst_is_nobody_s_fault(gw: Running, up: Upstream, prompt: str, leader: str) -> None:
    """Several MiB at once, to two that read as fast as they can and one that wants JSON, which is never behind."""
    forms = [leader, *(form for form in ("json", "sse", "sse+usage") if form != leader)]
    role, *rest = parts(64)
    with gate() as go:
        up.script = fixed(Reply([role, b"".join(rest)], content_type=SSE, gates={1: go}))
        with upstream_calls(up, 1):
            callers = []
            for number, form in enumerate(forms, 1):
                callers.append(call(gw, prompt, **FORMS[form]))
                listening(gw, number)
            go.set()
            assert [size(c.result()) for c in callers] == [64 * BLOCK - 1] * 3


def test_also_for_one_that_joins_in_the_middle_of_it(gw: Running, up: Upstream, prompt: str) -> None:
    """Its own share of what had come is given time, in the form in which it wants it."""
    role, *rest = parts(96)
    with gate() as one, gate() as two:
        up.script = fixed(
            Reply([role, b"".join(rest[:48]), b"".join(rest[48:])], content_type=SSE, gates={1: one, 2: two})
        )
        callers = [call(gw, prompt, **FORMS["sse"])]
        listening(gw, 1)
        one.set()
        until(lambda: len(callers[0].content) > 48 * BLOCK)
        callers += [call(gw, prompt, **FORMS[form]) for form in ("json", "sse+usage", "sse")]
        listening(gw, 4)
        two.set()
        assert [size(c.result()) for c in callers] == [96 * BLOCK - 1] * 4
