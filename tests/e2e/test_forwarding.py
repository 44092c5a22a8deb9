"""What reaches the upstream of a client's request, and what never does."""

import json
from typing import Any

import httpx
import pytest

from tests.support.gateway import ALICE, EVE, Running
from tests.support.traffic import outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Upstream

MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])

NOT_FORWARDED = {
    "cookie": "session=client",
    "x-refrain-tags": "red",
    "x-refrain-ttl": "10m",
    "x-refrain-tier": "exact",
    "x-refrain-on-behalf": "user=u; permissions=hr",
    "x-refrain-prefix-salt": "client",
    "x-refrain-party": "client",
    "x-refrain-priority": "batch",
    "cache-control": "max-age=60",
    "prefer": "wait=1",
    "openai-organization": "org-client",
    "openai-project": "proj-client",
    "x-stainless-lang": "python",
    "x-forwarded-for": "10.0.0.1",
    "x-real-ip": "10.0.0.1",
    "forwarded": "for=10.0.0.1",
    "via": "1.1 client",
    "referer": "http://client.example/",
    "origin": "http://client.example",
    "accept-language": "de",
    "x-api-key": ALICE,
    "idempotency-key": "client-1",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "x-custom": "client",
    "proxy-authorization": "Basic Y2xpZW50",
    "te": "trailers",
    "expect-ct": "client",
}
EXPECTED = {
    "host",
    "user-agent",
    "accept",
    "accept-encoding",
    "content-type",
    "content-length",
    "authorization",
    "connection",
}


@MODES
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_client_headers_stay_here(gw: Running, up: Upstream, prompt: str, path: str, stream: bool) -> None:
    with upstream_calls(up, 1):
        outcome(gw.chat(prompt, path=path, stream=stream, headers=NOT_FORWARDED))
    headers = up.seen[-1].headers
    assert headers.keys() <= EXPECTED
    assert headers["authorization"] == "Bearer sk-upstream-secret"
    assert headers["host"] == f"127.0.0.1:{up.port}"
    for value in headers.values():
        assert ALICE not in value
        assert "client" not in value
    assert "python-httpx" not in headers["user-agent"]


@MODES
@pytest.mark.parametrize("name", ["anthropic-version", "anthropic-beta", "OpenAI-Beta"])
def test_headers_that_change_answers_are_passed_on_and_in_the_key(
    gw: Running, up: Upstream, prompt: str, path: str, name: str
) -> None:
    values: list[str | None] = ["v1", "v2", None, "v1", "v2", None]
    with upstream_calls(up, 3):
        answers = [gw.chat(prompt, path=path, headers={name: v} if v else {}) for v in values]
    assert [outcome(a) for a in answers] == ["miss"] * 3 + ["exact"] * 3
    assert [s.headers.get(name.lower()) for s in up.seen[-3:]] == ["v1", "v2", None]
    assert [a.content for a in answers[:3]] == [a.content for a in answers[3:]]


def test_such_headers_do_not_run_into_each_other(gw: Running, up: Upstream, prompt: str) -> None:
    variants: list[dict[str, str]] = [
        {"anthropic-beta": "a", "openai-beta": "b"},
        {"anthropic-beta": "b", "openai-beta": "a"},
        {"anthropic-beta": "ab"},
        {"openai-beta": "ab"},
        {"anthropic-beta": "a,b"},
        {"anthropic-version": "a", "anthropic-beta": "b"},
    ]
    with upstream_calls(up, len(variants)):
        for headers in variants:
            assert outcome(gw.chat(prompt, headers=headers)) == "miss"


@MODES
def test_the_api_version_is_passed_on_and_in_the_key(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}

    def ask(query: str) -> httpx.Response:
        return gw.client.post(
            f"{path}/chat/completions{query}", json=body, headers={"authorization": f"Bearer {ALICE}"}
        )

    with upstream_calls(up, 3):
        for query in ("?api-version=2024-06-01", "?api-version=2025-01-01", ""):
            assert outcome(ask(query)) == "miss"
            assert up.seen[-1].query == query.removeprefix("?")
    with upstream_calls(up, 0):
        for query in ("?api-version=2024-06-01", "?api-version=2025-01-01", ""):
            assert outcome(ask(query)) == "exact"


