"""What one stream of the dashboard is told, with the looks in the test's hand."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config.load import parse_config
from gateway.dashboard.live import MAX_DECISIONS, Channel, Live, Seat
from gateway.dashboard.overview import View
from gateway.decisions import Decision
from gateway.principal import Principal

WHOLE = View("1h", None, None, True)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway(
        parse_config("backends: {b: {kind: remote, base_url: 'http://127.0.0.1:9/v1'}}\nmodels: {'*': b}", {})
    )


@pytest.fixture
def channel() -> Channel:
    return Channel("")


def made(gateway: Gateway, count: int, *, tenant: str = "acme", endpoint: str = "default") -> list[str]:
    """Decisions that were taken now; gives their ids."""
    ids = []
    for _ in range(count):
        decision = Decision(f"req_{len(list(gateway.recorder.ring))}", 0.0, endpoint, "chat")
        decision.principal = Principal(tenant, "u")
        gateway.recorder.ring.add(decision)
        ids.append(decision.id)
    return ids


def read(block: bytes) -> list[tuple[str, Any]]:
    events = [event.split("\n") for event in block.decode().split("\n\n")[:-1]]
    assert all(len(lines) == 2 for lines in events), "an event is one line of data"
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in events]


async def stream(live: Live, channel: Channel) -> AsyncIterator[bytes]:
    async def allowed() -> bool:
        return True

    events = Seat(live, WHOLE, channel).events(allowed)
    assert (await anext(events)).startswith(b"retry: ")
    return events


async def test_who_falls_behind_is_told_the_latest_and_no_more(gateway: Gateway, channel: Channel) -> None:
    channel.tell({"n": 0})
    events = await stream(Live(gateway), channel)
    assert read(await anext(events)) == [("overview", {"n": 0})]
    for n in range(1, 50):
        channel.tell({"n": n})
        ids = made(gateway, 3)
        await channel.tell_new(gateway, WHOLE)
        channel.wake()
    (first, overview), (second, listed) = read(await anext(events))
    assert (first, second, overview) == ("overview", "decisions", {"n": 49})
    assert [d["id"] for d in listed["decisions"]] == ids[::-1]


async def test_what_never_stays_the_same_is_no_news(channel: Channel) -> None:
    for at in range(5):
        channel.tell({"at": at, "gateway": {"uptime": at}, "n": 1})
    assert channel.overviews == 1
    channel.tell({"at": 0, "gateway": {}, "n": 2})
    assert channel.overviews == 2


async def test_decisions_are_listed_once_and_the_newest_first(gateway: Gateway, channel: Channel) -> None:
    first = made(gateway, 3)
    await channel.tell_new(gateway, WHOLE)
    assert [d["id"] for d in read(channel.decisions)[0][1]["decisions"]] == first[::-1]
    await channel.tell_new(gateway, WHOLE)
    assert channel.lists == 1
    second = made(gateway, 1)
    await channel.tell_new(gateway, WHOLE)
    assert [d["id"] for d in read(channel.decisions)[0][1]["decisions"]] == second


async def test_a_view_lists_its_own(gateway: Gateway, channel: Channel) -> None:
    made(gateway, 2, tenant="acme")
    mine = made(gateway, 1, tenant="globex", endpoint="rr")
    made(gateway, 2, tenant="globex", endpoint="default")
    await channel.tell_new(gateway, View("1h", "rr", "globex", False))
    assert [d["id"] for d in read(channel.decisions)[0][1]["decisions"]] == mine


async def test_of_too_many_the_latest(gateway: Gateway, channel: Channel) -> None:
    ids = made(gateway, MAX_DECISIONS + 50)
    await channel.tell_new(gateway, WHOLE)
    assert [d["id"] for d in read(channel.decisions)[0][1]["decisions"]] == ids[: -MAX_DECISIONS - 1 : -1]
    await channel.tell_new(gateway, WHOLE)
    assert channel.lists == 1


async def test_hostile_text_stays_in_its_line(gateway: Gateway, channel: Channel) -> None:
    """Whatever a client calls its model, it begins no event of its own."""
    made(gateway, 1)
    next(iter(gateway.recorder.ring)).model = "a\n\nevent: overview\ndata: {}\r\n\r\x00\u2028</script>"
    await channel.tell_new(gateway, WHOLE)
    ((name, data),) = read(channel.decisions)
    assert name == "decisions"
    assert data["decisions"][0]["model"].startswith("a\n\nevent")


async def test_a_stream_ends_where_it_is_not_allowed_any_more(gateway: Gateway, channel: Channel) -> None:
    answers = iter([True, False])

    async def allowed() -> bool:
        return next(answers)

    events = Seat(Live(gateway), WHOLE, channel).events(allowed)
    channel.tell({"n": 0})
    assert [len(read(b)) for b in [block async for block in _woken(events, channel)][1:]] == [1]


async def _woken(events: AsyncIterator[bytes], channel: Channel) -> AsyncIterator[bytes]:
    """All that comes, with something new each time."""
    async for block in events:
        yield block
        channel.tell({"n": channel.overviews})
        channel.wake()
