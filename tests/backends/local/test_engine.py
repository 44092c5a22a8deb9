"""The real model behind a real socket."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

# Slow: a minute and more on two cores. tests/e2e/test_main_job.py drives the same engine in every run.
pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "SmolLM2-135M-Instruct"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
LONG = {"model": MODEL, "prompt": "Once upon a time", "temperature": 1, "seed": 3, "max_tokens": 3000}


@pytest.fixture
def http(engine: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine, timeout=60) as client:
        yield client


def chat(http: httpx.Client, **fields: Any) -> Any:
    response = http.post("/v1/chat/completions", json={"model": MODEL, "messages": CAPITAL, "temperature": 0} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(http: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
    """The data of the stream; checks its framing."""
    body = {"model": MODEL, "temperature": 0, "stream": True} | fields
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def text_of(stream: list[Any], choice: int = 0) -> str:
    deltas = [c for chunk in stream for c in chunk["choices"] if c["index"] == choice]
    return "".join(c["delta"].get("content", "") for c in deltas)


def metric(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_it_says_that_it_loads_before_it_is_ready(
    engine_start: tuple[str, httpx.Response, httpx.Response], http: httpx.Client
) -> None:
    _, status, refused = engine_start
    assert status.status_code == 503
    assert status.json()["status"] == "loading"
    assert status.json()["detail"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_starting")
    assert int(refused.headers["retry-after"]) > 0
    assert http.get("/readyz").json() == {"status": "ready"}
    assert http.get("/healthz").json() == {"status": "ok"}


def test_greedy_answer(http: httpx.Client) -> None:
    answer = chat(http)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == MODEL
    assert answer["system_fingerprint"] == f"{MODEL}-fp32"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": ANSWER, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = answer["usage"]
    assert usage.pop("prompt_tokens_details")["cached_tokens"] in range(37)
    assert usage == {"prompt_tokens": 37, "completion_tokens": 8, "total_tokens": 45}


def test_streamed_is_the_same_answer(http: httpx.Client) -> None:
    stream = chunks(http, messages=CAPITAL)
    assert text_of(stream) == ANSWER
    assert len(stream) >= 8  # token by token
    assert stream[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert stream[-1]["choices"][0]["delta"] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in stream] == [None] * (len(stream) - 1) + ["stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in stream}) == 1
    assert not any("usage" in chunk for chunk in stream)


def test_streamed_usage_only_when_asked(http: httpx.Client) -> None:
    *ordinary, last = chunks(http, messages=CAPITAL, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in ordinary)
    assert last["choices"] == []
    usage, whole = last["usage"], chat(http)["usage"]
    assert usage.pop("prompt_tokens_details").keys() == whole.pop("prompt_tokens_details").keys() == {"cached_tokens"}
    assert usage == whole


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("Paris", "The capital of France is "),
        ("al of Fra", "The capit"),  # begins and ends inside tokens
        (["zebra", "is Par", "France is Paris."], "The capital of France "),
        ("The", ""),
        ("Paris.!", ANSWER),  # held back, then shown
    ],
)
def test_stop_strings(http: httpx.Client, stop: Any, text: str) -> None:
    stream = chunks(http, messages=CAPITAL, stop=stop)
    assert text_of(stream) == text
    assert stream[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_in_a_whole_answer(http: httpx.Client) -> None:
    choice = chat(http, stop=["al of Fra"])["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("The capit", "stop")


def test_length(http: httpx.Client) -> None:
    answer = chat(http, max_completion_tokens=3)
    assert answer["choices"][0]["message"]["content"] == "The capital of"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_the_seed_decides_a_sampled_answer(http: httpx.Client) -> None:
    def sampled(seed: int) -> str:
        messages = [{"role": "user", "content": "Tell me something."}]
        answer = chat(http, messages=messages, temperature=1.2, seed=seed, max_tokens=6)
        return str(answer["choices"][0]["message"]["content"])

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_several_choices(http: httpx.Client) -> None:
    fields = {"n": 2, "temperature": 1.2, "seed": 5, "max_tokens": 4}
    answer = chat(http, **fields)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert texts[0] != texts[1]
    usage = answer["usage"]
    assert usage.pop("prompt_tokens_details")["cached_tokens"] in range(37)
    assert usage == {"prompt_tokens": 37, "completion_tokens": 8, "total_tokens": 45}
    stream = chunks(http, messages=CAPITAL, **fields)
    assert [text_of(stream, 0), text_of(stream, 1)] == texts
    ends = [c["index"] for chunk in stream for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1]


def test_characters_of_several_tokens_are_never_cut(http: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": "🎉🦜 🎉🦜 🎉🦜 🎉🦜 🎉", "max_tokens": 10}
    stream = chunks(http, "/v1/completions", **body)
    pieces = [choice["text"] for chunk in stream for choice in chunk["choices"]]
    whole = http.post("/v1/completions", json=body | {"temperature": 0}).json()["choices"][0]["text"]
    assert "".join(pieces) == whole
    assert "🦜" in whole
    assert "\ufffd" not in whole


def test_legacy_completion(http: httpx.Client) -> None:
    body = {"model": MODEL, "prompt": ["The capital of France is"], "temperature": 0}
    answer = http.post("/v1/completions", json=body).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"].startswith(" Paris")
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 16,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 0},  # too short for the prefix cache
    }


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, ["8192", "90"]),
        ({"max_tokens": 8190}, ["8192", "8227", "37", "8190"]),
    ],
)
def test_a_request_over_the_context(http: httpx.Client, fields: dict[str, Any], numbers: list[str]) -> None:
    response = http.post("/v1/chat/completions", json={"model": MODEL, "messages": CAPITAL} | fields)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert all(number in error["message"] for number in numbers)


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b'{"messages": "\\ud800"}', 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"\xff", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[]", 400, "invalid_type"),
        ("POST", "/v1/chat/completions", b'{"messages": [], "tools": [1]}', 400, "unsupported_parameter"),
        ("POST", "/v1/chat/completions", b" " * (10 * 2**20 + 1), 413, "request_too_large"),
        ("GET", "/v1/chat/completions", b"", 405, None),
        ("GET", "/v1/nothing", b"", 404, "unknown_url"),
        ("GET", "/v1/models/", b"", 404, "unknown_url"),
    ],
)
def test_errors_have_the_envelope(
    http: httpx.Client, method: str, path: str, content: bytes, status: int, code: str | None
) -> None:
    response = http.request(method, path, content=content)
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert response.headers["x-request-id"]


def test_a_client_that_leaves_its_stream_frees_the_engine(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
        next(response.iter_bytes())
    start = time.monotonic()
    chat(http, max_tokens=1)
    assert time.monotonic() - start < 5  # the 3,000 tokens would take minutes


def test_a_client_that_leaves_without_streaming_frees_the_engine(http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/completions", json=LONG, timeout=0.5)
    start = time.monotonic()
    chat(http, max_tokens=1)
    assert time.monotonic() - start < 5
    assert metric(http, 'refrain_engine_requests_total{status="499"}') >= 1


def test_a_long_prompt_is_left_within_one_piece_of_it(http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/completions", json={"model": MODEL, "prompt": "word " * 8000}, timeout=0.5)
    start = time.monotonic()
    chat(http, max_tokens=1)
    assert time.monotonic() - start < 10  # the whole prompt would take longer


def test_metrics(http: httpx.Client) -> None:
    before = (
        metric(http, 'refrain_engine_tokens_total{kind="completion"}'),
        metric(http, "refrain_engine_busy_seconds_total"),
    )
    chat(http)
    after = (
        metric(http, 'refrain_engine_tokens_total{kind="completion"}'),
        metric(http, "refrain_engine_busy_seconds_total"),
    )
    assert after[0] - before[0] == 8
    assert 0 < after[1] - before[1] < 30
    assert metric(http, 'refrain_engine_requests_total{status="200"}') >= 1


def test_the_official_client(engine: str) -> None:
    with openai.OpenAI(base_url=f"{engine}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        answer = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0)
        assert answer.choices[0].message.content == ANSWER
        with client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, stream=True) as stream:
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=CAPITAL, frequency_penalty=3)
        assert (caught.value.param, caught.value.code) == ("frequency_penalty", "invalid_value")
