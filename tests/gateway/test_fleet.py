"""Backends over a reload: kept where nothing changed, closed when the last call on them has ended, never leaked."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from backends.base import Backend, Call, Overloaded, ReplyBroken
from gateway.config import Config
from gateway.config.load import parse_config
from gateway.fleet import RETIRE_AFTER, Fleet, build, limits, used_backends
from gateway.gate import Gate, Limits
from tests.backends.raw_server import Connection, RawServer, echo, raw_server
from tests.support.upstream import Reply, Upstream, upstream

CALL = Call("chat/completions", b"{}")


def config(**urls: str | tuple[str, str]) -> Config:
    """Backends by name: a URL, or a URL and more settings."""
    lines = ["auth: {required: false}", 'store: {url: "memory://"}', "backends:"]
    for name, url in urls.items():
        base, more = (url, "") if isinstance(url, str) else url
        lines.append(f'  {name}: {{kind: remote, base_url: "{base}"{more}}}')
    lines.append("models:")
    lines += [f'  "{name}-*": {name}' for name in urls]
    return parse_config("\n".join(lines), {})


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.aclose()


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    async with raw_server(echo) as server:
        yield server


@pytest.fixture(scope="module")
def scripted() -> Iterator[Upstream]:
    with upstream() as app:
        yield app


async def ask(backend: Backend) -> bytes:
    reply = await backend.send(CALL)
    try:
        return await reply.read()
    finally:
        await reply.aclose()


async def close(backend: Backend) -> None:
    """So that what a failing test found leaking does not disturb the tests after it."""
    await backend.aclose()


async def until_idle(scripted: Upstream) -> None:
    for _ in range(500):
        if not scripted.open:
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("the upstream is still answering")


async def queued(fleet: Fleet, *, running: int, waiting: int) -> Gate:
    """The gate of the one backend, once so many calls run and wait there."""
    gate = fleet.gates()["one"]
    for _ in range(500):
        if (gate.running["interactive"], gate.waiting["interactive"]) == (running, waiting):
            return gate
        await asyncio.sleep(0.01)
    raise TimeoutError(repr(gate))


async def test_an_unchanged_backend_keeps_its_connections(server: RawServer, fleet: Fleet) -> None:
    first = await fleet.apply(config(one=server.url))
    await ask(first["one"])
    again = await fleet.apply(config(one=server.url, two=server.url))
    assert again["one"] is first["one"]
    await ask(again["one"])
    assert server.connections == 1
    assert again.keys() == {"one", "two"}
    assert (again["two"].name, again["two"].state()) == ("two", "ready")


async def test_a_new_price_does_not_replace_a_running_backend(server: RawServer, fleet: Fleet) -> None:
    first = await fleet.apply(config(one=server.url))
    assert (await fleet.apply(config(one=(server.url, ", hourly_cost: 1"))))["one"] is first["one"]


@pytest.mark.parametrize("more", [", api_key: sk-new", ", timeouts: {first_byte: 9s}"], ids=["key", "timeout"])
async def test_a_changed_backend_is_a_new_one_and_the_idle_old_one_is_closed(
    server: RawServer, fleet: Fleet, more: str
) -> None:
    first = await fleet.apply(config(one=server.url))
    await ask(first["one"])
    second = await fleet.apply(config(one=(server.url, more)))
    assert second["one"] is not first["one"]
    await server.until_open(0)
    await ask(second["one"])
    assert server.connections == 2


async def test_a_backend_that_is_gone_is_closed(server: RawServer, fleet: Fleet) -> None:
    first = await fleet.apply(config(one=server.url))
    await ask(first["one"])
    await fleet.apply(config(two=server.url))
    await server.until_open(0)


async def test_a_call_in_progress_ends_undisturbed_by_a_reload(fleet: Fleet, scripted: Upstream) -> None:
    pieces = [b"data: %d\n\n" % i for i in range(8)]
    scripted.script = lambda seen, number: Reply(list(pieces), content_type="text/event-stream", pause=0.02)
    backends = await fleet.apply(config(one=scripted.url))
    reply = await backends["one"].send(CALL)
    chunks = reply.chunks()
    got = [await anext(chunks)]
    await fleet.apply(config(two=scripted.url))
    got += [chunk async for chunk in chunks]
    await reply.aclose()
    assert b"".join(got) == b"".join(pieces)
    await until_idle(scripted)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("kind: remote, base_url: 'http://h/v1'", Limits(None, 8, 64)),
        ("kind: remote, base_url: 'http://h/v1', max_running: 1, max_queue: 5", Limits(1, 1, 5)),
        ("kind: remote, base_url: 'http://h/v1', max_running: 9", Limits(9, 4, 64)),
        ("kind: local, max_running: 3, max_queue: 7", Limits(None, 3, 7)),
    ],
)
def test_how_many_calls_a_backend_gets(backend: str, expected: Limits) -> None:
    found = parse_config(f"auth: {{required: false}}\nbackends: {{one: {{{backend}}}}}", {})
    assert limits(found.backends["one"]) == expected


async def test_who_waits_goes_on_waiting_for_the_backend_it_chose(fleet: Fleet, scripted: Upstream) -> None:
    go = threading.Event()
    scripted.script = lambda seen, number: Reply([b"x"], gate=go)
    one_at_once = ", max_running: 1"
    backends = await fleet.apply(config(one=(scripted.url, one_at_once)))
    asking = [asyncio.create_task(ask(backends["one"])) for _ in range(3)]
    old = await queued(fleet, running=1, waiting=2)
    await fleet.apply(config(one=(scripted.url, f"{one_at_once}, api_key: sk-new")))
    assert fleet.gates()["one"] is not old
    await asyncio.sleep(RETIRE_AFTER + 0.1)
    assert old.waiting["interactive"] == 2
    go.set()
    assert await asyncio.gather(*asking) == [b"x"] * 3
    await until_idle(scripted)


async def test_a_new_limit_replaces_no_backend_and_holds_at_once(fleet: Fleet, scripted: Upstream) -> None:
    go = threading.Event()
    scripted.script = lambda seen, number: Reply([b"x"], gate=go)
    backends = await fleet.apply(config(one=(scripted.url, ", max_running: 1")))
    asking = [asyncio.create_task(ask(backends["one"])) for _ in range(3)]
    await queued(fleet, running=1, waiting=2)
    assert (await fleet.apply(config(one=(scripted.url, ", max_running: 2"))))["one"] is backends["one"]
    await queued(fleet, running=2, waiting=1)
    go.set()
    assert await asyncio.gather(*asking) == [b"x"] * 3
    await queued(fleet, running=0, waiting=0)


async def test_a_call_that_fails_or_is_cancelled_gives_its_place_back(fleet: Fleet, scripted: Upstream) -> None:
    go = threading.Event()
    scripted.script = lambda seen, number: Reply([b"x"], gate=go, cut=number % 2 == 0)
    backends = await fleet.apply(config(one=(scripted.url, ", max_running: 1")))
    asking = [asyncio.create_task(ask(backends["one"])) for _ in range(4)]
    await queued(fleet, running=1, waiting=3)
    asking[0].cancel()
    go.set()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [result for result in results if result == b"x"]
    assert [result for result in results if isinstance(result, ReplyBroken)]
    await queued(fleet, running=0, waiting=0)
    await until_idle(scripted)


async def test_a_refusal_is_counted_and_outlives_the_backend(fleet: Fleet, scripted: Upstream) -> None:
    go = threading.Event()
    scripted.script = lambda seen, number: Reply([b"x"], gate=go)
    backends = await fleet.apply(config(one=(scripted.url, ", max_running: 1, max_queue: 1")))
    asking = [asyncio.create_task(ask(backends["one"])) for _ in range(3)]
    with pytest.raises(Overloaded):
        await asking[2]
    models = await backends["one"].send(Call("models", b"", method="GET"))  # is no work
    await models.aclose()
    await fleet.apply(config(two=scripted.url))
    assert fleet.refused == {("one", "interactive", "backend_overloaded"): 1}
    go.set()
    assert await asyncio.gather(*asking[:2]) == [b"x"] * 2
    await until_idle(scripted)


async def test_the_last_of_several_calls_closes_the_old_backend(fleet: Fleet) -> None:
    release = [asyncio.Event(), asyncio.Event()]

    async def held(connection: Connection) -> None:
        number = upstream_server.connections - 1
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n")
        await release[number].wait()
        await connection.send(b"x")
        await connection.gone()

    async with raw_server(held) as upstream_server:
        backends = await fleet.apply(config(one=upstream_server.url))
        replies = [await backends["one"].send(CALL) for _ in range(2)]
        await fleet.apply(config(two=upstream_server.url))
        release[0].set()
        assert await replies[0].read() == b"x"
        await replies[0].aclose()
        await replies[0].aclose()  # closing twice must not count twice
        await asyncio.sleep(RETIRE_AFTER + 0.1)
        assert upstream_server.open == 2
        release[1].set()
        assert await replies[1].read() == b"x"
        await replies[1].aclose()
        await upstream_server.until_open(0)


async def test_a_call_that_fails_does_not_keep_its_backend_open(fleet: Fleet) -> None:
    async def once(connection: Connection) -> None:
        await connection.request()
        if upstream_server.connections == 1:  # the others are closed before they get an answer
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{")
            await connection.gone()

    async with raw_server(once) as upstream_server:
        backends = await fleet.apply(config(one=upstream_server.url))
        open_reply = await backends["one"].send(CALL)
        failing = await asyncio.gather(*(backends["one"].send(CALL) for _ in range(3)), return_exceptions=True)
        assert [type(f) for f in failing] == [ReplyBroken] * 3
        await fleet.apply(config(two=upstream_server.url))
        await asyncio.sleep(RETIRE_AFTER + 0.1)
        assert upstream_server.open == 1
        await open_reply.aclose()
        await upstream_server.until_open(0)


async def test_a_cancelled_call_does_not_keep_its_backend_open(fleet: Fleet) -> None:
    async def silent(connection: Connection) -> None:
        await connection.request()
        await connection.gone()

    async with raw_server(silent) as upstream_server:
        backends = await fleet.apply(config(one=upstream_server.url))
        task = asyncio.create_task(backends["one"].send(CALL))
        await upstream_server.until_open(1)
        await fleet.apply(config(two=upstream_server.url))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upstream_server.until_open(0)


async def test_a_reload_just_before_the_end_leaves_nothing_open(server: RawServer) -> None:
    fleet = Fleet()
    backends = await fleet.apply(config(one=server.url))
    try:
        await ask(backends["one"])
        await fleet.apply(config(two=server.url))
        await fleet.aclose()
        await server.until_open(0)
    finally:
        await close(backends["one"])


async def test_the_end_closes_everything_even_under_a_call(server: RawServer, scripted: Upstream) -> None:
    scripted.script = lambda seen, number: Reply([b"x"] * 500, pause=0.01)
    fleet = Fleet()
    backends = await fleet.apply(config(one=server.url, two=scripted.url))
    await ask(backends["one"])
    reply = await backends["two"].send(CALL)
    await fleet.apply(config(one=server.url))  # `two` waits for its call
    await asyncio.sleep(0.01)
    await fleet.aclose()
    await server.until_open(0)
    await until_idle(scripted)
    await reply.aclose()


async def test_a_request_that_began_under_the_old_configuration_may_still_call(server: RawServer) -> None:
    """Between taking its snapshot and calling, a request waits (store, parsing). What it opens then must be closed
    like everything else."""
    fleet = Fleet()
    old = await fleet.apply(config(one=server.url))
    try:
        await fleet.apply(config(two=server.url))
        await asyncio.sleep(0.05)
        assert await ask(old["one"]) == b'{"ok": true}'
        await fleet.aclose()
        await server.until_open(0)
    finally:
        await close(old["one"])


def test_only_backends_that_a_request_can_reach_are_started() -> None:
    found = parse_config(
        """
auth: {required: false}
backends:
  one: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
  two: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
  idle: {kind: remote, base_url: "http://127.0.0.1:9/v1"}
models: {"*": one, "again-*": one}
endpoints: {special: {backend: two}}
""",
        {},
    )
    assert list(used_backends(found)) == ["one", "two"]


def test_a_backend_is_built_from_its_settings_without_showing_its_key() -> None:
    settings = config(one=("http://h:1/v1", ", api_key: sk-canary")).backends["one"]
    backend = build("one", settings)
    assert (backend.name, backend.revision, backend.state()) == ("one", "remote:http://h:1/v1", "ready")
    assert "canary" not in repr(backend)
    assert build("one", config(one="http://h:2/v1").backends["one"]).revision != backend.revision
