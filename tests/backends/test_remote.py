"""The remote backend against servers that misbehave in every way that HTTP over a socket has."""

import asyncio
import gzip
import json
import socket
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.base import BackendError, BackendTimeout, Call, ConnectFailed, ReplyBroken, ReplyTooLarge
from backends.remote import DOWN_FOR, RemoteBackend
from tests.backends.raw_server import Connection, RawServer, Script, echo, raw_server

CALL = Call("chat/completions", b'{"model": "m"}')
KEY = "sk-canary-secret"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"


def piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@asynccontextmanager
async def backend(url: str, **settings: Any) -> AsyncIterator[RemoteBackend]:
    remote = RemoteBackend("fake", base_url=url, api_key=KEY, **settings)
    try:
        yield remote
    finally:
        await remote.aclose()


@asynccontextmanager
async def served(script: Script, **settings: Any) -> AsyncIterator[tuple[RawServer, RemoteBackend]]:
    async with raw_server(script) as server, backend(server.url, **settings) as remote:
        yield server, remote


async def whole(remote: RemoteBackend, call: Call = CALL) -> bytes:
    reply = await remote.send(call)
    try:
        return await reply.read()
    finally:
        await reply.aclose()


async def failure(remote: RemoteBackend, call: Call = CALL) -> BackendError:
    """What a call that must fail fails with. Its text is for clients: no address, no key."""
    with pytest.raises(BackendError) as caught:
        await asyncio.wait_for(whole(remote, call), 10)
    assert "127.0.0.1" not in str(caught.value)
    assert KEY not in str(caught.value)
    assert "'fake'" in str(caught.value)
    return caught.value


# What is sent


async def test_a_request_is_what_the_call_says_and_a_few_headers_of_ours() -> None:
    async with served(echo) as (server, remote):
        call = Call("chat/completions", '{"a": "é"}'.encode(), (("openai-beta", "x"),), "api-version=1&b=%20")
        assert json.loads(await whole(remote, call)) == {"ok": True}
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == "POST /v1/chat/completions?api-version=1&b=%20 HTTP/1.1"
    assert body == call.body
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(headers) == len(lines)
    assert headers.pop("host") == f"127.0.0.1:{server.port}"
    assert headers.pop("content-length") == str(len(body))
    assert headers.pop("accept") == "*/*"
    assert headers == {
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "refrain",
        "openai-beta": "x",
    }


async def test_without_a_key_there_is_no_authorization() -> None:
    async with raw_server(echo) as server:
        remote = RemoteBackend("fake", base_url=server.url + "/")
        await whole(remote, Call("models", b"", method="GET"))
        await remote.aclose()
    assert server.requests[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"authorization" not in server.requests[0].lower()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
async def test_no_proxy_of_the_environment_sees_a_call(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    async with raw_server(echo) as proxy, served(echo) as (server, remote):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        await whole(remote)
        assert (len(server.requests), len(proxy.requests)) == (1, 0)


@pytest.mark.parametrize(
    "call",
    [
        Call("chat/completions", b"{}", (("openai-beta", "x\r\nx-injected: 1"),)),
        Call("chat/completions", b"{}", (("openai-beta", "x\nx-injected: 1"),)),
        Call("chat/completions", b"{}", (("openai-beta", "x\rx-injected: 1"),)),
        Call("chat/completions", b"{}", (("openai-beta", "x\x00y"),)),
        Call("chat/completions", b"{}", (("a\r\nx-injected", "1"),)),
        Call("chat/completions", b"{}", (), "api-version=1 HTTP/1.1\r\nx-injected: 1\r\n\r\n"),
        Call("chat/completions", b"{}", (), "api-version=1\nx-injected: 1"),
        Call("chat/completions", b"{}", (), "api-version=\x00\x7f"),
    ],
)
async def test_nothing_in_a_call_can_add_a_header(call: Call) -> None:
    """No HTTP server lets such a call come in; if one ever did, it is refused, or sent harmlessly."""
    async with served(echo) as (server, remote):
        try:
            await whole(remote, call)
        except (BackendError, ValueError, httpx.InvalidURL):
            pass
        assert await whole(remote) == b'{"ok": true}'
    for request in server.requests:
        head = request.partition(b"\r\n\r\n")[0]
        names = [line.partition(b":")[0].strip().lower() for line in head.replace(b"\r", b"\n").split(b"\n")[1:]]
        assert b"x-injected" not in names


async def test_a_header_value_outside_ascii_is_no_failure() -> None:
    """HTTP servers let such bytes in (obs-text), read as Latin-1. What aiohttp makes of them is its own matter."""
    async with served(echo) as (server, remote):
        await whole(remote, Call("chat/completions", b"{}", (("anthropic-beta", "caf\xe9"),)))
        assert b"anthropic-beta: caf" in server.requests[0]


@settings(max_examples=15, deadline=None)
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), min_size=1, max_size=20))
@example("%0d%0aX-Injected:%201")
@example('api-version="<>`|{}[]^\\%%zz')
def test_a_query_of_any_text_stays_a_query(query: str) -> None:
    async def send() -> None:
        async with served(echo) as (server, remote):
            await whole(remote, Call("models", b"", query=query))
            first, _, rest = server.requests[0].partition(b"\r\n")
            target = first.removeprefix(b"POST ").removesuffix(b" HTTP/1.1")
            assert target.startswith(b"/v1/models?")
            assert b" " not in target
            assert rest.count(b"\r\n\r\n") == 1

    asyncio.run(send())


