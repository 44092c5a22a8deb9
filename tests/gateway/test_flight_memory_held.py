"""What is over is let go of at once. An error, or a task, that a frame of its own traceback can reach is a cycle: the
request and what has come of its answer then stay until the collector comes round, which under load is late."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from backends.base import BackendError, Call
from gateway.ask import Ask
from gateway.errors import ApiError
from gateway.fill import Fill
from gateway.flight import Flight
from gateway.listener import Listener
from gateway.visit import Visit
from tests.support.gateway import Running, config_text, running
from tests.support.live import FORMS, SSE, call, gate, holding, listening, settled, together
from tests.support.traffic import fixed, outcome, until
from tests.support.upstream import Reply, Upstream, chat_answer, chat_chunks, free_port, sse, upstream

pytestmark = pytest.mark.slow

Json = dict[str, Any]
OURS = (Flight, Fill, Listener, Visit, Ask, Call, ApiError, BackendError)
LARGE = "a large body " * 10_000
TIMES = 3
LATER = 0.03  # seconds, after which the gateway has begun to watch whether the client is still there

ROLE, WORD, *REST = [sse([c], done=False) for c in chat_chunks(chat_answer("one two"), include_usage=True)]
ERROR = b'{"error": {"message": "no"}}'
FAILURES: dict[str, Reply] = {
    "400": Reply([ERROR], status=400),
    "401": Reply([b"no"], status=401),
    "429": Reply([b"{}"], status=429, headers={"retry-after": "1"}),
    "500": Reply([ERROR], status=500),
    "500, later": Reply([ERROR], status=500, first_pause=LATER),
    "302": Reply([b""], status=302),
    "cut at once": Reply([], cut=True),
    "garbage": Reply([b"<html>"]),
    "an error with a good status": Reply([ERROR]),
    "an error event": Reply([b"data: " + ERROR + b"\n\n"], content_type=SSE),
    "cut in the middle": Reply([ROLE, WORD], content_type=SSE, cut=True, pause=LATER),
    "an error in the middle": Reply([ROLE, WORD, b"data: " + ERROR + b"\n\n"], content_type=SSE, pause=LATER),
    "garbage in the middle": Reply([ROLE, WORD, b"data: <html>\n\n"], content_type=SSE, pause=LATER),
    "no end": Reply([ROLE, WORD], content_type=SSE),
}


@pytest.fixture(scope="module")
def up() -> Iterator[Upstream]:
    with upstream() as app:
        yield app


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url)) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ours() -> Counter[str]:
    """The parts of requests and calls that are there."""
    return Counter(type(found).__name__ for found in gc.get_objects() if issubclass(type(found), OURS))


@contextmanager
def let_go(gw: Running) -> Iterator[None]:
    """What happens inside leaves nothing, although nothing is collected."""
    before = ours()
    yield
    settled(gw)
    left: Counter[str] = Counter()

    def gone() -> bool:
        left.clear()
        left.update(ours() - before)
        return not left

    try:
        until(gone, timeout=2)
    except AssertionError:
        raise AssertionError(f"still there: {dict(left)}") from None


@pytest.mark.parametrize("form", ["json", "sse"])
@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_keeps_nothing(gw: Running, up: Upstream, kind: str, form: str) -> None:
    up.script = fixed(FAILURES[kind])
    with let_go(gw):
        for number in range(TIMES):
            assert '"error"' in gw.chat(f"{LARGE} {number}", **FORMS[form]).text


@pytest.mark.parametrize("form", ["json", "sse"])
def test_a_backend_that_is_gone(form: str) -> None:
    with running(config_text(f"http://127.0.0.1:{free_port()}/v1")) as gw, let_go(gw):
        for number in range(TIMES):
            assert gw.chat(f"{LARGE} {number}", **FORMS[form]).status_code == 502


@pytest.mark.parametrize("form", ["json", "sse"])
def test_one_that_does_not_answer_in_time(up: Upstream, form: str) -> None:
    text = config_text(up.url).replace("kind: remote,", "kind: remote, timeouts: {first_byte: 50ms},")
    up.script = fixed(Reply([b"{}"], first_pause=5))
    with running(text) as gw, let_go(gw):
        for number in range(TIMES):
            assert gw.chat(f"{LARGE} {number}", **FORMS[form]).status_code == 504


@pytest.mark.parametrize("form", ["json", "sse"])
@pytest.mark.parametrize("kind", ["500", "cut at once", "an error event"])
@pytest.mark.parametrize("other", ["answers", "fails"])
def test_one_that_sends_the_request_to_another_backend(up: Upstream, other: str, kind: str, form: str) -> None:
    up.script = fixed(FAILURES[kind])
    with upstream() as second:
        if other == "fails":
            second.script = up.script
        two = f'two: {{kind: remote, base_url: "{second.url}"}}'
        text = (
            config_text(up.url)
            .replace("models:", f"  {two}\nmodels:")
            .replace("default: {", "default: {fallback: [two], ")
        )
        with running(text) as gw, let_go(gw):
            for number in range(TIMES):
                assert ('"error"' in gw.chat(f"{LARGE} {number}", **FORMS[form]).text) == (other == "fails")
        assert second.calls == TIMES


@pytest.mark.parametrize("kind", ["400", "500", "cut at once", "cut in the middle", "no end"])
def test_nor_does_one_that_many_are_told_of(gw: Running, up: Upstream, kind: str) -> None:
    """One error, raised by each of them."""
    with let_go(gw), gate() as go:
        up.script = fixed(replace(FAILURES[kind], gate=go))
        callers = together(gw, f"{LARGE} {kind}", ["sse", "json", "sse+usage", "json"])
        go.set()
        for caller in callers:
            assert '"error"' in caller.result().text


def test_nor_do_those_who_leave(gw: Running, up: Upstream) -> None:
    with let_go(gw), gate() as go:
        up.script = holding(go)
        for form in FORMS.values():
            caller = call(gw, LARGE, **form)
            listening(gw, 1)
            caller.leave()
            listening(gw, 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pause", [0.0, LATER], ids=["at once", "later"])
def test_nor_does_an_answer(gw: Running, up: Upstream, form: str, pause: float) -> None:
    """Of one that is kept the entry stays, but nothing of its request."""
    up.script = fixed(Reply([ROLE, WORD, *REST, b"data: [DONE]\n\n"], content_type=SSE, first_pause=pause))
    with let_go(gw):
        for number in range(TIMES):
            assert outcome(gw.chat(f"{LARGE} {form} {pause} {number}", **FORMS[form])) == "miss"
