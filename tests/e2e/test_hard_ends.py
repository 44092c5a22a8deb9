"""Ends that are none, and clients and upstreams that take their time."""

import json
import socket
import threading
import time

from tests.support.gateway import ALICE, Running
from tests.support.traffic import decision, outcome, text_of
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, chat_chunks, reply_for, sse


def test_an_upstream_that_holds_the_connection_after_done_costs_nothing(up: Upstream, gw: Running) -> None:
    body = sse(chat_chunks(chat_answer("all of it"), include_usage=True))

    def script(seen: Seen, number: int) -> Reply:
        return Reply([body, b": late\n\n"], content_type="text/event-stream", hang=True)

    up.script = script
    begun = time.monotonic()
    first = gw.chat("Who holds on?", stream=True)
    assert time.monotonic() - begun < 4
    assert first.text.endswith("data: [DONE]\n\n")
    assert text_of(first) == "all of it"
    assert outcome(gw.chat("Who holds on?", stream=True)) == "exact"


def test_fewer_choices_than_asked_are_delivered_and_not_stored(up: Upstream, gw: Running) -> None:
    up.script = lambda seen, number: reply_for(seen, chat_answer("only one"))
    answer = gw.chat("Two of them, please.", n=2, stream=True)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert decision(gw, answer)["not_stored"] == "choices_missing"


def test_a_purge_while_a_client_still_reads_leaves_nothing_behind(up: Upstream, gw: Running) -> None:
    """The answer is stored before its last byte leaves; by the time a slow client has it, it may have been purged and
    another one stored under the same key. Nothing of the old one may be found there."""
    question = "Slow reader?"
    up.script = lambda seen, number: reply_for(seen, chat_answer(f"answer {number} " + "x" * 400_000))
    body = json.dumps({"model": "test-model", "messages": [{"role": "user", "content": question}]}).encode()
    host, port = "127.0.0.1", int(gw.url.rsplit(":", 1)[1])
    head = f"POST /rr/v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {ALICE}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    calls = up.calls
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, port))
        slow.sendall(head.encode() + body)
        deadline = time.monotonic() + 10
        while up.calls == calls:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.3)
        assert gw.admin("POST", "/admin/purge", json={"endpoint": "rr"}).status_code == 200
        fresh = gw.raw(body, path="/rr/v1")
        assert outcome(fresh) == "miss"
        reader = threading.Thread(target=lambda: [None for _ in iter(lambda: slow.recv(65536), b"")], daemon=True)
        reader.start()
        time.sleep(0.3)
    for _ in range(3):
        again = gw.raw(body, path="/rr/v1")
        assert outcome(again) == "exact"
        assert again.content == fresh.content


def test_a_large_body_of_nobody_is_not_read(gw: Running) -> None:
    port = int(gw.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n{")
        assert b" 401 " in s.recv(65536).split(b"\r\n")[0]
