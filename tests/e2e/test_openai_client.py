"""The official `openai` client for Python against the gateway, changed in nothing but its base URL."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.gateway import ALICE, EVE, Running, config_text, running
from tests.support.traffic import fixed, upstream_calls
from tests.support.upstream import Reply, Upstream, answer_with, chat_answer, chat_chunks, free_port, sse

Json = dict[str, Any]
MODEL = "test-model"
MODES = pytest.mark.parametrize("endpoint", ["", "/rr"], ids=["stream", "request_response"])
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
]
CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
]


@pytest.fixture(scope="module")
def plain(gw: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0, timeout=20) as c:
        yield c


@pytest.fixture
def client(plain: openai.OpenAI, gw: Running, endpoint: str) -> openai.OpenAI:
    return plain.with_options(base_url=f"{gw.url}{endpoint}/v1")


def user(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def streamed(client: openai.OpenAI, prompt: str, **more: Any) -> tuple[list[Json], Json]:
    """The choices put together by the client's own helper, and the usage."""
    with client.chat.completions.stream(model=MODEL, messages=user(prompt), **more) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().model_dump()
    return final["choices"], final["usage"]


@MODES
def test_a_plain_answer_and_its_headers(client: openai.OpenAI, up: Upstream, prompt: str) -> None:
    seen = []
    with upstream_calls(up, 1):
        for _ in range(3):
            raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user(prompt))
            answer = raw.parse()
            assert answer.choices[0].message.content == f"This is answer number {up.calls}."
            assert answer.usage is not None
            assert answer.usage.total_tokens == 18
            assert answer._request_id == raw.headers["x-request-id"]
            seen.append((raw.headers["x-refrain-cache"], raw.headers["x-request-id"]))
    assert [cache for cache, _ in seen] == ["miss", "exact", "exact"]
    assert len({request_id for _, request_id in seen}) == 3
    assert raw.headers["x-refrain-saved"]
    assert int(raw.headers["age"]) >= 0


@MODES
def test_a_streamed_answer(client: openai.OpenAI, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        for expected in ("miss", "exact", "exact"):
            raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user(prompt), stream=True)
            assert raw.headers["x-refrain-cache"] == expected
            pieces = list(raw.parse())
            assert all(p.choices for p in pieces)  # clients index choices[0]
            text = "".join(p.choices[0].delta.content or "" for p in pieces)
            assert text == f"This is answer number {up.calls}."
            assert pieces[-1].choices[0].finish_reason == "stop"


@MODES
def test_usage_of_a_stream(client: openai.OpenAI, prompt: str) -> None:
    for _ in range(2):
        choices, usage = streamed(client, prompt, stream_options={"include_usage": True})
        assert usage["total_tokens"] == 18
        choices, usage = streamed(client, prompt)
        assert usage is None
        assert choices[0]["finish_reason"] == "stop"


@MODES
@pytest.mark.parametrize("first", [False, True], ids=["plain first", "streamed first"])
def test_tool_calls(client: openai.OpenAI, up: Upstream, prompt: str, first: bool) -> None:
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": CALLS}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    up.script = answer_with(chat_answer("", choices=[choice]))
    with upstream_calls(up, 1):
        for stream in (first, not first, first, not first):
            if stream:
                choices, _ = streamed(client, prompt, tools=TOOLS)
            else:
                whole = client.chat.completions.create(model=MODEL, messages=user(prompt), tools=TOOLS)
                choices = whole.model_dump()["choices"]
            assert choices[0]["finish_reason"] == "tool_calls"
            found = choices[0]["message"]["tool_calls"]
            assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in found] == [
                (c["id"], c["function"]["name"], c["function"]["arguments"]) for c in CALLS
            ]


@MODES
def test_several_choices(client: openai.OpenAI, up: Upstream, prompt: str) -> None:
    one = chat_answer("one")["choices"][0]
    two = {**chat_answer("two")["choices"][0], "index": 1}
    up.script = answer_with(chat_answer("", choices=[one, two]))
    with upstream_calls(up, 1):
        for _ in range(2):
            whole = client.chat.completions.create(model=MODEL, messages=user(prompt), n=2)
            assert [c.message.content for c in whole.choices] == ["one", "two"]
            choices, _ = streamed(client, prompt, n=2)
            assert [c["message"]["content"] for c in choices] == ["one", "two"]


