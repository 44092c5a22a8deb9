"""Much of an answer at once: a client that reads as fast as it can is not slow, and what is whole is whole, however far
behind its clients are."""

import pytest

from gateway.flight import ROOM
from gateway.listener import MAX_BEHIND, PATIENCE
from tests.gateway.flying import DONE, Client, Hub, code_of, ended, passes, pieces, settled
from tests.gateway.scripted import END
from tests.gateway.timeless import timeless
from tests.support.live import TOKENS

BLOCK = 64 * 1024


def large(size: int) -> list[bytes]:
    """The events of an answer of this size, in blocks."""
    return pieces(" ".join(["x" * (BLOCK - 1)] * (size // BLOCK)))


async def take(client: Client, every: float) -> None:
    """Read a piece from time to time, to the end."""
    while not client.task.done():
        client.read(1)
        await passes(every)


@pytest.mark.parametrize("form", ["sse", "sse+usage"])
@pytest.mark.parametrize("first", ["stream", "json"])
@timeless
async def test_who_needs_a_moment_for_a_burst_gets_it(form: str, first: str) -> None:
    """Three MiB at once. The one that wants JSON is never behind; the other takes them in a fifth of its patience."""
    hub = Hub(max_entry=8 * MAX_BEHIND)
    waits = hub.client("json") if first == "json" else None
    await passes()
    reads = hub.client(form, reads=False)
    await passes()
    waits = waits or hub.client("json")
    await passes()
    answer = large(3 * MAX_BEHIND)
    hub.calls[0].hurried = True
    hub.calls[0].put(*answer, END)
    await take(reads, PATIENCE / 5 / len(answer))
    await ended(reads, waits)
    assert (code_of(reads), code_of(waits)) == ("ok", "ok")
    await settled(hub)


@timeless
async def test_but_only_a_moment() -> None:
    """Whoever takes long for it is let go, and no longer waited for."""
    hub = Hub(max_entry=8 * MAX_BEHIND)
    reads = hub.client("sse", reads=False)
    await passes()
    waits = hub.client("json")
    await passes()
    hub.calls[0].put(*large(4 * MAX_BEHIND), END)
    await take(reads, PATIENCE / 4)
    await ended(reads, waits)
    assert (code_of(reads), code_of(waits)) == ("client_too_slow", "ok")
    await settled(hub)


@pytest.mark.parametrize("form", ["sse", "sse+usage"])
@timeless
async def test_a_whole_answer_is_kept_although_its_only_client_leaves_before_the_end(form: str) -> None:
    """All of it has arrived, the end marker too: that its client has read little of it does not matter any more."""
    hub = Hub()
    reads = hub.client(form, reads=False)
    await passes()
    hub.calls[0].put(b"".join(large(2 * ROOM)), END)
    await passes()
    assert len(reads.content) <= BLOCK * 2
    reads.leave()
    await passes()
    books = await settled(hub)
    assert (books["consumed"], books["unserved"]) == (TOKENS, TOKENS)
    again = hub.client(form)
    await ended(again)
    assert again.headers["x-refrain-cache"] == "exact"
    assert len(hub.calls) == 1


@timeless
async def test_without_its_end_marker_it_is_not() -> None:
    """What might still have followed was for nobody."""
    hub = Hub()
    reads = hub.client("sse", reads=False)
    await passes()
    hub.calls[0].put(b"".join(large(2 * ROOM)).removesuffix(DONE))
    await passes()
    reads.leave()
    await settled(hub)
    again = hub.client("sse")
    await passes()
    assert len(hub.calls) == 2
    hub.calls[1].put(*pieces(), END)
    await ended(again)
    assert again.headers["x-refrain-cache"] == "miss"
    await settled(hub)
