"""A client that leaves: the upstream is told, and nothing half made is kept."""

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.gateway import ALICE, Running
from tests.support.traffic import fixed, outcome, until, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, chat_chunks, sse
from tests.support.wire import head

SSE = "text/event-stream"
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])


def leaving(gw: Running, path: str, prompt: str, *, stream: bool) -> socket.socket:
    """A connection on which a request was sent."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], "stream": stream}).encode()
    parts = urlsplit(gw.url)
    s = socket.create_connection((parts.hostname, parts.port), timeout=10)
    lines = [f"Authorization: Bearer {ALICE}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    s.sendall(head(f"{path}/chat/completions", *lines) + body)
    return s


def gone_within_a_second(up: Upstream, s: socket.socket) -> None:
    before = up.cancelled
    begun = time.monotonic()
    s.close()
    until(lambda: up.cancelled == before + 1, timeout=5)
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_leaving_in_mid_stream(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    """After the first words: the upstream is cancelled within a second, and nothing is stored or counted as served."""
    pieces = [sse([c], done=False) for c in chat_chunks(chat_answer("word " * 200), include_usage=True)]
    normal = up.script
    up.script = fixed(Reply(pieces, content_type=SSE, pause=0.05))
    calls = up.calls
    s = leaving(gw, "/v1", prompt, stream=stream)
    if stream:
        received = b""
        while b"word" not in received:
            received += s.recv(65536)
    else:
        until(lambda: up.open == 1)
        time.sleep(0.2)
    gone_within_a_second(up, s)
    assert up.calls == calls + 1
    up.script = normal
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, model="m")) == "miss"


@MODES
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_leaving_before_the_first_byte(gw: Running, up: Upstream, prompt: str, path: str, stream: bool) -> None:
    normal = up.script
    up.script = fixed(Reply([b"{}"], first_pause=20))
    s = leaving(gw, path, prompt, stream=stream)
    until(lambda: up.open == 1)
    gone_within_a_second(up, s)
    up.script = normal
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt, model="m", path=path)) == "miss"


def test_leaving_while_sending_the_request(gw: Running, up: Upstream, prompt: str) -> None:
    """Half a body reaches no upstream, and the gateway goes on."""
    parts = urlsplit(gw.url)
    with upstream_calls(up, 0):
        for _ in range(5):
            s = socket.create_connection((parts.hostname, parts.port), timeout=10)
            s.sendall(
                head("/v1/chat/completions", f"Authorization: Bearer {ALICE}", "Content-Length: 1000") + b'{"model"'
            )
            s.close()
    with upstream_calls(up, 1):
        assert outcome(gw.chat(prompt)) == "miss"


def test_the_one_who_left_is_on_record(gw: Running, up: Upstream, prompt: str) -> None:
    up.script = fixed(Reply([b"{}"], first_pause=20))
    s = leaving(gw, "/rr/v1", prompt, stream=False)
    until(lambda: up.open == 1)
    gone_within_a_second(up, s)

    def latest() -> dict[str, Any]:
        found = gw.admin("GET", "/admin/decisions", params={"limit": 1}).json()["decisions"][0]
        return dict(found) if found["error"] else {}

    record = until(latest)
    assert record["stored"] is False
    assert record["tokens"]["served"] == 0


@pytest.mark.slow
def test_a_slow_reader_of_a_hit_holds_up_nobody(gw: Running, up: Upstream, prompt: str) -> None:
    """One client does not read its answer; others are served meanwhile."""
    up.script = fixed(Reply([json.dumps(chat_answer("x" * 900_000)).encode()]))
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "stream": True}
    head_ = {"authorization": f"Bearer {ALICE}"}
    gw.client.post("/rr/v1/chat/completions", json=body, headers=head_)
    slow = [leaving(gw, "/rr/v1", prompt, stream=True) for _ in range(3)]
    try:
        for i in range(5):
            begun = time.monotonic()
            assert gw.client.post("/rr/v1/chat/completions", json=body, headers=head_).status_code == 200, i
            assert time.monotonic() - begun < 2
    finally:
        for s in slow:
            s.close()
