"""A tiny model as a GGUF file, and engine processes for all tests that need one: with the tiny and the real model."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

MODEL = "SmolLM2-135M-Instruct"
START_TIMEOUT = 110.0  # the first time the weights are converted
HEADS, KV_HEADS, HIDDEN, INNER, LAYERS, CONTEXT = 4, 2, 64, 96, 2, 100_000
# Byte-level spellings of the printable ASCII characters and the space, two merged pairs, and two special tokens.
VOCABULARY = ["<|end|>", "<|begin|>", *map(chr, range(33, 127)), "Ġ", "ab", "Ġa"]
MERGES = ["a b", "Ġ a"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def write_tiny_gguf() -> Callable[..., dict[str, Any]]:
    return _write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    _write_tiny_gguf(path)
    return path


def _write_tiny_gguf(path: Path, architecture: str = "llama", seed: int = 0, bias: bool = False) -> dict[str, Any]:
    """A model of two layers with random weights, that speaks ASCII; `bias` adds one to queries, keys and values, as
    `qwen2` has. Returns its tensors by the names they have in a Hugging Face folder."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token.startswith("<|") else normal for token in VOCABULARY])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    random = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}

    def add(name: str, hf_name: str, *shape: int, heads: int = 0, quantized: bool = False) -> None:
        values = random.standard_normal(shape, dtype=np.float32)
        stored = values
        if heads and architecture == "llama":  # as llama.cpp's convert_hf_to_gguf.py permutes these rows
            stored = values.reshape(heads, 2, shape[0] // heads // 2, shape[1]).swapaxes(1, 2).reshape(shape)
        if quantized:
            kind = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quants.quantize(stored, kind)
            values = gguf.quants.dequantize(packed, kind)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", np.ascontiguousarray(stored))
        tensors[f"{hf_name}.weight"] = values

    head = HIDDEN // HEADS
    add("token_embd", "model.embed_tokens", len(VOCABULARY), HIDDEN, quantized=True)
    add("output_norm", "model.norm", HIDDEN)
    for i in range(LAYERS):
        ours, theirs = f"blk.{i}", f"model.layers.{i}"
        add(f"{ours}.attn_norm", f"{theirs}.input_layernorm", HIDDEN)
        add(f"{ours}.attn_q", f"{theirs}.self_attn.q_proj", HIDDEN, HIDDEN, heads=HEADS)
        add(f"{ours}.attn_k", f"{theirs}.self_attn.k_proj", KV_HEADS * head, HIDDEN, heads=KV_HEADS)
        add(f"{ours}.attn_v", f"{theirs}.self_attn.v_proj", KV_HEADS * head, HIDDEN)
        for part in ("q", "k", "v") if bias else ():
            values = random.standard_normal(HIDDEN if part == "q" else KV_HEADS * head, dtype=np.float32)
            writer.add_tensor(f"{ours}.attn_{part}.bias", values)
            tensors[f"{theirs}.self_attn.{part}_proj.bias"] = values
        add(f"{ours}.attn_output", f"{theirs}.self_attn.o_proj", HIDDEN, HIDDEN)
        add(f"{ours}.ffn_norm", f"{theirs}.post_attention_layernorm", HIDDEN)
        add(f"{ours}.ffn_gate", f"{theirs}.mlp.gate_proj", INNER, HIDDEN, quantized=True)
        add(f"{ours}.ffn_up", f"{theirs}.mlp.up_proj", INNER, HIDDEN)
        add(f"{ours}.ffn_down", f"{theirs}.mlp.down_proj", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(scope="session")
def engine_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, httpx.Response, httpx.Response]]:
    """The real model on a port: the server's address without /v1, and what it said to /readyz and to a request while it
    was loading."""
    log = tmp_path_factory.mktemp("engine") / "stderr"
    with _engine_process(log, "--precision", "fp32") as (process, url):
        status = httpx.get(f"{url}/readyz", timeout=10)
        refused = httpx.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": "Hello"}, timeout=10)
        _wait_until_ready(process, url, log)
        yield url, status, refused


@pytest.fixture
def engine(engine_start: tuple[str, httpx.Response, httpx.Response]) -> str:
    return engine_start[0]


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory, tiny_gguf: Path) -> Iterator[str]:
    """The tiny model on a port, which writes one answer at a time, lets two wait, and has memory for 2**16 tokens: less
    than its context. The server's address without /v1."""
    log = tmp_path_factory.mktemp("tiny_engine") / "stderr"
    memory = str(2**16 * 2 * LAYERS * KV_HEADS * (HIDDEN // HEADS) * 4)
    limits = ["--max-running", "1", "--max-queue", "2", "--kv-memory", memory]
    with _engine_process(log, "--model", str(tiny_gguf), "--precision", "fp32", *limits) as (process, url):
        _wait_until_ready(process, url, log)
        yield url


@contextlib.contextmanager
def _engine_process(log: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """An engine that listens, and its address without /v1."""
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "backends.local", "--port", "0", *arguments],
            stderr=stderr,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
    try:
        yield process, _address(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, log.read_text()


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("listening on "):
                return line.removeprefix("listening on ").removesuffix("/v1")
        time.sleep(0.05)
    raise AssertionError(f"the engine does not listen: {log.read_text()}")


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        if httpx.get(f"{url}/readyz", timeout=10).status_code == 200:
            return
        time.sleep(0.2)
    raise AssertionError(f"the engine is not ready: {log.read_text()}")
