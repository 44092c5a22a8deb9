"""Requests in the odd ways in which HTTP may bring them."""

import json

import pytest

from tests.support.gateway import ALICE, Running
from tests.support.traffic import byte_identical, outcome, upstream_calls
from tests.support.upstream import Upstream
from tests.support.wire import Answer, chunked, head, talk

PATH = "/rr/v1/chat/completions"
LINES = [f"Authorization: Bearer {ALICE}", "Content-Type: application/json"]


def body_of(prompt: str) -> bytes:
    return json.dumps(
        {"model": "test-model", "messages": [{"role": "user", "content": f"{prompt} 東京 é"}]}, ensure_ascii=False
    ).encode()


def answered(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    assert json.loads(answer.body)["object"] == "chat.completion"
    return answer.headers["x-refrain-cache"]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_in_many_tcp_pieces(gw: Running, up: Upstream, prompt: str, size: int) -> None:
    """Cut anywhere, also inside a character, it is the same request, and the same bytes."""
    body = body_of(prompt)
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    first = head(PATH, *LINES, f"Content-Length: {len(body)}")
    with upstream_calls(up, 1):
        assert answered(talk(gw.url, [first, *pieces], pause=0.001)) == "miss"
        assert answered(talk(gw.url, [first + body])) == "exact"
        assert answered(talk(gw.url, [first, *pieces], pause=0.001)) == "exact"
    assert up.seen[-1].raw == body


@pytest.mark.parametrize("size", [1, 10, 5000])
def test_a_chunked_body(gw: Running, up: Upstream, prompt: str, size: int) -> None:
    body = body_of(prompt)
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    with upstream_calls(up, 1):
        for expected in ("miss", "exact", "exact"):
            request = [head(PATH, *LINES, "Transfer-Encoding: chunked"), *chunked(pieces)]
            assert answered(talk(gw.url, request)) == expected
        assert answered(talk(gw.url, [head(PATH, *LINES, f"Content-Length: {len(body)}"), body])) == "exact"


def test_a_head_in_many_tcp_pieces(gw: Running, prompt: str) -> None:
    body = body_of(prompt)
    first = head(PATH, *LINES, f"Content-Length: {len(body)}")
    assert answered(talk(gw.url, [first[i : i + 5] for i in range(0, len(first), 5)] + [body], pause=0.0005)) == "miss"


def test_expect_100_continue(gw: Running, prompt: str) -> None:
    """Some clients wait for a word before they send a body."""
    import socket
    from urllib.parse import urlsplit

    body = body_of(prompt)
    parts = urlsplit(gw.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as s:
        s.sendall(head(PATH, *LINES, f"Content-Length: {len(body)}", "Expect: 100-continue"))
        assert s.recv(1000).startswith(b"HTTP/1.1 100")
        s.sendall(body)
        assert s.recv(1000).startswith(b"HTTP/1.1 200")


def test_many_requests_on_one_connection(gw: Running, up: Upstream, prompt: str) -> None:
    """Refusals in between leave the connection in order."""
    with upstream_calls(up, 2):
        for i in range(2):
            text = f"{prompt} {i}"
            assert outcome(gw.chat(text)) == "miss"
            assert gw.raw(b"{").status_code == 400
            assert gw.chat(text, key="rf-wrong").status_code == 401
            assert gw.client.get("/nowhere").status_code == 404
            last = gw.chat(text)
            assert byte_identical(gw, last)


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "text/plain", "", "application/octet-stream"]
)
def test_the_content_type_is_not_insisted_on(gw: Running, up: Upstream, prompt: str, content_type: str) -> None:
    """curl sends a form's type by default; what counts is that the body is JSON."""
    with upstream_calls(up, 1):
        for expected in ("miss", "exact"):
            response = gw.raw(body_of(prompt), path="/rr/v1", **{"content-type": content_type})
            assert outcome(response) == expected
    assert up.seen[-1].headers["content-type"] == "application/json"


def test_a_large_body_within_the_bound(gw: Running, up: Upstream, prompt: str) -> None:
    """A long conversation with an image of 2 MB is an ordinary request."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2_000_000}}
    messages = [{"role": "user", "content": [{"type": "text", "text": prompt}, image]}]
    with upstream_calls(up, 1):
        for expected in ("miss", "exact"):
            body = json.dumps({"model": "test-model", "messages": messages}).encode()
            assert outcome(gw.raw(body)) == expected
    assert up.seen[-1].body["messages"] == messages
