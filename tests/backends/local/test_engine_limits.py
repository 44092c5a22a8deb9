"""How the engine refuses, queues, and gives back what a client leaves: with a tiny model, which writes one answer at a
time."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backends.local.conftest import VOCABULARY

pytestmark = pytest.mark.slow

URL = "/v1/completions"
BODY: dict[str, Any] = {"model": "tiny", "prompt": "ab", "temperature": 0, "ignore_eos": True}
NO_SCHEMA = {"type": "json_schema", "json_schema": {"name": "none", "schema": {"type": "nothing"}}}
WAITING = 'refrain_engine_waiting{{priority="interactive"}} {}.0'
IDLE = 'refrain_engine_running{priority="interactive"} 0.0'
LONG = BODY | {"max_tokens": 50_000}  # minutes


async def eventually(client: httpx.AsyncClient, line: str) -> None:
    """Wait until /metrics has this line."""
    for _ in range(200):
        if line in (await client.get("/metrics")).text.splitlines():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the metrics have no line {line!r}")


async def cancelled(client: httpx.AsyncClient) -> float:
    found = re.search(
        r'^refrain_engine_ended_total\{reason="cancelled"\} (.*)$', (await client.get("/metrics")).text, re.M
    )
    return float(found[1]) if found else 0.0


async def test_a_full_queue_refuses_and_clients_that_leave_make_room(tiny_engine: str) -> None:
    async with httpx.AsyncClient(base_url=tiny_engine, timeout=60) as client:
        before = await cancelled(client)
        async with client.stream("POST", URL, json=LONG | {"stream": True}) as running:
            pieces = running.aiter_bytes()  # kept: collecting it would close the stream
            await anext(pieces)
            waiting = [asyncio.create_task(client.post(URL, json=LONG)) for _ in range(2)]
            await eventually(client, WAITING.format(2))
            refused = await client.post(URL, json=LONG)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(refused.headers["retry-after"]) > 0
            waiting[0].cancel()
            await eventually(client, WAITING.format(1))
            waiting[1].cancel()
            await eventually(client, WAITING.format(0))
        await eventually(client, IDLE)
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await cancelled(client) == before + 3
        answer = await client.post(URL, json=BODY | {"max_tokens": 5})
        assert answer.json()["usage"]["completion_tokens"] == 5


async def test_a_client_that_leaves_a_whole_answer_frees_its_slot(tiny_engine: str) -> None:
    async with httpx.AsyncClient(base_url=tiny_engine, timeout=60) as client:
        before = await cancelled(client)
        with pytest.raises(httpx.ReadTimeout):
            await client.post(URL, json=LONG, timeout=0.5)
        await eventually(client, IDLE)
        assert await cancelled(client) == before + 1


async def test_batch_requests_make_way_and_their_full_queue_refuses_only_them(tiny_engine: str) -> None:
    batch = {"x-refrain-priority": "batch"}
    body = BODY | {"prompt": "abc", "max_tokens": 2000}
    async with httpx.AsyncClient(base_url=tiny_engine, timeout=60) as client:
        alone = (await client.post(URL, json=body, headers={"x-refrain-priority": "interactive"})).json()
        async with client.stream("POST", URL, json=body | {"stream": True}, headers=batch) as running:
            pieces = running.aiter_lines()
            await anext(pieces)
            waiting = [asyncio.create_task(client.post(URL, json=LONG, headers=batch)) for _ in range(2)]
            await eventually(client, 'refrain_engine_waiting{priority="batch"} 2.0')
            refused = await client.post(URL, json=BODY, headers=batch)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            answer = await client.post(URL, json=BODY | {"max_tokens": 5})
            assert answer.json()["usage"]["completion_tokens"] == 5
            await eventually(client, 'refrain_engine_preempted_total{priority="batch"} 1.0')
            chunks = [json.loads(line[6:]) async for line in pieces if line.startswith("data: {")]
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
            assert alone["choices"][0]["text"].endswith(text)
            assert len(text) > 1000
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await eventually(client, 'refrain_engine_running{priority="batch"} 0.0')


@pytest.fixture
def http(tiny_engine: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tiny_engine, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({"max_tokens": 65_536}, ["65536", "100000", "65537 tokens (1 in 'prompt', 65536 in the completion)"]),
        ({"prompt": "x" * 70_000}, ["65536", "100000", "70000"]),
    ],
)
def test_memory_limits_the_context(http: httpx.Client, fields: dict[str, Any], numbers: list[str]) -> None:
    response = http.post(URL, json=BODY | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert all(number in error["message"] for number in numbers)
    assert "memory" in error["message"]


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "gpt-4o"}, 404, "model", "model_not_found"),
        ({"model": None}, 400, "model", "missing_required_parameter"),
        ({"model": 5}, 400, "model", "invalid_type"),
        ({"logit_bias": {"99": 1}}, 400, "logit_bias", "invalid_value"),
        (
            {"response_format": {"type": "json_schema"}},
            400,
            "response_format.json_schema",
            "missing_required_parameter",
        ),
    ],
)
def test_refused(http: httpx.Client, fields: dict[str, Any], status: int, param: str, code: str) -> None:
    response = http.post(URL, json=BODY | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)


@pytest.mark.parametrize("name", ["x-refrain-prefix-salt", "x-refrain-party"])
@pytest.mark.parametrize(("value", "status"), [(b"a" * 128, 200), (b"a" * 129, 400), (b"caf\xe9", 400), (b"", 200)])
def test_labels(http: httpx.Client, name: str, value: bytes, status: int) -> None:
    response = http.post(URL, json=BODY | {"max_tokens": 1}, headers={name.encode(): value})
    assert response.status_code == status
    if status != 200:
        assert response.json()["error"]["param"] == name


@pytest.mark.parametrize("path", [URL, "/v1/embeddings"])
@pytest.mark.parametrize("value", ["urgent", "Batch", "batch, batch"])
def test_a_priority_that_is_none(http: httpx.Client, path: str, value: str) -> None:
    response = http.post(path, json=BODY | {"input": "ab", "max_tokens": 1}, headers={"x-refrain-priority": value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-refrain-priority")


def test_a_bias_bans_a_token_or_forces_it(http: httpx.Client) -> None:
    def text(**fields: Any) -> str:
        answer = http.post(URL, json=BODY | {"max_tokens": 20} | fields).json()
        return str(answer["choices"][0]["text"])

    first = text()[0]
    token = VOCABULARY.index(first.replace(" ", "Ġ"))
    assert first not in text(logit_bias={str(token): -100}).replace("ab", "").replace(" a", "")
    assert text(logit_bias={str(VOCABULARY.index("Z")): 100}) == "Z" * 20


def test_too_little_memory_ends_the_start(tiny_gguf: Path) -> None:
    command = [sys.executable, "-m", "backends.local", "--port", "0", "--model", str(tiny_gguf), "--kv-memory", "5000"]
    ended = subprocess.run([*command, "--precision", "fp32"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert "5000" in line
    assert "Traceback" not in ended.stderr