def test_unknown_fields_survive(plain: openai.OpenAI, up: Upstream, prompt: str) -> None:
    answer = chat_answer("42")
    answer["choices"][0]["message"]["reasoning_content"] = "six times seven"
    up.script = fixed(Reply([json.dumps(answer).encode()]))
    for _ in range(2):
        whole = plain.chat.completions.create(model=MODEL, messages=user(prompt), extra_body={"novel": {"a": 1}})
        assert (whole.choices[0].message.model_extra or {})["reasoning_content"] == "six times seven"
    assert up.seen[-1].body["novel"] == {"a": 1}


@MODES
def test_legacy_completions(client: openai.OpenAI, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        for _ in range(2):
            assert client.completions.create(model=MODEL, prompt=prompt).choices[0].text == f"text number {up.calls}"
            pieces = client.completions.create(model=MODEL, prompt=prompt, stream=True)
            assert "".join(p.choices[0].text for p in pieces) == f"text number {up.calls}"


def test_models(plain: openai.OpenAI) -> None:
    assert {m.id for m in plain.models.list()} == {"test-model", "other-model"}
    assert plain.models.retrieve("test-model").id == "test-model"
    with pytest.raises(openai.NotFoundError):
        plain.models.retrieve("nothing")


def test_cache_controls_by_extra_headers_and_extra_body(plain: openai.OpenAI, up: Upstream, prompt: str) -> None:
    plain.chat.completions.create(model=MODEL, messages=user(prompt))
    with upstream_calls(up, 2):
        plain.chat.completions.create(model=MODEL, messages=user(prompt), extra_headers={"Cache-Control": "no-cache"})
        plain.chat.completions.create(model=MODEL, messages=user(prompt), extra_body={"cache": {"no-cache": True}})


# Errors become the client's own exceptions.


def test_a_wrong_key(gw: Running) -> None:
    wrong = openai.OpenAI(base_url=f"{gw.url}/v1", api_key="rf-wrong", max_retries=2)
    with wrong as c, pytest.raises(openai.AuthenticationError) as raised:
        c.chat.completions.create(model=MODEL, messages=user("a"))
    assert raised.value.status_code == 401
    assert raised.value.code == "invalid_api_key"
    assert raised.value.type == "authentication_error"
    assert raised.value.request_id


def test_an_unknown_endpoint_and_an_unknown_model(gw: Running, up: Upstream) -> None:
    with openai.OpenAI(base_url=f"{gw.url}/nowhere/v1", api_key=ALICE) as c, pytest.raises(openai.NotFoundError):
        c.chat.completions.create(model=MODEL, messages=user("a"))
    text = config_text(up.url).replace('models: {"*": fake}', 'models: {"known": fake}')
    with running(text) as small, openai.OpenAI(base_url=f"{small.url}/v1", api_key=ALICE) as c:
        with pytest.raises(openai.NotFoundError) as raised:
            c.chat.completions.create(model="other", messages=user("a"))
        assert raised.value.code == "model_not_found"


def test_a_bad_request(plain: openai.OpenAI, up: Upstream) -> None:
    with upstream_calls(up, 0), pytest.raises(openai.BadRequestError) as raised:
        plain.chat.completions.create(model=MODEL, messages=[])
    assert raised.value.param == "messages"
    assert raised.value.type == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_an_upstream_400(plain: openai.OpenAI, up: Upstream, prompt: str, stream: bool) -> None:
    error = {
        "message": "Too long.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    up.script = fixed(Reply([json.dumps({"error": error}).encode()], status=400))
    with pytest.raises(openai.BadRequestError) as raised:
        plain.chat.completions.create(model=MODEL, messages=user(prompt), stream=stream)
    assert raised.value.body == error


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_retried_by_the_client(gw: Running, up: Upstream, prompt: str, status: int) -> None:
    """Twice refused, then answered: the client follows `retry-after-ms`."""
    normal, begun = up.script, up.calls

    def script(seen: Any, number: int) -> Reply:
        if number <= begun + 2:
            return Reply([b'{"error": {"message": "later"}}'], status=status, headers={"retry-after-ms": "10"})
        return normal(seen, number)

    up.script = script
    with openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=2) as c, upstream_calls(up, 3):
        raw = c.chat.completions.with_raw_response.create(model=MODEL, messages=user(prompt))
    assert raw.headers["x-refrain-cache"] == "miss"
    assert raw.retries_taken == 2


def test_a_rate_limit_that_lasts(plain: openai.OpenAI, up: Upstream, prompt: str) -> None:
    body = b'{"error": {"message": "slow", "type": "tokens", "param": null, "code": "rate_limit_exceeded"}}'
    up.script = fixed(Reply([body], status=429, headers={"retry-after": "7"}))
    with pytest.raises(openai.RateLimitError) as raised:
        plain.chat.completions.create(model=MODEL, messages=user(prompt))
    assert raised.value.code == "rate_limit_exceeded"
    assert raised.value.response.headers["retry-after"] == "7"


def test_nothing_cached_is_not_retried(gw: Running, up: Upstream, prompt: str) -> None:
    """504 would be retried, were it not for `x-should-retry: false`."""
    asked = gw.admin("GET", "/admin/stats").json()["requests"]
    only = {"Cache-Control": "only-if-cached"}
    retrying = openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=2)
    with retrying as c, upstream_calls(up, 0), pytest.raises(openai.InternalServerError) as raised:
        c.chat.completions.create(model=MODEL, messages=user(prompt), extra_headers=only)
    assert raised.value.code == "not_cached"
    after = gw.admin("GET", "/admin/stats").json()["requests"]
    assert sum(after.values()) == sum(asked.values()) + 1


