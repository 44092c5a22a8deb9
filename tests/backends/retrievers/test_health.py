"""When a search service is asked at all: not while it is down, and not while it has asked to wait."""

import asyncio
import logging
from typing import Any

import pytest

from backends.retrievers.calling import ROOM
from backends.retrievers.health import BUSY_FOR, DOWN_FOR, LONGEST_BUSY, PATIENCE, wait_for
from tests.backends.raw_server import Connection
from tests.backends.retrievers.search_server import (
    HEAD,
    Answer,
    Clock,
    failure,
    hangs_after_its_head,
    in_the_end,
    raw,
    result,
    results,
    said,
    search,
    sends,
    service,
)

GOOD = results(result())


async def test_a_service_that_is_down_costs_no_waiting_until_a_call_finds_it_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    async with service(sends(b"", status=b"500 No"), mono=clock) as (server, retriever):
        why = ("unavailable", "the search service answered with status 500")
        assert [await said(retriever) for _ in range(PATIENCE)] == [why] * PATIENCE
        assert (retriever.state, retriever.detail) == ("down", why[1])
        assert await said(retriever) == why
        assert len(server.asked) == PATIENCE
        clock.now += DOWN_FOR
        assert (retriever.state, retriever.detail) == ("ready", "ready")
        await failure(retriever)  # this one decides: still down
        assert (retriever.state, len(server.asked)) == ("down", PATIENCE + 1)
        await failure(retriever)
        assert len(server.asked) == PATIENCE + 1
        clock.now += DOWN_FOR
        server.answer = GOOD
        assert len(await search(retriever)) == 1
        server.answer = sends(b"", status=b"500 No")
        for _ in range(PATIENCE - 1):
            await failure(retriever)
        assert retriever.state == "ready"
    assert caplog.messages == [
        "retriever wiki: the search service answered with status 500; not asked for 5 s",
        "retriever wiki: the search service answers again",
    ]


@pytest.mark.parametrize("ending", ["answered", "failed", "cancelled"])
async def test_one_call_decides_while_the_others_are_refused(ending: str) -> None:
    clock = Clock()
    gate = asyncio.Event()

    async def waits(connection: Connection) -> None:
        await gate.wait()
        await (GOOD if ending == "answered" else sends(b"", status=b"500 No"))(connection)

    async with service(sends(b"", status=b"500 No"), mono=clock) as (server, retriever):
        for _ in range(PATIENCE):
            await failure(retriever)
        clock.now += DOWN_FOR
        server.answer = waits
        deciding = asyncio.create_task(search(retriever))
        await in_the_end(lambda: len(server.asked) == PATIENCE + 1)
        assert retriever.state == "down"
        for _ in range(3):
            assert (await failure(retriever)).reason == "unavailable"
        assert len(server.asked) == PATIENCE + 1
        if ending == "cancelled":
            deciding.cancel()
        gate.set()
        await asyncio.gather(deciding, return_exceptions=True)
        assert retriever.state == ("down" if ending == "failed" else "ready")
        server.answer = GOOD
        if ending == "failed":
            clock.now += DOWN_FOR
        assert len(await search(retriever)) == 1


@pytest.mark.parametrize(
    "answer",
    [
        sends(b"", status=b"401 No"),
        sends(b"", status=b"404 No"),
        raw(),
        raw(HEAD + b"content-length: 100\r\n\r\n", b"{"),
        sends(b"", b"location: /", status=b"302 Go"),
    ],
    ids=["401", "404", "closed", "half a body", "redirect"],
)
async def test_what_says_something_about_the_service_counts(answer: Answer) -> None:
    async with service(answer) as (_, retriever):
        for _ in range(PATIENCE):
            await failure(retriever)
        assert retriever.state == "down"


async def test_a_service_that_hangs_counts() -> None:
    async with service(hangs_after_its_head) as (_, retriever):
        await asyncio.gather(*(failure(retriever, deadline=0.1) for _ in range(PATIENCE)))
        assert (retriever.state, retriever.detail) == ("down", "the search service did not answer in time")


@pytest.mark.parametrize(
    "answer",
    [sends(b"", status=b"400 No"), sends(b"", status=b"414 No"), sends(b"no JSON"), sends(b" " * 2 * ROOM)],
    ids=["400", "414", "no JSON", "too large"],
)
async def test_nobody_can_shut_it_off_by_asking_what_it_cannot_answer(answer: Answer) -> None:
    async with service(answer) as (server, retriever):
        for _ in range(PATIENCE + 2):
            await failure(retriever)
        assert retriever.state == "ready"
        server.answer = GOOD
        assert len(await search(retriever)) == 1


async def test_a_busy_service_is_left_alone_for_as_long_as_it_says() -> None:
    clock = Clock()
    answer = sends(b"", b"Retry-After: 7", status=b"429 Later")
    async with service(answer, mono=clock) as (server, retriever):
        assert await said(retriever) == ("busy", "the search service has too much to do (status 429)")
        for _ in range(PATIENCE):
            assert await said(retriever) == ("busy", "the search service has asked to wait")
        assert (len(server.asked), retriever.state) == (1, "ready")
        clock.now += 6.9
        assert (await failure(retriever)).reason == "busy"
        assert len(server.asked) == 1
        clock.now += 0.2
        server.answer = GOOD
        assert len(await search(retriever)) == 1


NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, BUSY_FOR),
        ("3", 3),
        ("0", 0),
        ("31", LONGEST_BUSY),
        ("9" * 5_000, LONGEST_BUSY),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10),
        ("Tue, 14 Nov 2023 22:13:30 -0000", 10),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("Tue, 14 Nov 2033 22:13:00 GMT", LONGEST_BUSY),
        ("-5", BUSY_FOR),
        ("1.5", BUSY_FOR),
        ("nan", BUSY_FOR),
        ("²", BUSY_FOR),
        ("soon", BUSY_FOR),
        ("", BUSY_FOR),
        ("Tue, 99 Nov 2023 99:99:99 GMT", BUSY_FOR),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_how_long_it_asks_to_wait(header: Any, seconds: float) -> None:
    assert wait_for(header, NOW) == seconds
