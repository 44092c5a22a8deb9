"""The main job, as the README tells it: `refrain serve` with nothing configured, a real model, a real client, and the
second answer from the cache, also after a restart and after `kill -9`."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.live import Caller
from tests.support.process import ROOT, Served, refrain, serve
from tests.support.traffic import events, until

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France?"
MODEL = "SmolLM2-135M-Instruct"
NODE = ROOT / "tests/e2e/node"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def gateway(home: Path) -> Iterator[Served]:
    with serve(home) as served:
        served.wait_ready()
        yield served


def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none needed", max_retries=0, timeout=120)


def chat(served: Served, question: str = QUESTION) -> tuple[str, httpx.Headers]:
    with client(served) as c:
        raw = c.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": question}], temperature=0
        )
    return raw.parse().choices[0].message.content or "", httpx.Headers(dict(raw.headers))


def test_a_real_question_then_the_same_from_the_cache(gateway: Served) -> None:
    text, headers = chat(gateway)
    assert "Paris" in text
    assert headers["x-refrain-cache"] == "miss"
    again, headers = chat(gateway)
    assert again == text
    assert headers["x-refrain-cache"] == "exact"
    assert int(headers["age"]) >= 0


def test_the_second_answer_takes_less_than_5_ms(gateway: Served) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    times = []
    with httpx.Client(base_url=gateway.url, trust_env=False, timeout=120) as c:
        c.post("/v1/chat/completions", json=body)
        for _ in range(50):
            begun = time.perf_counter()
            response = c.post("/v1/chat/completions", json=body)
            times.append(time.perf_counter() - begun)
            assert response.headers["x-refrain-cache"] == "exact"
    assert statistics.median(times) < 0.005


def test_streamed_equals_plain_and_shares_the_entry(gateway: Served) -> None:
    question = "What is 2 + 2?"
    with client(gateway) as c:
        stream = c.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": question}], temperature=0, stream=True
        )
        with stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len([p for p in pieces if p]) > 1  # token by token, not all at once
    text, headers = chat(gateway, question)
    assert text == "".join(pieces)
    assert headers["x-refrain-cache"] == "exact"


@pytest.mark.slow
def test_the_official_node_client(gateway: Served) -> None:
    node = shutil.which("node")
    assert node is not None, "these tests need Node.js 20 or later"
    assert (NODE / "node_modules/openai").is_dir(), "run `make test` once: its setup installs it"
    question = "What is the capital of Japan?"
    command = [node, "chat.mjs", f"{gateway.url}/v1", "none", MODEL, question]
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["plain"]["cache"] == "miss"
    assert result["streamed"]["cache"] == "exact"
    assert result["plain"]["text"] == result["streamed"]["text"] != ""
    assert result["plain"]["usage"]["total_tokens"] == result["streamed"]["usage"]["total_tokens"] > 0
    assert chat(gateway, question)[1]["x-refrain-cache"] == "exact"


def test_ask_shows_the_answer_and_where_it_came_from(gateway: Served, home: Path) -> None:
    question = "What is the capital of Italy?"
    first = refrain("ask", "--url", gateway.url, question, cwd=home)
    second = refrain("ask", "--url", gateway.url, "--json", question, cwd=home)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    shown = json.loads(second.stdout)
    assert "miss" in first.stderr
    assert shown["outcome"] == "exact"
    assert first.stdout.strip() == shown["answer"].strip() != ""


def test_ask_without_a_gateway_says_what_to_do(home: Path) -> None:
    done = refrain("ask", "--url", "http://127.0.0.1:9", "hello", cwd=home)
    assert done.returncode == 1
    assert "refrain serve" in done.stderr


def engine_of(served: Served) -> int:
    """The pid of the gateway's child that is the engine; the embedder is another."""
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    (pid,) = (pid for pid in children if b"backends.local" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(pid)


@pytest.mark.slow
def test_an_engine_that_is_killed_in_mid_stream(gateway: Served) -> None:
    """As docs/failures.md has it, "cut in mid-stream": an error event, an error for who wants JSON, nothing kept. The
    engine comes back by itself."""
    # Greedy: a sampled answer may be a word or two, and then there is no middle.
    question = "Write a long story about a ship at sea."
    body = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 400, "temperature": 0}
    path = "/v1/chat/completions"
    leader = Caller(gateway.url, path, {**body, "stream": True}, {})
    until(lambda: len(leader.words) > 5, timeout=60)
    joiners = [Caller(gateway.url, path, {**body, "stream": stream}, {}) for stream in (True, False)]
    until(lambda: len(joiners[0].words) > 5, timeout=60)
    os.kill(engine_of(gateway), signal.SIGKILL)
    streams, plain = (leader.result(), joiners[0].result()), joiners[1].result()
    for stream in streams:
        assert json.loads(events(stream.text)[-1])["error"]["code"] == "backend_reply_broken"
    assert (plain.status_code, plain.json()["error"]["code"]) == (502, "backend_reply_broken")
    assert [r.headers["x-refrain-cache"] for r in (*streams, plain)] == ["miss", "joined", "joined"]
    gateway.wait_ready()
    assert chat(gateway, "What is the capital of Spain?")[1]["x-refrain-cache"] == "miss"


@pytest.mark.slow
def test_answers_survive_kill_9(tmp_path: Path) -> None:
    with serve(tmp_path) as first:
        first.wait_ready()
        text, headers = chat(first)
        assert headers["x-refrain-cache"] == "miss"
        time.sleep(1.5)  # a killed gateway may lose its last second
        first.stop(signal.SIGKILL)
    with serve(tmp_path) as second:
        second.wait_ready(path="/healthz")  # a stored answer needs no model
        again, headers = chat(second)
        assert (again, headers["x-refrain-cache"]) == (text, "exact")