def test_an_upstream_that_is_down(up: Upstream) -> None:
    with running(config_text(f"http://127.0.0.1:{free_port()}/v1")) as dead:
        impatient = openai.OpenAI(base_url=f"{dead.url}/v1", api_key=ALICE, max_retries=0)
        with impatient as c, pytest.raises(openai.InternalServerError) as raised:
            c.chat.completions.create(model=MODEL, messages=user("a"))
    assert raised.value.status_code == 502


@pytest.mark.parametrize("end", ["cut", "error event", "no finish_reason"])
def test_a_stream_that_breaks_raises(plain: openai.OpenAI, up: Upstream, prompt: str, end: str) -> None:
    """The client must not take half an answer for a whole one."""
    begun = sse(chat_chunks(chat_answer("one two three"), include_usage=True)[:3], done=False)
    tail = {
        "cut": b"",
        "error event": b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n',
        "no finish_reason": b"data: [DONE]\n\n",
    }[end]
    up.script = fixed(Reply([begun, tail], content_type="text/event-stream", pause=0.05, cut=end == "cut"))
    stream = plain.chat.completions.create(model=MODEL, messages=user(prompt), stream=True)
    with stream, pytest.raises(openai.APIError):
        for _ in stream:
            pass


def test_leaving_a_stream_early(plain: openai.OpenAI, up: Upstream, prompt: str) -> None:
    """Closing the client's stream cancels the upstream's work."""
    from tests.support.traffic import until

    pieces = [sse([c], done=False) for c in chat_chunks(chat_answer("word " * 100), include_usage=True)]
    up.script = fixed(Reply(pieces, content_type="text/event-stream", pause=0.05))
    before = up.cancelled
    with plain.chat.completions.create(model=MODEL, messages=user(prompt), stream=True) as stream:
        next(iter(stream))
    until(lambda: up.cancelled == before + 1, timeout=3)


def test_two_tenants(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 2):
        for key in (ALICE, EVE, ALICE, EVE):
            with openai.OpenAI(base_url=f"{gw.url}/v1", api_key=key) as c:
                c.chat.completions.create(model=MODEL, messages=user(prompt))


async def test_the_asynchronous_client(gw: Running, up: Upstream, prompt: str) -> None:
    with upstream_calls(up, 1):
        async with openai.AsyncOpenAI(base_url=f"{gw.url}/rr/v1", api_key=ALICE, max_retries=0) as c:
            whole = await c.chat.completions.create(model=MODEL, messages=user(prompt))
            stream = await c.chat.completions.create(model=MODEL, messages=user(prompt), stream=True)
            text = "".join([p.choices[0].delta.content or "" async for p in stream])
    assert text == whole.choices[0].message.content
