"""Statement 34: `refrain serve` told to end while it answers: streams finish, or end with an error event that says why;
what is written stays; nothing is left running."""

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import ADMIN, ALICE, config_text
from tests.support.live import FORMS, Caller, answer_of, error_event, gate, holding, spoken, streaming
from tests.support.process import Served, serve
from tests.support.traffic import error_of, outcome, text_of, until
from tests.support.upstream import Seen, Upstream, chat_answer, reply_for, upstream

GRACE = 10
EXTRA = """
  going_on: {mode: stream, finish: true}
"""
# What a task or a connection that was not taken down says in the log.
LEFTOVERS = ("Traceback", "never retrieved", "never awaited", "was destroyed", "Unclosed", "unclosed")


@pytest.fixture
def up() -> Iterator[Upstream]:
    with upstream() as app:
        yield app


def write(folder: Path, up: Upstream) -> None:
    text = config_text(up.url, store="sqlite:///.refrain/cache.db", extra=EXTRA)
    (folder / "refrain.yaml").write_text(text)


def body_of(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "test-model", "messages": [{"role": "user", "content": prompt}], **more}


def call(served: Served, prompt: str, *, path: str = "/v1", **more: Any) -> Caller:
    head = {"authorization": f"Bearer {ALICE}"}
    return Caller(served.url, f"{path}/chat/completions", body_of(prompt, **{"stream": True, **more}), head)


def ask(served: Served, prompt: str) -> httpx.Response:
    head = {"authorization": f"Bearer {ALICE}"}
    url = f"{served.url}/v1/chat/completions"
    return httpx.post(url, json=body_of(prompt), headers=head, trust_env=False, timeout=30)


def listening(served: Served, clients: int) -> None:
    def found() -> bool:
        head = {"authorization": f"Bearer {ADMIN}"}
        text = httpx.get(f"{served.url}/metrics", headers=head, trust_env=False).text
        return f"refrain_flight_listeners {clients}.0" in text

    until(found)


def refuses(served: Served) -> bool:
    try:
        socket.create_connection(("127.0.0.1", served.port), timeout=2).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass  # perhaps still closing
    return False


def no_way_in(kept: socket.socket) -> bool:
    """Whether a request on a connection from before is turned away."""
    try:
        kept.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        kept.sendall(f"Authorization: Bearer {ALICE}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        return kept.recv(65536)[:12] in (b"", b"HTTP/1.1 503")
    except ConnectionError:
        return True


def ended_well(served: Served, begun: float, seconds: float) -> None:
    """It has ended by itself within so many seconds of the signal, and left nothing behind."""
    assert served.process.wait(timeout=30) in (0, -signal.SIGTERM)
    assert time.monotonic() - begun < seconds
    log = served.log.read_text()
    assert not [word for word in LEFTOVERS if word in log], log


@pytest.mark.slow
def test_statement_34_streams_finish_and_what_they_said_is_kept(tmp_path: Path, up: Upstream) -> None:
    """Statement 34: what can finish within the grace does, for all who listen, and nothing new begins; the end comes
    right after it, whatever connections are open."""
    write(tmp_path, up)
    with gate() as go, serve(tmp_path) as served:
        served.wait_ready()
        assert outcome(ask(served, "Just before?")) == "miss"
        idle, kept = (socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(2))
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in kept.recv(65536)
        up.script = holding(go)
        callers = []
        for number, form in enumerate(("sse", "json", "sse+usage"), 1):
            callers.append(call(served, "In the middle?", **FORMS[form]))
            listening(served, number)
        callers[0].hears("one two ")
        begun = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(served))
        assert no_way_in(kept)
        assert served.process.poll() is None
        go.set()
        results = [c.result() for c in callers]
        ended_well(served, begun, 5)
        idle.close()
        kept.close()
    assert [outcome(r) for r in results] == ["miss", "joined", "joined"]
    assert {answer_of(r)["choices"][0]["message"]["content"] for r in results} == {"one two three 2"}
    with serve(tmp_path) as served:
        served.wait_ready()
        assert text_of(ask(served, "Just before?")) == "This is answer number 1."
        assert text_of(ask(served, "In the middle?")) == "one two three 2"
    assert up.calls == 2


@pytest.mark.slow
def test_statement_34_what_cannot_finish_ends_with_an_error_event(tmp_path: Path, up: Upstream) -> None:
    """Statement 34: at the end of the grace a stream gets an error event and no [DONE], a plain client a 503; nothing
    of it is stored, and nothing hangs: neither a call that goes on for nobody nor a client that does not read."""
    write(tmp_path, up)
    endless = chat_answer("one two three four")
    with gate() as never, gate() as soon, gate() as reads, serve(tmp_path) as served:
        served.wait_ready()

        def script(seen: Seen, number: int) -> Any:
            prompt = seen.body["messages"][0]["content"]
            if prompt == "Large?":
                return streaming(chat_answer(" ".join(["x" * 65_000] * 400)))
            if prompt == "Silent?":
                reply = reply_for(seen, endless)
                reply.gates = {0: never}
                return reply
            return streaming(endless, {3: soon if prompt == "Soon?" else never})

        up.script = script
        stream = call(served, "Endless?").hears("one two ")
        usage = call(served, "Endless?", **FORMS["sse+usage"]).hears("one two ")
        plain = call(served, "Endless?", stream=False)
        silent = call(served, "Silent?")
        finishing = call(served, "Soon?").hears("one two ")
        background = call(served, "Endless?", path="/going_on/v1").hears("one two ")
        listening(served, 6)
        background.leave()
        listening(served, 5)
        head = {"authorization": f"Bearer {ALICE}"}
        body = body_of("Large?", stream=True)
        slow = Caller(served.url, "/v1/chat/completions", body, head, waits=reads, buffer=4096)
        listening(served, 6)

        begun = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(served))
        soon.set()
        assert text_of(finishing.result()) == "one two three four"
        ends = [c.result() for c in (stream, usage, plain, silent)]
        assert GRACE - 1 < time.monotonic() - begun < GRACE + 2
        ended_well(served, begun, GRACE + 3)
        reads.set()
        until(lambda: slow.ended)
    for result in ends[:2]:
        assert error_event(result)["code"] == "gateway_stopping"
        assert spoken(result.content) == "one two "
    for result in ends[2:]:
        assert error_of(result, 503)["code"] == "gateway_stopping"
    assert b"[DONE]" not in slow.content
    up.script = lambda seen, number: reply_for(seen, chat_answer("made anew"))
    with serve(tmp_path) as served:
        served.wait_ready()
        assert text_of(ask(served, "Soon?")) == "one two three four"
        assert text_of(ask(served, "Endless?")) == text_of(ask(served, "Silent?")) == "made anew"
