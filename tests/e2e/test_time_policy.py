"""Until when: prompts about now, answers that are good for a day or a week, and clocks that jump."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx
import pytest

from cache.stores.memory import STEP
from tests.support.gateway import Running, config_text, running
from tests.support.traffic import byte_identical, outcome, text_of, until
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, numbered, reply_for

BERLIN = ZoneInfo("Europe/Berlin")
EXTRA = """
  daily: {valid: day, time_zone: Europe/Berlin}
  weekly: {mode: request_response, valid: week, time_zone: Europe/Berlin, cache: {exact: {ttl: 30d}}}
  blink: {cache: {exact: {ttl: 1s}}}
  brief: {valid: day, time_zone: Europe/Berlin, cache: {exact: {ttl: 10s}}}
  fast: {volatile_ttl: 30s}
  lasting_news: {volatile_ttl: 30s, cache: {exact: {ttl: 1h, stale_if_error: 1h}}}
  quick: {volatile_ttl: 1h, cache: {exact: {ttl: 10s}}}
"""


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        yield gateway


def berlin(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def ttl(gw: Running, prompt: str, path: str) -> int:
    hit = gw.chat(prompt, path=path)
    assert outcome(hit) == "exact"
    return int(hit.headers["cache-status"].rpartition("ttl=")[2])


@pytest.mark.parametrize(
    "prompt", ["What happened in Berlin today?", "Wer ist der aktuelle Bundeskanzler?", "最新のニュースは？"]
)
def test_prompts_about_now_have_a_short_life(gw: Running, prompt: str) -> None:
    gw.clock.frozen = 1_000_000.0
    first = text_of(gw.chat(prompt))
    assert ttl(gw, prompt, "/v1") == 300
    gw.clock.offset = 299.999
    for _ in range(2):
        assert text_of(gw.chat(prompt)) == first
    assert byte_identical(gw, gw.chat(prompt))
    gw.clock.offset = 300
    assert outcome(gw.chat(prompt)) == "miss"


def test_other_prompts_keep_theirs(gw: Running) -> None:
    gw.clock.frozen = 1_000_000.0
    gw.chat("What is a noun?")
    assert ttl(gw, "What is a noun?", "/v1") == 86_400


def test_it_is_the_endpoints_to_say_how_short(gw: Running) -> None:
    gw.clock.frozen = 1_000_000.0
    for path, seconds in (("/fast/v1", 30), ("/quick/v1", 10)):
        gw.chat("Any news today?", path=path)
        assert ttl(gw, "Any news today?", path) == seconds


@pytest.mark.parametrize(
    ("path", "made", "end"),
    [
        ("/daily/v1", "2026-11-30 23:59:58", "2026-12-01 00:00"),
        ("/daily/v1", "2026-03-29 01:30", "2026-03-30 00:00"),  # clocks go forward: the day has 23 hours
        ("/daily/v1", "2026-10-25 01:30", "2026-10-26 00:00"),  # and 25 here, but the TTL ends after 24
        ("/weekly/v1", "2026-11-29 23:00", "2026-11-30 00:00"),  # a Sunday
        ("/weekly/v1", "2026-10-20 12:00", "2026-10-26 00:00"),  # over the change of clocks
    ],
)
def test_answers_are_good_for_their_day_or_week(gw: Running, path: str, made: str, end: str) -> None:
    gw.clock.frozen = berlin(made)
    first = text_of(gw.chat(path=path))
    last = min(berlin(end), gw.clock.frozen + (86_400 if path == "/daily/v1" else 30 * 86_400))
    assert ttl(gw, "Hello?", path) == int(last - gw.clock.frozen)
    gw.clock.frozen = last - 0.001
    assert text_of(gw.chat(path=path)) == first
    assert byte_identical(gw, gw.chat(path=path))
    gw.clock.frozen = last
    again = gw.chat(path=path)
    assert outcome(again) == "miss"
    assert text_of(again) != first


def test_a_day_does_not_lengthen_a_life(gw: Running) -> None:
    gw.clock.frozen = berlin("2026-11-30 12:00")
    gw.chat(path="/brief/v1")
    assert ttl(gw, "Hello?", "/brief/v1") == 10


def test_an_answer_begun_yesterday_is_not_joined_today(gw: Running, up: Upstream) -> None:
    """Nor kept for today, when it comes."""
    gates = [threading.Event(), threading.Event()]

    def script(seen: Seen, number: int) -> Reply:
        reply = reply_for(seen, chat_answer(f"call {number}"))
        reply.gate = gates.pop(0)
        return reply

    first, second = gates
    up.script = script
    calls = len(up.seen)
    gw.clock.frozen = berlin("2026-11-30 23:59:59.5")
    with ThreadPoolExecutor(2) as pool:
        yesterday = pool.submit(gw.chat, path="/daily/v1")
        until(lambda: len(up.seen) == calls + 1)
        gw.clock.frozen = berlin("2026-12-01 00:00")
        today = pool.submit(gw.chat, path="/daily/v1")
        until(lambda: len(up.seen) == calls + 2)
        first.set()
        old = text_of(yesterday.result())
        second.set()
        new = text_of(today.result())
    up.script = numbered
    assert old != new
    assert text_of(gw.chat(path="/daily/v1")) == new


def test_a_shorter_policy_shortens_what_is_stored(up: Upstream, tmp_path: Path) -> None:
    def config(policy: str) -> str:
        return config_text(up.url, store=f"sqlite:///{tmp_path}/cache.db", extra=f"  it: {policy}\n")

    made = berlin("2026-11-30 22:00")
    with running(config("{cache: {exact: {ttl: 30d}}}")) as gw:
        gw.clock.frozen = made
        gw.chat("Any news today?", path="/it/v1")
        gw.chat(path="/it/v1")
    for policy, prompt, seconds in (
        ("{cache: {exact: {ttl: 60s}}}", "Hello?", 60),
        ("{volatile_ttl: 20s}", "Any news today?", 20),
        ("{valid: day, time_zone: Europe/Berlin}", "Hello?", 7200),
    ):
        with running(config(policy)) as gw:
            gw.clock.frozen = made + seconds - 1
            assert ttl(gw, prompt, "/it/v1") == 1
            gw.clock.frozen = made + seconds
            stale = gw.chat(prompt, path="/it/v1", headers={"cache-control": "only-if-cached"})
            assert stale.status_code == 504
    # A longer one gives nothing back that was stored for less.
    with running(config("{cache: {exact: {ttl: 365d}}}")) as gw:
        gw.clock.frozen = made + 1
        assert ttl(gw, "Hello?", "/it/v1") == 30 * 86_400 - 1


@pytest.mark.parametrize("again", ["the same bytes", "other bytes of the same meaning"])
def test_a_clock_that_is_set_back_lets_nothing_live_longer(gw: Running, again: str) -> None:
    """Real seconds pass, and the wall clock says that it is an hour ago."""
    gw.clock.frozen = 1_000_000.0
    spellings = itertools.repeat("Hello?") if again == "the same bytes" else itertools.cycle(["Hello?", "H\\u0065llo?"])

    def ask() -> httpx.Response:
        body = f'{{"model": "test-model", "messages": [{{"role": "user", "content": "{next(spellings)}"}}]}}'
        return gw.raw(body.encode(), path="/blink/v1")

    first = text_of(ask())
    begun = time.monotonic()
    gw.clock.frozen -= 3600
    assert text_of(ask()) == first, "it is not older for that"
    until(lambda: text_of(ask()) != first, 10)
    assert time.monotonic() - begun < 1 + STEP + 2