# Connections


async def test_a_connection_is_used_again() -> None:
    async with served(echo) as (server, remote):
        for _ in range(5):
            await whole(remote)
        assert (server.connections, len(server.requests)) == (1, 5)


async def test_calls_at_once_have_connections_of_their_own() -> None:
    async with served(echo) as (server, remote):
        await asyncio.gather(*(whole(remote) for _ in range(20)))
        assert len(server.requests) == 20
        assert server.connections <= 20


async def test_closing_closes_the_connections_and_may_happen_twice() -> None:
    async with served(echo) as (server, remote):
        await whole(remote)
        await server.until_open(1)
        await remote.aclose()
        await server.until_open(0)
        await remote.aclose()


async def test_a_connection_that_the_server_closed_while_it_was_idle_costs_no_call() -> None:
    async def once(connection: Connection) -> None:
        await connection.request()
        await connection.answer(b"{}", b"connection: keep-alive")  # and then closes all the same

    async with served(once) as (server, remote):
        for _ in range(3):
            assert await whole(remote) == b"{}"
            await server.until_open(0)
            await asyncio.sleep(0.01)


async def test_a_reply_closed_early_gives_the_connection_up() -> None:
    async def endless(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"data: 1\n\n"))
        await connection.gone()

    async with served(endless) as (server, remote):
        reply = await remote.send(CALL)
        async for chunk in reply.chunks():
            assert chunk == b"data: 1\n\n"
            break
        await reply.aclose()
        await server.until_open(0)
        await reply.aclose()


@pytest.mark.parametrize("phase", ["head", "body"])
async def test_cancelling_a_call_closes_its_connection(phase: str) -> None:
    async def slow(connection: Connection) -> None:
        await connection.request()
        if phase == "body":
            await connection.send(CHUNKED + piece(b"x"))
        await connection.gone()

    async with served(slow) as (server, remote):
        task = asyncio.create_task(whole(remote))
        await server.until_open(1)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until_open(0)
        assert remote.state() == "ready"


async def test_cookies_are_never_sent_back() -> None:
    async def baker(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.answer(b"{}", b"set-cookie: session=alice; Path=/")

    async with served(baker) as (server, remote):
        for _ in range(3):
            await whole(remote)
        assert all(b"cookie" not in request.lower() for request in server.requests)


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"307 Temporary Redirect", b"308 Permanent Redirect"])
async def test_a_redirect_is_a_reply_and_is_not_followed(status: bytes) -> None:
    async with raw_server(echo) as elsewhere:

        async def redirect(connection: Connection) -> None:
            await connection.request()
            await connection.answer(b"", f"location: {elsewhere.url}".encode(), status=status)

        async with served(redirect) as (server, remote):
            reply = await remote.send(CALL)
            assert reply.status == int(status[:3])
            await reply.aclose()
            assert (len(server.requests), elsewhere.connections) == (1, 0)


async def test_a_unix_socket(tmp_path: Path) -> None:
    server = RawServer(echo)
    path = str(tmp_path / "s")
    async with await asyncio.start_unix_server(server.serve, path) as listener:
        async with backend("http://engine/v1", uds=path) as remote:
            assert await whole(remote) == b'{"ok": true}'
        listener.close()
        await server.until_open(0)
    assert b"host: engine\r\n" in server.requests[0].lower()
    async with backend("http://engine/v1", uds=str(tmp_path / "gone")) as remote:
        assert isinstance(await failure(remote), ConnectFailed)


# Failures


async def test_refused() -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    async with backend(url) as remote:
        assert remote.state() == "ready"
        assert isinstance(await failure(remote), ConnectFailed)
        assert (remote.state(), remote.detail) == ("down", "cannot be reached")


