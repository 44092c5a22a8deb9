"""A search service that fails in every way: a clear error in bounded time and memory, and no secret in it."""

import asyncio
import gzip
import json
import logging
import socket
import threading
import time
import tracemalloc

import pytest

from backends.retrievers import RetrieverError
from backends.retrievers.calling import (
    IN_THREAD,
    LONGEST_REQUEST,
    MOST_BYTES,
    MOST_CONNECTIONS,
    ROOM,
    ROOM_PER_RESULT,
    Caller,
    Request,
)
from backends.retrievers.health import PATIENCE
from backends.retrievers.service import ServiceRetriever
from tests.backends.raw_server import Connection
from tests.backends.retrievers.search_server import (
    HEAD,
    SECRETS,
    SOON,
    Answer,
    failure,
    hang,
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
BROKEN = ("unavailable", "the search service did not complete its answer")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(sends(b"", status=b"401 No"), ("failed", "refused the credential (status 401)"), id="401"),
        pytest.param(sends(b"", status=b"403 No"), ("failed", "refused the credential (status 403)"), id="403"),
        pytest.param(sends(b"", status=b"404 No"), ("failed", "answered with status 404"), id="404"),
        pytest.param(sends(b"", status=b"400 No"), ("failed", "did not accept the question (status 400)"), id="400"),
        pytest.param(sends(b"", status=b"414 No"), ("failed", "did not accept the question (status 414)"), id="414"),
        pytest.param(sends(b"", status=b"429 No"), ("busy", "has too much to do (status 429)"), id="429"),
        pytest.param(sends(b"", status=b"500 No"), ("unavailable", "answered with status 500"), id="500"),
        pytest.param(sends(b"", status=b"503 No"), ("unavailable", "answered with status 503"), id="503"),
        pytest.param(sends(b"{}", status=b"201 No"), ("failed", "answered with status 201"), id="201"),
        pytest.param(
            sends(b"what is secret", status=b"500 No"), ("unavailable", "answered with status 500"), id="text"
        ),
        pytest.param(raw(), BROKEN, id="closed at once"),
        pytest.param(raw(b"HTTP/1.1 200"), BROKEN, id="half a status line"),
        pytest.param(raw(HEAD + b"content-le"), BROKEN, id="half a head"),
        pytest.param(raw(HEAD + b"content-length: 100\r\n\r\n", b'{"results": []}'), BROKEN, id="half a body"),
        pytest.param(raw(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"), BROKEN, id="chunks without end"),
        pytest.param(raw(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n"), BROKEN, id="no chunk"),
        pytest.param(raw(b"\x16\x03\x01\x00\x00 garbage\r\n\r\n"), BROKEN, id="no HTTP"),
        pytest.param(raw(HEAD + b"content-length: -1\r\n\r\n{}"), BROKEN, id="a length below zero"),
        pytest.param(raw(HEAD + b"x: " + b"y" * 100_000 + b"\r\n\r\n"), BROKEN, id="a huge header"),
        pytest.param(raw(HEAD + b"x: y\r\n" * 100_000 + b"\r\n"), BROKEN, id="headers without end"),
        pytest.param(sends(b"no gzip", b"content-encoding: gzip"), BROKEN, id="no gzip"),
        pytest.param(hang, ("deadline", "did not answer in time"), id="hangs before its head"),
    ],
)
async def test_each_fault_has_its_error(answer: Answer, expected: tuple[str, str]) -> None:
    reason, message = expected
    async with service(answer) as (_, retriever):
        slow = reason == "deadline"
        assert await said(retriever, deadline=0.2 if slow else SOON) == (
            reason, message if message.startswith("the ") else f"the search service {message}"
        )  # fmt: skip
        assert retriever.state == "ready"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_redirect_is_followed(status: int, method: str) -> None:
    async with service(GOOD) as (elsewhere, _):
        where = b"location: " + elsewhere.url.encode() + b"/find"
        async with service(sends(b"", where, status=b"%d Go" % status), method=method) as (_, retriever):
            assert await said(retriever) == (
                "failed", f"the search service answered with a redirect (status {status}), which is not followed"
            )  # fmt: skip
        assert elsewhere.asked == []


async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and it does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        retriever = ServiceRetriever("wiki", url=url)
        assert await said(retriever) == ("unavailable", "the search service cannot be reached")
        await retriever.aclose()


async def test_a_name_that_does_not_exist() -> None:
    retriever = ServiceRetriever("wiki", url="http://nobody.invalid/")
    assert await said(retriever) == ("unavailable", "the search service cannot be reached")
    await retriever.aclose()


async def slowly(connection: Connection) -> None:
    """A byte now and then: no single wait is long."""
    await connection.send(HEAD + b"content-length: 1000\r\n\r\n")
    for _ in range(1_000):
        await connection.send(b" ")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("answer", [slowly, hangs_after_its_head])
async def test_the_deadline_is_over_all(answer: Answer) -> None:
    async with service(answer) as (server, retriever):
        began = time.monotonic()
        assert await said(retriever, deadline=0.3) == ("deadline", "the search service did not answer in time")
        assert 0.25 < time.monotonic() - began < 5
        await server.raw.until_open(0)  # the connection is not used again


async def test_no_time_left() -> None:
    async with service(GOOD) as (server, retriever):
        assert (await failure(retriever, deadline=0)).reason == "deadline"
        assert server.asked == []


# Size


async def test_an_answer_without_end_is_not_read() -> None:
    sent = 0

    async def endless(connection: Connection) -> None:
        nonlocal sent
        await connection.send(HEAD + b"content-length: 1000000000\r\n\r\n")
        while sent < 1_000_000_000:
            await connection.send(b" " * 65536)
            sent += 65536

    async with service(endless) as (_, retriever):
        most = ROOM + 4 * ROOM_PER_RESULT
        assert await said(retriever) == ("bad_results", f"the answer of the search service is over {most} bytes")
        assert sent < 32 * most
        assert str(await failure(retriever, top_k=1_000)).endswith(f"over {MOST_BYTES} bytes")


async def test_a_bomb_does_not_go_off() -> None:
    bomb = gzip.compress(b" " * 2**26)
    async with service(sends(bomb, b"content-encoding: gzip")) as (_, retriever):
        tracemalloc.start()
        try:
            assert (await failure(retriever)).reason == "bad_results"
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2**23


async def test_a_service_that_compresses_all_the_same() -> None:
    body = gzip.compress(json.dumps({"results": [result()]}).encode())
    async with service(sends(body, b"content-encoding: gzip")) as (_, retriever):
        assert len(await search(retriever)) == 1


@pytest.mark.parametrize(("size", "beside"), [(IN_THREAD, False), (IN_THREAD + 1, True)])
async def test_a_large_answer_is_read_beside_the_event_loop(size: int, beside: bool) -> None:
    async with service(sends(b" " * size)) as (server, _):
        caller = Caller("wiki", "the search service", {}, time.monotonic)
        request = Request("GET", server.url)
        thread = await caller.call(request, lambda data: threading.get_ident(), top_k=1, deadline=SOON)
        assert (thread != threading.get_ident()) == beside
        await caller.aclose()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_question_that_is_too_long_is_not_sent(method: str) -> None:
    async with service(GOOD, method=method) as (server, retriever):
        assert len(await search(retriever, "x" * 7_000)) == 1
        error = await failure(retriever, "x" * LONGEST_REQUEST)
        assert (error.reason, str(error)) == ("failed", "the question is too long for the search service")
        assert len(server.asked) == 1


# What is kept between calls


async def test_no_cookie_is_kept_and_no_proxy_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    answer = sends(b'{"results": []}', b"set-cookie: who=alice; path=/")
    async with service(answer) as (server, retriever):
        await search(retriever)
        await search(retriever)
        assert len(server.asked) == 2
        assert not any("cookie" in asked.headers for asked in server.asked)


async def test_many_at_once_share_a_bounded_number_of_connections() -> None:
    gate = asyncio.Event()

    async def waits(connection: Connection) -> None:
        await gate.wait()
        await GOOD(connection)

    async with service(waits) as (server, retriever):
        calls = [asyncio.create_task(search(retriever)) for _ in range(MOST_CONNECTIONS + 20)]
        await in_the_end(lambda: len(server.asked) == MOST_CONNECTIONS)
        await asyncio.sleep(0.05)
        assert server.raw.connections == MOST_CONNECTIONS
        gate.set()
        assert [len(found) for found in await asyncio.gather(*calls)] == [1] * len(calls)


async def test_a_call_that_is_given_up_leaves_nothing_behind() -> None:
    async with service(hang) as (server, retriever):
        call = asyncio.create_task(search(retriever))
        await server.raw.until_open(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.raw.until_open(0)


async def test_closing_ends_the_calls_in_flight_and_refuses_others() -> None:
    async with service(hang) as (server, retriever):
        call = asyncio.create_task(search(retriever))
        await in_the_end(lambda: len(server.asked) == 1)
        await retriever.aclose()
        with pytest.raises(RetrieverError, match="did not complete its answer"):
            await call
        assert await said(retriever) == (
            "unavailable", "the search service has been taken out of the configuration"
        )  # fmt: skip
        assert (retriever.state, retriever.detail) == ("down", "stopped")


async def test_a_credential_in_the_url_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with service(sends(b"", status=b"500 No")) as (server, _):
        url = server.url.replace("http://", "http://alice:sk-very-secret@") + "/?key=sk-very-secret"
        retriever = ServiceRetriever("wiki", url=url)
        for _ in range(PATIENCE + 1):
            await failure(retriever)
        await retriever.aclose()
        assert len(server.asked) == PATIENCE
        assert [record for record in caplog.messages if any(secret in record for secret in SECRETS)] == []
        assert "sk-very-secret" not in retriever.revision