def test_other_queries_stay_here(gw: Running, up: Upstream, prompt: str) -> None:
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    headers = {"authorization": f"Bearer {ALICE}"}
    with upstream_calls(up, 1):
        gw.client.post("/v1/chat/completions?key=client&api-version=1&x=../..", json=body, headers=headers)
    assert up.seen[-1].query == "api-version=1"


@MODES
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_the_cache_object_stays_here(gw: Running, up: Upstream, prompt: str, path: str, stream: bool) -> None:
    with upstream_calls(up, 1):
        outcome(gw.chat(prompt, path=path, stream=stream, cache={"ttl": 60, "namespace": "x"}))
    assert "cache" not in up.seen[-1].body


@MODES
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_the_body_reaches_the_upstream_as_it_was(
    gw: Running, up: Upstream, prompt: str, path: str, stream: bool
) -> None:
    """Every field, known or not, out of the key or in it; only who streams is the endpoint's affair."""
    more: dict[str, Any] = {
        "user": "u1",
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "store": False,
        "temperature": 0.7000000000000001,
        "seed": 2**62 + 1,
        "unknown": {"deep": [1, 2.50, None, True, "é\u2028\U0001f600"], "empty": {}},
        "max_tokens": 5,
        "stop": None,
    }
    with upstream_calls(up, 1):
        outcome(gw.chat(prompt, path=path, stream=stream, **more))
    sent = up.seen[-1].body
    upstream_streams = path == "/v1"
    assert bool(sent.pop("stream", False)) is upstream_streams
    sent.pop("stream_options", None)
    assert sent == {"model": "test-model", "messages": [{"role": "user", "content": prompt}], **more}


def test_stream_options_of_the_client_are_kept(gw: Running, up: Upstream, prompt: str) -> None:
    outcome(gw.chat(prompt, stream=True, stream_options={"include_obfuscation": False}))
    assert up.seen[-1].body["stream_options"]["include_obfuscation"] is False


def test_a_request_that_does_not_stream_sends_no_stream_options(gw: Running, up: Upstream, prompt: str) -> None:
    """Upstreams refuse `stream_options` without `stream: true`."""
    outcome(gw.chat(prompt, path="/rr/v1", stream=True, stream_options={"include_usage": True}))
    assert not up.seen[-1].body.get("stream")
    assert "stream_options" not in up.seen[-1].body


@MODES
def test_cookies_of_the_upstream_go_nowhere(gw: Running, up: Upstream, prompt: str, path: str) -> None:
    """Set by one answer, a cookie is neither sent with the next request, nor stored, nor shown to a client."""
    script = up.script

    def setting(seen: Any, number: int) -> Reply:
        reply = script(seen, number)
        reply.headers["set-cookie"] = f"session=s{number}; Path=/"
        return reply

    up.script = setting
    answers = [gw.chat(f"{prompt} {i}", path=path, key=key) for i in (1, 1, 2) for key in (ALICE, EVE)]
    assert all("cookie" not in seen.headers for seen in up.seen[-4:])
    assert not [a for a in answers if "set-cookie" in a.headers or "session=s" in a.text]


def test_many_requests_at_once_get_their_own_answers(gw: Running, up: Upstream, prompt: str) -> None:
    """Over pooled connections nobody gets another's reply."""
    from concurrent.futures import ThreadPoolExecutor

    from tests.support.upstream import chat_answer, reply_for

    up.script = lambda seen, number: reply_for(seen, chat_answer("You said: " + seen.body["messages"][0]["content"]))

    def ask(number: int) -> tuple[str, str]:
        text = f"{prompt} {number % 20}"
        head = {"authorization": f"Bearer {ALICE}"}
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": bool(number % 3)}
        path = ("/v1", "/rr/v1")[number % 2]
        return text, text_of(gw.client.post(f"{path}/chat/completions", content=json.dumps(body), headers=head))

    with ThreadPoolExecutor(12) as pool:
        for asked, answered in pool.map(ask, range(120)):
            assert answered == f"You said: {asked}"