async def test_a_backend_that_comes_back_is_ready_again() -> None:
    async with raw_server(echo) as server, backend(server.url) as remote:
        await whole(remote)
    async with backend(server.url) as remote:
        assert isinstance(await failure(remote), ConnectFailed)
        again = RawServer(echo)
        async with await asyncio.start_server(again.serve, "127.0.0.1", server.port, reuse_address=True) as listener:
            await whole(remote)
            assert remote.state() == "ready"
            await remote.aclose()
            listener.close()


async def test_a_name_that_does_not_exist() -> None:
    async with backend("http://no-such-host.invalid/v1") as remote:
        error = await failure(remote)
        assert isinstance(error, ConnectFailed)
        assert "no-such-host" not in str(error)


async def test_a_server_that_speaks_no_tls() -> None:
    async def plain(connection: Connection) -> None:
        await connection.answer(b"", status=b"400 Bad Request")

    async with raw_server(plain) as server, backend(server.url.replace("http:", "https:")) as remote:
        assert isinstance(await failure(remote), ConnectFailed)


@contextmanager
def full_backlog() -> Iterator[int]:
    """A listening port whose queue is full: the kernel answers no further connection."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        time.sleep(0.05)
        try:
            yield listener.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


async def test_connect_timeout() -> None:
    with full_backlog() as port:
        async with backend(f"http://127.0.0.1:{port}/v1", connect_timeout=0.2, first_byte_timeout=5) as remote:
            begun = time.perf_counter()
            error = await failure(remote)
            assert isinstance(error, BackendTimeout)
            assert error.phase == "connect"
            assert time.perf_counter() - begun < 3


async def test_first_byte_timeout() -> None:
    async def silent(connection: Connection) -> None:
        await connection.request()
        await connection.gone()

    async with served(silent, first_byte_timeout=0.2) as (server, remote):
        error = await failure(remote)
        assert isinstance(error, BackendTimeout)
        assert error.phase == "first_byte"
        await server.until_open(0)


async def test_a_head_that_drips_is_a_first_byte_timeout() -> None:
    async def dripping(connection: Connection) -> None:
        await connection.request()
        for byte in CHUNKED * 100:
            await connection.send(bytes([byte]))
            await asyncio.sleep(0.02)

    async with served(dripping, first_byte_timeout=0.2) as (_, remote):
        error = await failure(remote)
        assert isinstance(error, BackendTimeout)
        assert error.phase == "first_byte"


async def test_between_chunks_timeout() -> None:
    async def stuck(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"x"))
        await connection.gone()

    async with served(stuck, between_chunks_timeout=0.2) as (server, remote):
        reply = await remote.send(CALL)
        chunks = reply.chunks()
        assert await anext(chunks) == b"x"
        with pytest.raises(BackendTimeout) as caught:
            await anext(chunks)
        assert caught.value.phase == "between_chunks"
        await reply.aclose()
        await server.until_open(0)


async def test_a_slow_reader_is_no_slow_server() -> None:
    """Only waiting for the backend counts, not what the gateway's client makes us wait between two pieces."""

    async def two(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"a"))
        await asyncio.sleep(0.05)
        await connection.send(piece(b"b") + b"0\r\n\r\n")
        await connection.gone()

    async with served(two, between_chunks_timeout=0.2) as (_, remote):
        reply = await remote.send(CALL)
        found = []
        async for chunk in reply.chunks():
            found.append(chunk)
            await asyncio.sleep(0.3)
        await reply.aclose()
        assert found == [b"a", b"b"]


async def test_a_reply_that_takes_long_but_never_pauses_is_fine() -> None:
    async def steady(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED)
        for _ in range(8):
            await connection.send(piece(b"x"))
            await asyncio.sleep(0.05)
        await connection.send(b"0\r\n\r\n")

    async with served(steady, first_byte_timeout=0.3, between_chunks_timeout=0.3) as (_, remote):
        assert await whole(remote) == b"x" * 8


async def test_chunks_arrive_as_they_are_sent() -> None:
    go = asyncio.Event()

    async def stepwise(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece("data: é".encode()[:-1]))
        await go.wait()
        await connection.send(piece("é".encode()[-1:] + b"\n\n") + b"0\r\n\r\n")

    async with served(stepwise) as (_, remote):
        reply = await remote.send(CALL)
        chunks = reply.chunks()
        assert await anext(chunks) == "data: é".encode()[:-1]
        go.set()
        assert b"".join([c async for c in chunks]) == "é".encode()[-1:] + b"\n\n"
        await reply.aclose()


