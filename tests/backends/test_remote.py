"""What the remote backend sends, what it makes of a reply, and how it uses connections."""

import asyncio
import gzip
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.base import BackendError, Call, ConnectFailed, ReplyTooLarge
from backends.remote import PIECE, RemoteBackend
from tests.backends.calling import CALL, CHUNKED, KEY, backend, failure, piece, served, whole
from tests.backends.raw_server import Connection, RawServer, echo, raw_server

# What is sent


async def test_a_request_is_what_the_call_says_and_a_few_headers_of_ours() -> None:
    async with served(echo) as (server, remote):
        call = Call("chat/completions", '{"a": "é"}'.encode(), (("openai-beta", "x"),), "api-version=1&b=%20")
        call = replace(call, prefix_salt="a" * 32, party="b" * 32, priority="batch")  # not for other people's servers
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
        except (BackendError, ValueError):
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
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20))
@example("api-version=1#2")
@example("%0d%0aX-Injected:%201")
@example('api-version="<>`|{}[]^\\%%zz')
def test_a_query_of_any_text_stays_a_query(query: str) -> None:
    async def send() -> None:
        async with served(echo) as (server, remote):
            await whole(remote, Call("models", b"", query=query))
            first, _, rest = server.requests[0].partition(b"\r\n")
            target = first.removeprefix(b"POST ").removesuffix(b" HTTP/1.1")
            assert target.startswith(b"/v1/models?")
            assert not {b" ", b"#"} & {target[i : i + 1] for i in range(len(target))}
            assert target.count(b"?") == 1 + query.count("?")
            assert target.endswith(b"%232") or query != "api-version=1#2"
            assert rest.count(b"\r\n\r\n") == 1

    asyncio.run(send())


@pytest.mark.parametrize("size", [PIECE, PIECE + 1, 5 * PIECE + 17])
async def test_a_large_body_goes_out_in_pieces_and_arrives_whole(size: int) -> None:
    body = os.urandom(size)
    async with served(echo) as (server, remote):
        for _ in range(2):
            await whole(remote, Call("chat/completions", body))
        assert server.connections == 1
    for request in server.requests:
        head, _, received = request.partition(b"\r\n\r\n")
        assert received == body
        assert head.lower().count(b"content-length") == 1
        assert b"transfer-encoding" not in head.lower()


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


async def test_a_connection_that_the_server_closed_while_it_was_idle_costs_no_call() -> None:
    async def once(connection: Connection) -> None:
        await connection.request()
        await connection.answer(b"{}", b"connection: keep-alive")  # and then closes all the same

    async with served(once) as (server, remote):
        for _ in range(3):
            assert await whole(remote) == b"{}"
            await server.until_open(0)
            await asyncio.sleep(0.01)


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


@pytest.mark.parametrize("text", [b'{"a": "' + b"x" * 10_000 + b'"}', os.urandom(600_000) + bytes(600_000)])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_a_compressed_reply_is_read(encoding: str, text: bytes) -> None:
    data = {"gzip": gzip.compress(text), "deflate": zlib.compress(text), "identity": text}[encoding]

    async def compressing(connection: Connection) -> None:
        await connection.request()
        await connection.answer(data, b"content-encoding: " + encoding.encode())

    async with served(compressing) as (_, remote):
        reply = await remote.send(CALL)
        found = []
        async for chunk in reply.chunks():
            found.append(chunk)
            await asyncio.sleep(0)  # a reader that lets the buffer fill
        await reply.aclose()
        assert b"".join(found) == text


async def test_a_server_waits_for_a_reader_that_does_not_read() -> None:
    """What nobody reads must not pile up in our memory."""
    sent = 0

    async def fast(connection: Connection) -> None:
        nonlocal sent
        await connection.request()
        await connection.send(CHUNKED)
        for _ in range(800):
            await connection.send(piece(bytes(65_536)))
            sent += 65_536
        await connection.send(b"0\r\n\r\n")

    async with served(fast, max_reply=2**30) as (_, remote):
        reply = await remote.send(CALL)
        before = -1
        while before < sent:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 20_000_000  # what the kernel holds on both sides
        assert len(await reply.read()) == 800 * 65_536
        await reply.aclose()


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
        assert dict(reply.headers) == {"content-length": "15", "x-request-id": "up-1", "retry-after": "7"}
        assert await reply.read() == b"short and stout"
        await reply.aclose()


async def test_an_interim_reply_is_skipped() -> None:
    async def patient(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await connection.answer(b"{}")

    async with served(patient) as (_, remote):
        assert await whole(remote) == b"{}"


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


# The rest


def test_the_revision_is_the_base_url_unless_told_otherwise() -> None:
    assert RemoteBackend("a", base_url="http://h/v1/").revision == "remote:http://h/v1"
    assert RemoteBackend("a", base_url="http://h/v1", revision="r").revision == "r"


def test_the_key_is_not_in_the_repr() -> None:
    assert KEY not in repr(RemoteBackend("a", base_url="http://h/v1", api_key=KEY))


async def test_a_closed_backend_opens_nothing_again() -> None:
    async with served(echo) as (server, remote):
        await whole(remote)
        await remote.aclose()
        with pytest.raises(ConnectFailed, match="taken out"):
            await remote.send(CALL)
        await server.until_open(0)
