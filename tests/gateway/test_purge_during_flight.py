"""A purge never loses a race: whatever a flight is doing when an answer is purged, nobody is served that answer later.

A thousand flights, whose upstream brings its answer piece by piece, are met by purges at random moments, hard and soft,
by every criterion. After a purge has returned, no
request that comes then may get an answer whose making had begun before it, unless as a stale one after a soft purge.
"""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cache.match import Match
from tests.gateway.flying import Hub, code_of, pieces
from tests.gateway.scripted import END
from tests.gateway.timeless import timeless

RACES = 1_000
ENDPOINTS = ("default", "rr", "lasting", "soft")
TAGS = {"x-refrain-tags": "red"}


@dataclass
class Tally:
    """How often each kind of race was really run, so that the test is known to test something."""

    purges: int = 0
    in_flight: int = 0
    whole: int = 0
    wrong: list[str] = field(default_factory=list)


def matches(rng: random.Random, now: float) -> Match:
    return rng.choice(
        [
            Match(),
            Match(tenant="acme"),
            Match(user="alice"),
            Match(model="test-model"),
            Match(tags=frozenset({"red", "blue"})),
            Match(older_than=now + 1),
        ]
    )


async def race(hub: Hub, rng: random.Random, number: int, tally: Tally) -> None:
    endpoint = rng.choice(ENDPOINTS)
    prompt = f"race {number}"
    first = len(hub.calls)
    form = rng.choice(["json", "sse", "sse+usage"])
    client = hub.client(form, prompt, endpoint=endpoint, headers=TAGS)
    await turns(rng.randrange(6))
    await hub.backend.called(first + 1)
    call = hub.calls[first]
    steps = [*pieces(f"answer {number}"), END]
    met_at = rng.randrange(len(steps) + 1)
    purging: asyncio.Task[int] | None = None
    soft = rng.random() < 0.3
    for step_number, step in enumerate(steps):
        if step_number == met_at:
            purging = asyncio.create_task(hub.cache.purge(matches(rng, hub.clock()), soft=soft))
            tally.in_flight += 1
        call.put(step)
        await turns(rng.randrange(4))
    if purging is None:
        await turns(rng.randrange(12))  # the answer is whole: about to be stored, being stored, or stored
        purging = asyncio.create_task(hub.cache.purge(matches(rng, hub.clock()), soft=soft))
    await purging
    tally.purges += 1
    # From here on the answer must not be served as a good one any more.
    calls = len(hub.calls)
    hub.backend.script = lambda n: [(200, "text/event-stream"), *pieces(f"fresh {number}"), END]
    later = hub.client(rng.choice(["json", "sse"]), prompt, endpoint=endpoint, headers=TAGS)
    await asyncio.gather(client.task, later.task)
    hub.backend.script = lambda n: [(200, "text/event-stream")]
    assert code_of(client) == "ok"
    assert f"answer {number}".split()[1] in client.content.decode()
    outcome = later.headers["x-refrain-cache"]
    old = f"{number}" in later.content.decode() and len(hub.calls) == calls
    if old and not (soft and outcome == "stale"):
        tally.wrong.append(f"{number}: {endpoint} {form} met at {met_at} of {len(steps)}, soft={soft}: {outcome}")
    tally.whole += met_at == len(steps)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.slow
@timeless
async def test_a_thousand_of_a_thousand_in_memory() -> None:
    await races(Hub(), rest=0.1)


@pytest.mark.slow
async def test_a_thousand_of_a_thousand_with_a_file_behind(tmp_path: Path) -> None:
    hub = Hub()
    await hub.cache.open(f"sqlite:///{tmp_path}/cache.db", max_bytes=2**26, now=hub.clock)
    await races(hub, rest=0)


async def races(hub: Hub, *, rest: float) -> None:
    rng, tally = random.Random(4), Tally()
    try:
        for number in range(RACES):
            await race(hub, rng, number, tally)
            await asyncio.sleep(rest)
    finally:
        await hub.flights.aclose()
        await hub.cache.aclose()
    assert not tally.wrong
    assert tally.purges == RACES
    assert min(tally.in_flight, tally.whole) > RACES / 20