BROKEN = {
    "closed before the head": b"",
    "closed in the head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "garbage": b"\x00\x01\x02\r\n\r\n",
    "a status that is none": b"HTTP/1.1 abc OK\r\n\r\n",
    "shorter than its length": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
    "closed between chunks": CHUNKED + piece(b"data: 1\n\n"),
    "closed in a chunk": CHUNKED + b"ff\r\nabc",
    "a chunk size that is none": CHUNKED + b"xyz\r\nabc\r\n0\r\n\r\n",
    "no last chunk's end": CHUNKED + piece(b"abc") + b"0\r\n",
    "a length that is none": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nabc",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "an endless head": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000,
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"".join(b"x%d: 1\r\n" % i for i in range(200_000)),
    "gzip that is none": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_reply_that_breaks_is_reported_as_one(name: str) -> None:
    async def breaking(connection: Connection) -> None:
        await connection.request()
        await connection.send(BROKEN[name])

    async with served(breaking) as (_, remote):
        assert isinstance(await failure(remote), ReplyBroken)
        assert remote.state() == "ready"


async def test_a_reset_in_the_body_is_a_broken_reply() -> None:
    async def resetting(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED + piece(b"x"))
        raw = connection._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    async with served(resetting) as (_, remote):
        assert isinstance(await failure(remote), ReplyBroken)


async def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    async def old(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.0 200 OK\r\n\r\nabc")

    async with served(old) as (_, remote):
        assert await whole(remote) == b"abc"


# Sizes and encodings


async def test_a_huge_reply_is_given_up() -> None:
    async def huge(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED)
        for _ in range(100_000):
            await connection.send(piece(b"x" * 65_536))

    async with served(huge, max_reply=1_000_000) as (server, remote):
        assert isinstance(await failure(remote), ReplyTooLarge)
        await server.until_open(0)


@pytest.mark.parametrize(("size", "fits"), [(999, True), (1000, True), (1001, False)])
async def test_the_bound_is_exact(size: int, fits: bool) -> None:
    async def sized(connection: Connection) -> None:
        await connection.request()
        await connection.answer(b"x" * size)

    async with served(sized, max_reply=1000) as (_, remote):
        if fits:
            assert len(await whole(remote)) == size
        else:
            assert isinstance(await failure(remote), ReplyTooLarge)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_a_compressed_reply_is_read(encoding: str) -> None:
    text = b'{"a": "' + b"x" * 10_000 + b'"}'
    data = {"gzip": gzip.compress(text), "deflate": zlib.compress(text), "identity": text}[encoding]

    async def compressing(connection: Connection) -> None:
        await connection.request()
        await connection.answer(data, b"content-encoding: " + encoding.encode())

    async with served(compressing) as (_, remote):
        assert await whole(remote) == text


async def test_a_bomb_is_bounded_after_decompression() -> None:
    data = gzip.compress(b"\0" * 50_000_000)

    async def bomb(connection: Connection) -> None:
        await connection.request()
        await connection.answer(data, b"content-encoding: gzip")

    async with served(bomb, max_reply=1_000_000) as (_, remote):
        assert isinstance(await failure(remote), ReplyTooLarge)


async def test_every_status_is_a_reply_with_its_headers() -> None:
    async def teapot(connection: Connection) -> None:
        await connection.request()
        await connection.answer(
            b"short and stout", b"X-Request-ID: up-1", b"Retry-After: 7", status=b"418 I'm a teapot"
        )

    async with served(teapot) as (_, remote):
        reply = await remote.send(CALL)
        assert reply.status == 418
        assert (reply.headers["x-request-id"], reply.headers["retry-after"]) == ("up-1", "7")
        assert await reply.read() == b"short and stout"
        await reply.aclose()


async def test_an_interim_reply_is_skipped() -> None:
    async def patient(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await connection.answer(b"{}")

    async with served(patient) as (_, remote):
        assert await whole(remote) == b"{}"


# The rest


def test_the_revision_is_the_base_url_unless_told_otherwise() -> None:
    assert RemoteBackend("a", base_url="http://h/v1/").revision == "remote:http://h/v1"
    assert RemoteBackend("a", base_url="http://h/v1", revision="r").revision == "r"


def test_the_key_is_not_in_the_repr() -> None:
    assert KEY not in repr(RemoteBackend("a", base_url="http://h/v1", api_key=KEY))


async def test_a_backend_that_came_back_is_not_down_for_ever() -> None:
    """Nobody may be calling it, least of all when a balancer has heard that it is down."""
    now = 0.0
    remote = RemoteBackend("fake", base_url="http://127.0.0.1:9/v1", mono=lambda: now)
    with pytest.raises(ConnectFailed):
        await remote.send(CALL)
    assert remote.state() == "down"
    now = DOWN_FOR
    assert remote.state() == "ready"
    await remote.aclose()


async def test_a_closed_backend_opens_nothing_again() -> None:
    async with served(echo) as (server, remote):
        await whole(remote)
        await remote.aclose()
        with pytest.raises(ConnectFailed, match="taken out"):
            await remote.send(CALL)
        await server.until_open(0)
