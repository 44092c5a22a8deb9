"""Many requests at once, and prompts that share a beginning: the real model behind a real socket."""

import asyncio
import json
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "SmolLM2-135M-Instruct"
QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "What is two plus two?",
    "Who wrote Hamlet?",
    "Tell me a joke.",
    "How do I boil an egg? Answer in a few short steps, please, and say how long each of them takes.",
]
MANUAL = "".join(f"Rule {number}: keep door {number} shut and lamp {number} lit. " for number in range(20))


def question(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 24} | fields


async def streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> list[Any]:
    async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        assert response.status_code == 200
        *lines, done = [line async for line in response.aiter_lines() if line]
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def texts_of(chunks: list[Any]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
    return texts


async def test_streams_at_once_say_what_they_say_one_after_another(engine: str) -> None:
    bodies = [question(text) for text in QUESTIONS]
    async with httpx.AsyncClient(base_url=engine, timeout=110) as client:
        alone = [texts_of(await streamed(client, body)) for body in bodies]
        together = [texts_of(chunks) for chunks in await asyncio.gather(*(streamed(client, body) for body in bodies))]
        metrics = (await client.get("/metrics")).text
    assert together == alone
    assert len({texts[0] for texts in alone}) == len(QUESTIONS)
    for priority in ("interactive", "batch"):
        assert f'refrain_engine_running{{priority="{priority}"}} 0.0' in metrics
        assert f'refrain_engine_waiting{{priority="{priority}"}} 0.0' in metrics


async def test_a_prompt_that_was_seen_before_is_not_computed_again(engine: str) -> None:
    body = question(f"{MANUAL}\nWhat must I do with door 7?")
    other = question(f"{MANUAL}\nWhich lamp is at door 9?")
    async with httpx.AsyncClient(base_url=engine, timeout=110) as client:
        # Salts of its own: other tests of this engine have left the beginning of the chat template behind.
        one, another = ({"x-refrain-prefix-salt": name} for name in ("seen before", "another"))
        answers = [await client.post("/v1/chat/completions", json=sent, headers=one) for sent in (body, body, other)]
        salted = await client.post("/v1/chat/completions", json=body, headers=another)
    cold, warm, shared, elsewhere = (answer.json() for answer in (*answers, salted))
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (cold, warm, shared, elsewhere)]
    prompt = cold["usage"]["prompt_tokens"]
    assert cached[0] == cached[3] == 0
    assert prompt - 64 < cached[1] < prompt
    assert prompt - 64 < cached[2] <= cached[1]
    assert warm["choices"] == cold["choices"] == elsewhere["choices"]


async def test_several_choices_are_written_side_by_side(engine: str) -> None:
    body = question("Tell me something.", n=3, temperature=1.2, seed=5, max_tokens=8)
    async with httpx.AsyncClient(base_url=engine, timeout=110) as client:
        chunks = await streamed(client, body | {"stream_options": {"include_usage": True}})
        whole = (await client.post("/v1/chat/completions", json=body)).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    texts = {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert texts == texts_of(chunks)
    assert len(set(texts.values())) == 3
    assert whole["usage"]["completion_tokens"] == chunks[-1]["usage"]["completion_tokens"]
    order = [chunk["choices"][0]["index"] for chunk in chunks[:-1]]
    assert sorted(set(order)) == [0, 1, 2]
    assert order != sorted(order)  # they interleave
    ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]


def test_the_phases_of_an_answer(engine: str) -> None:
    body = question("Who wrote Hamlet?", max_tokens=4)
    whole = httpx.post(f"{engine}/v1/chat/completions", json=body, timeout=110)
    times = {name: float(value) for name, value in (part.split(";dur=") for part in timing(whole))}
    assert list(times) == ["queue", "prefill", "decode", "total"]
    assert sum(times.values()) - times["total"] <= times["total"] + 0.3  # the phases are rounded
    with httpx.stream("POST", f"{engine}/v1/chat/completions", json=body | {"stream": True}, timeout=110) as stream:
        stream.read()
    assert [part.split(";")[0] for part in timing(stream)] == ["queue", "prefill"]


def timing(response: httpx.Response) -> list[str]:
    return response.headers["server-timing"].split(", ")
