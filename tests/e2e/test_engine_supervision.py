"""The real engine behind the gateway hangs, or is killed: those who wait hear of it, and it comes back by itself."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from backends.local import backend
from tests.support.engines import MODEL, START, local_gateway, own_engine, readiness
from tests.support.gateway import ALICE, Running
from tests.support.live import Caller, listening
from tests.support.traffic import error_of, events, outcome, until

# An engine starts in 10 s, and on a busy machine in a minute.
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

HANG_AFTER = 3.0
"""Seconds; the gateway itself would wait 30."""
LONG = {"model": MODEL, "max_tokens": 2000, "temperature": 0}


@pytest.fixture(scope="module")
def gw() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "HANG_AFTER", HANG_AFTER)
        patch.setattr(backend, "START_WAIT", START)  # a busy machine may need more than 20 s for another engine
        with local_gateway() as gateway:
            yield gateway


def caller(gw: Running, prompt: str, *, stream: bool) -> Caller:
    body = {**LONG, "messages": [{"role": "user", "content": prompt}], "stream": stream}
    return Caller(gw.url, "/v1/chat/completions", body, {"authorization": f"Bearer {ALICE}"})


def back(gw: Running, former: int) -> None:
    """There is a new engine, and it answers."""
    until(lambda: readiness(gw) == (200, "ready"), START)
    assert own_engine() != former
    assert outcome(gw.chat("Say hello.", model=MODEL, max_tokens=2, headers={"cache-control": "no-store"})) == "bypass"


def test_an_engine_that_hangs(gw: Running) -> None:
    stream = caller(gw, "Count to one thousand.", stream=True)
    until(lambda: len(stream.words) > 5, START)
    engine = own_engine()
    os.kill(engine, signal.SIGSTOP)
    waiting = caller(gw, "Tell me a long story.", stream=False)
    until(lambda: readiness(gw) == (503, "starting"), 60)
    error = error_of(waiting.result(60), 502)
    assert error["code"] == "backend_reply_broken"
    *_, last = events(stream.result(60).text)
    assert '"backend_reply_broken"' in last
    back(gw, engine)


def test_an_engine_that_is_killed_before_it_has_answered(gw: Running) -> None:
    """The one that the call was made for hears of it; who has joined waits for the next engine, and gets its answer."""
    body = {"model": MODEL, "max_tokens": 2, "temperature": 0, "messages": [{"role": "user", "content": "Say no."}]}
    head = {"authorization": f"Bearer {ALICE}"}

    def ask() -> httpx.Response:
        return httpx.post(f"{gw.url}/v1/chat/completions", json=body, headers=head, timeout=START, trust_env=False)

    engine = own_engine()
    os.kill(engine, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        leader = pool.submit(ask)
        listening(gw, 1)
        joiner = pool.submit(ask)
        listening(gw, 2)
        with suppress(ProcessLookupError):  # on a slow machine it was found to hang meanwhile
            os.kill(engine, signal.SIGKILL)
        assert error_of(leader.result(), 502)["code"] == "backend_reply_broken"
        assert joiner.result().status_code == 200
    back(gw, engine)
