"""Errors: always in the envelope, with the right status, whatever went wrong."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import ALICE, Running, config_text, running
from tests.support.traffic import error_of, events, fixed, outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, chat_chunks, free_port, sse

FORMS = pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])
SSE = "text/event-stream"

WRONG_ROUTES = [
    ("GET", "/", 404),
    ("GET", "/nowhere", 404),
    ("POST", "/nowhere", 404),
    ("POST", "/v1/nowhere", 404),
    ("POST", "/v1", 404),
    ("POST", "/v1/chat", 404),
    ("POST", "/chat/completions", 404),
    ("GET", "/v1/chat/completions", 405),
    ("PUT", "/v1/chat/completions", 405),
    ("DELETE", "/v1/chat/completions", 405),
    ("PATCH", "/rr/v1/chat/completions", 405),
    ("OPTIONS", "/v1/chat/completions", 405),
    ("POST", "/v1/models", 405),
    ("POST", "/healthz", 405),
    ("GET", "/admin/purge", 405),
    ("POST", "/admin/stats", 405),
    ("POST", "/v1/chat/completions/", 404),
    ("POST", "/v1/chat/completions/more", 404),
    ("POST", "/rr/v2/chat/completions", 404),
    ("POST", "/a/b/v1/chat/completions", 404),
]


@pytest.mark.parametrize(("method", "path", "status"), WRONG_ROUTES)
def test_unknown_routes_and_wrong_methods(gw: Running, up: Upstream, method: str, path: str, status: int) -> None:
    with upstream_calls(up, 0):
        response = gw.client.request(method, path, headers={"authorization": f"Bearer {ALICE}"})
    error_of(response, status)
    if status == 405:
        assert response.headers["allow"]


def test_a_head_request_has_no_body(gw: Running) -> None:
    response = gw.client.head("/nowhere")
    assert response.status_code == 404
    assert response.content == b""


@pytest.mark.parametrize("name", ["nowhere", "Default", "RR", "rr%20", "%2e%2e", "é", "a" * 5_000, "<script>"])
def test_unknown_endpoints(gw: Running, up: Upstream, name: str) -> None:
    with upstream_calls(up, 0):
        error = error_of(gw.chat("a", path=f"/{name}/v1"), 404)
    assert len(error["message"]) < 500
    assert error["type"] == "invalid_request_error"


BAD_BODIES: dict[str, bytes] = {
    "empty": b"",
    "blank": b"  ",
    "cut": b'{"model": "m", "messages": [',
    "list": b"[]",
    "text": b'"text"',
    "null": b"null",
    "form": b"model=m&messages=a",
    "trailing comma": b'{"model": "m", "messages": [{"role": "user", "content": "a"}],}',
    "two documents": b'{"model": "m", "messages": [{"role": "user", "content": "a"}]} {}',
    "single quotes": b"{'model': 'm'}",
    "raw control character": b'{"model": "m\x01", "messages": [{"role": "user", "content": "a"}]}',
    "UTF-16": '{"model": "m", "messages": [{"role": "user", "content": "a"}]}'.encode("utf-16"),
    "no model": b'{"messages": [{"role": "user", "content": "a"}]}',
    "model null": b'{"model": null, "messages": [{"role": "user", "content": "a"}]}',
    "model a number": b'{"model": 1, "messages": [{"role": "user", "content": "a"}]}',
    "model empty": b'{"model": "", "messages": [{"role": "user", "content": "a"}]}',
    "no messages": b'{"model": "m"}',
    "messages null": b'{"model": "m", "messages": null}',
    "messages empty": b'{"model": "m", "messages": []}',
    "messages text": b'{"model": "m", "messages": "a"}',
    "a message text": b'{"model": "m", "messages": ["a"]}',
    "stream text": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": "yes"}',
    "stream number": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": 1}',
    "stream_options text": b'{"model": "m", "messages": [{"content": "a"}], "stream": true, "stream_options": "a"}',
    "n zero": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "n": 0}',
    "n negative": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "n": -1}',
    "n huge": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "n": 1000000000}',
    "n text": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "n": "2"}',
    "n true": b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "n": true}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_bodies_that_are_no_request(gw: Running, up: Upstream, body: bytes) -> None:
    with upstream_calls(up, 0):
        error = error_of(gw.raw(body), 400)
    assert error["type"] == "invalid_request_error"


def test_a_wrong_field_is_named(gw: Running) -> None:
    for body, param in ((b'{"messages": [{}]}', "model"), (b'{"model": "m"}', "messages"), (BAD_BODIES["n zero"], "n")):
        assert error_of(gw.raw(body), 400)["param"] == param


def test_a_model_that_nobody_serves(up: Upstream) -> None:
    text = config_text(up.url).replace('models: {"*": fake}', 'models: {"known-*": fake}')
    with running(text) as gw, upstream_calls(up, 1):
        error = error_of(gw.chat("a", model="other"), 404)
        assert error["code"] == "model_not_found"
        assert outcome(gw.chat("a", model="KNOWN-1")) == "miss"


# The upstream's errors


@MODES
@FORMS
@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
def test_an_error_that_is_the_clients_to_mend_says_what(
    gw: Running, up: Upstream, prompt: str, path: str, stream: bool, status: int
) -> None:
    error = {
        "message": "Too many tokens.",
        "type": "their_type",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    up.script = fixed(Reply([json.dumps({"error": error}).encode()], status=status))
    with upstream_calls(up, 1):
        assert error_of(gw.chat(prompt, path=path, stream=stream), status) == error


@pytest.mark.parametrize("status", [401, 403, 500, 502, 503, 504, 529, 301, 302, 307, 204, 206])
def test_other_statuses_are_errors_of_the_upstream(gw: Running, up: Upstream, prompt: str, status: int) -> None:
    """Not the client's fault: 5xx, and nothing of the upstream's text. A redirect is not followed."""
    body = [] if status == 204 else [b'{"error": {"message": "secret detail"}}']
    up.script = fixed(Reply(body, status=status, headers={"location": up.url}))
    with upstream_calls(up, 1):
        response = gw.chat(prompt)
    error_of(response, response.status_code)
    assert 500 <= response.status_code < 600
    assert "secret detail" not in response.text
    assert "location" not in response.headers


@MODES
@FORMS
@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "7"},
        {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"},
        {"retry-after-ms": "1500", "retry-after": "2"},
    ],
    ids=str,
)
def test_retry_after_passes_unchanged(
    gw: Running, up: Upstream, prompt: str, path: str, stream: bool, headers: dict[str, str]
) -> None:
    up.script = fixed(Reply([b'{"error": {"message": "slow down"}}'], status=429, headers=headers))
    response = gw.chat(prompt, path=path, stream=stream)
    error_of(response, 429)
    for name, value in headers.items():
        assert response.headers[name] == value


@pytest.mark.parametrize(
    "body",
    [b"", b"plain text", b"[]", b'{"error": "text"}', b'{"error": null}', b'{"detail": [{"loc": 1}]}', b"\xff\xfe",
     b'{"error": {"message": 1, "type": [], "param": {}, "code": 429}}', b"[" * 100_000],
)  # fmt: skip
@pytest.mark.parametrize("status", [400, 500])
def test_error_bodies_of_any_shape(gw: Running, up: Upstream, prompt: str, status: int, body: bytes) -> None:
    up.script = fixed(Reply([body], status=status))
    error_of(gw.chat(prompt), status)


# Upstreams that do not answer properly


@pytest.fixture(scope="module")
def hasty(up: Upstream) -> Iterator[Running]:
    """Short timeouts, and one backend that nobody listens for."""
    text = config_text(up.url, extra="  nobody: {mode: stream, backend: dead}\n")
    timeouts = "timeouts: {connect: 1s, first_byte: 400ms, between_chunks: 400ms}"
    dead = f'dead: {{kind: remote, base_url: "http://127.0.0.1:{free_port()}/v1"}}'
    text = text.replace("api_key: sk-upstream-secret}", f"api_key: sk-upstream-secret, {timeouts}}}\n  {dead}")
    with running(text) as gateway:
        yield gateway


@FORMS
def test_an_upstream_that_is_down(hasty: Running, prompt: str, stream: bool) -> None:
    error = error_of(hasty.chat(prompt, path="/nobody/v1", stream=stream), 502)
    assert "127.0.0.1" not in error["message"]
    assert outcome(hasty.chat(prompt)) == "miss"


@MODES
@FORMS
def test_an_upstream_that_hangs_before_the_first_byte(
    hasty: Running, up: Upstream, prompt: str, path: str, stream: bool
) -> None:
    script = up.script
    up.script = fixed(Reply([b"{}"], first_pause=10))
    response = hasty.chat(prompt, path=path, stream=stream)
    error_of(response, 504)
    assert response.elapsed.total_seconds() < 5
    up.script = script
    with upstream_calls(up, 1):
        assert text_of(hasty.chat(prompt, path=path, stream=stream))


def begun(pieces: list[bytes], **more: Any) -> Reply:
    """A stream that has begun well, and what comes a moment after its beginning has been passed on."""
    good = sse(chat_chunks(chat_answer("one two three"), include_usage=True)[:3], done=False)
    return Reply([good, *pieces], content_type=SSE, pause=0.05, **more)


STOPPED: dict[str, Reply] = {
    "cut": begun([], cut=True),
    "cut inside an event": begun([b'data: {"id": "chat'], cut=True),
    "ends early": begun([]),
    "ends early with DONE": begun([b"data: [DONE]\n\n"]),
    "garbage event": begun([b"data: this is no JSON\n\n"]),
    "event that is a list": begun([b"data: [1]\n\n"]),
    "broken UTF-8": begun([b'data: {"id": "\xff"}\n\n']),
    "error event": begun(
        [b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n', b"data: [DONE]\n\n"]
    ),
    "hangs": begun([], hang=10),
}


@pytest.mark.parametrize("reply", STOPPED.values(), ids=STOPPED)
def test_a_stream_that_breaks_ends_with_an_error_event(hasty: Running, up: Upstream, prompt: str, reply: Reply) -> None:
    """The status is out, so the error is an event, and no `[DONE]` follows it."""
    up.script = fixed(reply)
    response = hasty.chat(prompt, stream=True)
    assert response.status_code == 200
    found = events(response.text)
    assert "[DONE]" not in found
    last = json.loads(found[-1])
    assert last["error"].keys() == {"message", "type", "param", "code"}
    assert json.loads(found[0])["choices"]
    up.script = fixed(Reply([sse(chat_chunks(chat_answer("well"), include_usage=True))], content_type=SSE))
    with upstream_calls(up, 1):
        assert text_of(hasty.chat(prompt, stream=True)) == "well"


@pytest.mark.parametrize("reply", STOPPED.values(), ids=STOPPED)
def test_a_client_that_does_not_stream_gets_a_5xx_instead(
    hasty: Running, up: Upstream, prompt: str, reply: Reply
) -> None:
    up.script = fixed(reply)
    response = hasty.chat(prompt)
    error_of(response, response.status_code)
    assert 500 <= response.status_code < 600


GARBAGE: dict[str, Reply] = {
    "HTML": Reply([b"<html>hello</html>"], content_type="text/html"),
    "nothing": Reply([b""]),
    "a list": Reply([b"[1, 2]"]),
    "a number": Reply([b"42"]),
    "broken UTF-8": Reply([b'{"choices": "\xff"}']),
    "deep": Reply([b'{"a":' * 50_000]),
    "cut": Reply([b'{"id": "x", "choi'], cut=True),
    "cut, though complete": Reply([json.dumps(chat_answer("a")).encode()], cut=True),
    "no event stream": Reply([b"hello\n\nworld\n\n"], content_type=SSE),
    "an empty event stream": Reply([b""], content_type=SSE),
}


@MODES
@FORMS
@pytest.mark.parametrize("reply", GARBAGE.values(), ids=GARBAGE)
def test_an_upstream_that_answers_garbage(
    gw: Running, up: Upstream, prompt: str, path: str, stream: bool, reply: Reply
) -> None:
    up.script = fixed(reply)
    with upstream_calls(up, 2):
        for _ in range(2):
            response = gw.chat(prompt, path=path, stream=stream)
            error_of(response, response.status_code)
            assert response.status_code >= 500


@pytest.mark.parametrize("answer", [b'{"id": "x"}', b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": {"a": 1}}'])
def test_a_stream_cannot_be_made_of_an_answer_without_choices(
    gw: Running, up: Upstream, prompt: str, answer: bytes
) -> None:
    up.script = fixed(Reply([answer]))
    response = gw.chat(prompt, path="/rr/v1", stream=True)
    error_of(response, response.status_code)
    assert response.status_code >= 500
    with upstream_calls(up, 1):
        gw.chat(prompt, path="/rr/v1")


@MODES
def test_an_upstream_that_answers_in_the_other_form(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Asked for a stream it sends an object, or the other way round: the client gets what it asked for."""
    answer = chat_answer("in the other form")
    if path == "/v1":
        up.script = fixed(Reply([json.dumps(answer).encode()]))
    else:
        up.script = fixed(Reply([sse(chat_chunks(answer, include_usage=True))], content_type=SSE))
    with upstream_calls(up, 1):
        for stream in (True, False):
            assert text_of(gw.chat(prompt, path=path, stream=stream)) == "in the other form"


def test_the_gateway_goes_on_after_all_that(gw: Running, prompt: str) -> None:
    assert outcome(gw.chat(prompt)) == "miss"
    assert httpx.get(f"{gw.url}/healthz", trust_env=False).json() == {"status": "ok"}
