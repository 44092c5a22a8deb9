"""Processes: the embedder's dies, hangs or has no model; the gateway's is killed and finds again what it knew; and the
whole of it with nothing configured and the real models."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from cache.semantic.embedder import LocalEmbedder
from gateway.embedders import embedder_of
from tests.support.embedding_server import EmbeddingServer, embedding_server
from tests.support.gateway import ADMIN, ALICE, Running, config_text, running
from tests.support.process import Served, serve
from tests.support.semantic import (
    ASKED,
    LOADED_WITHIN,
    OTHER,
    REWORDED,
    Json,
    Room,
    comes_back,
    quick,
    stats,
    steps_aside,
)
from tests.support.traffic import outcome, text_of, until
from tests.support.upstream import Upstream

ONLY_CACHED = {"cache-control": "only-if-cached"}


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as app:
        yield app


def ask(served: Served, question: str, **headers: str) -> httpx.Response:
    body = {"model": "test-model", "messages": [{"role": "user", "content": question}]}
    head = {"authorization": f"Bearer {ALICE}", **headers}
    url = f"{served.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=head, trust_env=False, timeout=30)


def semantic(served: Served, key: str = ADMIN) -> Json:
    head = {"authorization": f"Bearer {key}"}
    return dict(httpx.get(f"{served.url}/admin/stats", headers=head, trust_env=False).json()["semantic"])


@pytest.fixture(scope="module")
def local(up: Upstream) -> Iterator[tuple[Running, LocalEmbedder]]:
    made: list[Any] = []

    def make(config: Any) -> Any:
        made.append(embedder_of(config))
        return made[0]

    with running(config_text(up.url), embedders=make) as gateway:
        until(lambda: stats(gateway)["state"] == "ready", timeout=LOADED_WITHIN)
        yield gateway, made[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_process_that_is_killed(local: tuple[Running, LocalEmbedder], up: Upstream) -> None:
    """In the middle of traffic: misses, exact goes on, and another process takes its place."""
    gw, embedder = local
    comes_back(gw)
    pid = embedder.pid
    assert pid is not None
    room = Room(gw)
    room.told(OTHER)
    os.kill(pid, signal.SIGKILL)
    for number in range(20):
        assert outcome(quick(room, f"{OTHER} {number}")) == "miss"
    steps_aside(gw, up, "unavailable", "deadline", "starting", "failed")
    until(lambda: stats(gw)["state"] == "ready", timeout=LOADED_WITHIN)
    assert embedder.pid != pid
    comes_back(gw)


@pytest.mark.slow
def test_a_process_that_is_stopped(local: tuple[Running, LocalEmbedder], up: Upstream) -> None:
    gw, embedder = local
    pid = embedder.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        steps_aside(gw, up, "deadline")
    finally:
        os.kill(pid, signal.SIGCONT)
    comes_back(gw)


@pytest.mark.slow
def test_a_model_that_does_not_exist(up: Upstream) -> None:
    config = config_text(up.url, extra="embedder: {model: no-such-model-anywhere}\n")
    with running(config, embedders=embedder_of) as gw:
        steps_aside(gw, up, "starting", "failed")
        until(lambda: stats(gw)["state"] == "failed", timeout=LOADED_WITHIN)
        assert "no-such-model-anywhere" in stats(gw)["detail"]
        steps_aside(gw, up, "failed")
        assert gw.client.get("/readyz").json() == {"status": "degraded"}


@pytest.mark.slow
def test_the_index_survives_kill_9(tmp_path: Path, up: Upstream, server: EmbeddingServer) -> None:
    (tmp_path / "refrain.yaml").write_text(
        config_text(up.url, store="sqlite:///.refrain/cache.db", extra=server.config())
    )
    with serve(tmp_path) as first:
        first.wait_ready()
        until(lambda: semantic(first)["state"] == "ready")
        text = text_of(ask(first, ASKED))
        assert ask(first, OTHER).headers["x-refrain-cache"] == "miss"
        assert ask(first, REWORDED).headers["x-refrain-cache"] == "semantic"
        time.sleep(1.5)  # a killed gateway may lose its last second
        first.stop(signal.SIGKILL)
    with serve(tmp_path) as second:
        second.wait_ready()
        until(lambda: semantic(second)["vectors"] == 2, timeout=30)
        again = ask(second, REWORDED, **ONLY_CACHED)
        assert (again.headers["x-refrain-cache"], text_of(again)) == ("semantic", text)
        second.stop(signal.SIGKILL)
    (tmp_path / "refrain.yaml").write_text(
        config_text(up.url, store="sqlite:///.refrain/cache.db", extra=server.config(model="another"))
    )
    server.place = lambda text: f"elsewhere {text}"
    with serve(tmp_path) as third:
        third.wait_ready()
        until(lambda: semantic(third)["questions"] == 2, timeout=30)
        assert ask(third, ASKED).headers["x-refrain-cache"] == "exact"
        assert ask(third, REWORDED, **ONLY_CACHED).status_code == 504
        assert semantic(third)["hits"] == 0


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_configured_and_real_models(tmp_path: Path) -> None:
    """A question, a paraphrase that the cache answers, and look-alikes that it does not: another country, a "not"."""
    with serve(tmp_path) as served:
        served.wait_ready()
        until(lambda: semantic(served)["state"] == "ready", timeout=200)
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none needed", max_retries=0, timeout=120)

        def chat(question: str) -> tuple[str, str]:
            raw = client.chat.completions.with_raw_response.create(
                model="SmolLM2-135M-Instruct",
                messages=[{"role": "user", "content": question}],
                temperature=0,
                max_tokens=24,
            )
            return str(raw.headers["x-refrain-cache"]), raw.parse().choices[0].message.content or ""

        with client:
            outcome, text = chat("What is the capital of France?")
            assert outcome == "miss"
            assert "Paris" in text
            # An embedding that comes too late on a busy machine is a miss like any other; the next wording is not.
            rewordings = [
                "What's the capital of France?",
                "What is the capital city of France?",
                "The capital of France is what?",
            ]
            served_by_meaning = [chat(question) for question in rewordings]
            assert ("semantic", text) in served_by_meaning
            for question in ("What is the capital of Spain?", "Which city is not the capital of France?"):
                assert chat(question)[0] == "miss"
            assert chat("What is the capital of France?") == ("exact", text)
