"""The official clients put together the same object from a miss, a joined answer and a hit, streamed or not."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.support.gateway import ALICE, Running
from tests.support.live import FORMS, SSE, gate, listening, settled
from tests.support.process import ROOT
from tests.support.traffic import essence, fixed, upstream_calls
from tests.support.upstream import Reply, Upstream, sse

Json = dict[str, Any]
Start = Callable[[Json], Callable[[], Json]]
"""Starts a request with this body; what it gives waits for the result: {"cache", "answer"} or {"error"}."""
NODE = ROOT / "tests/e2e/node"


@pytest.fixture(autouse=True)
def _settled(gw: Running) -> Iterator[None]:
    """After each test no flight is left, and the sums are in balance."""
    yield
    settled(gw)


@pytest.fixture(scope="module")
def python(gw: Running) -> Iterator[Start]:
    with (
        openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0, timeout=30) as client,
        ThreadPoolExecutor(16) as pool,
    ):

        def ask(body: Json) -> Json:
            try:
                raw = client.chat.completions.with_raw_response.create(**body)
                cache: str = raw.headers["x-refrain-cache"]
                parsed: Any = raw.parse()
                if not body["stream"]:
                    return {"cache": cache, "answer": parsed.model_dump()}
                state = ChatCompletionStreamState()
                for chunk in parsed:
                    state.handle_chunk(chunk)
                return {"cache": cache, "answer": state.get_final_completion().model_dump()}
            except openai.APIError as error:
                return {"error": error.message, "kind": type(error).__name__}

        def start(body: Json) -> Callable[[], Json]:
            future: Future[Json] = pool.submit(ask, body)
            return lambda: future.result(30)

        yield start


@pytest.fixture(scope="module")
def node(gw: Running) -> Iterator[Start]:
    program = shutil.which("node")
    assert program is not None, "these tests need Node.js 20 or later"
    assert (NODE / "node_modules/openai").is_dir(), "run `make test` once: its setup installs it"
    command = [program, "asks.mjs", ALICE]
    with subprocess.Popen(command, cwd=NODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        lines = process.stdout
        assert lines is not None
        results: dict[int, Json] = {}
        asked = 0

        def start(body: Json) -> Callable[[], Json]:
            nonlocal asked
            asked += 1
            number = asked
            assert process.stdin is not None
            process.stdin.write(json.dumps({"id": number, "baseURL": f"{gw.url}/v1", "body": body}) + "\n")
            process.stdin.flush()

            def wait() -> Json:
                while number not in results:
                    result = json.loads(lines.readline())
                    results[result.pop("id")] = result
                return results[number]

            return wait

        yield start
        process.stdin.close()


@pytest.fixture(params=["python", "node"])
def start(request: pytest.FixtureRequest) -> Start:
    found: Start = request.getfixturevalue(request.param)
    return found


HEAD = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 1_700_000_123, "model": "test-model"}
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "completion_tokens_details": {"reasoning_tokens": 2},
    "novel_tokens": 5,
}


def piece(index: int, delta: Json, finish: str | None = None, logprobs: Json | None = None) -> Json:
    return {**HEAD, "choices": [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]}


def part(index: int, arguments: str, **first: Any) -> Json:
    function = {**({"name": first.pop("name")} if first else {}), "arguments": arguments}
    return {"tool_calls": [{"index": index, **first, "function": function}]}


def token(text: str) -> Json:
    return {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}


def logprobs(text: str) -> Json:
    return {"content": [token(text)], "refusal": None}


ROLE = {"role": "assistant", "content": ""}
LAST = {**HEAD, "choices": [], "usage": USAGE}
ANSWERS: dict[str, list[Json]] = {
    "text": [
        piece(0, ROLE),
        piece(0, {"content": "Grüße, "}),
        piece(0, {"content": "東京"}),
        piece(0, {}, "stop"),
        LAST,
    ],
    "tool calls": [
        piece(0, {"role": "assistant", "content": None}),
        piece(0, part(0, "", id="call_a", type="function", name="f")),
        piece(0, part(1, "", id="call_b", type="function", name="g")),
        piece(0, part(0, '{"x"')),
        piece(0, part(1, '{"y": "é"}')),
        piece(0, part(0, ": 1}")),
        piece(0, {}, "tool_calls"),
        LAST,
    ],
    "three choices": [  # the Python client's helper needs number 0 first
        piece(0, ROLE),
        piece(1, ROLE),
        piece(1, {"content": "B1 "}),
        piece(0, {"content": "A1"}),
        piece(2, {"role": "assistant", "content": None}),
        piece(2, part(0, "{}", id="call_c", type="function", name="h")),
        piece(1, {"content": "B2"}),
        piece(2, {}, "tool_calls"),
        piece(1, {}, "stop"),
        piece(0, {}, "stop"),
        LAST,
    ],
    "logprobs": [
        piece(0, ROLE, logprobs={"content": [], "refusal": None}),
        piece(0, {"content": "a"}, logprobs=logprobs("a")),
        piece(0, {"content": "é"}, logprobs=logprobs("é")),
        piece(0, {}, "stop"),
        LAST,
    ],
    "refusal": [
        piece(0, {"role": "assistant", "content": None, "refusal": ""}),
        piece(0, {"refusal": "I will "}),
        piece(0, {"refusal": "not."}),
        piece(0, {}, "stop"),
        LAST,
    ],
    "unknown fields": [
        {**piece(0, ROLE), "provider": "somebody"},
        {**piece(0, {"reasoning_content": "six times seven", "novel": {"deep": "é"}}), "provider": "somebody"},
        {**piece(0, {"content": "4"}), "provider": "somebody"},
        {**piece(0, {"content": "2"}), "provider": "somebody"},
        {**piece(0, {}, "stop"), "provider": "somebody"},
        {**LAST, "provider": "somebody"},
    ],
}


def bodies(prompt: str, chunks: list[Json]) -> dict[str, Json]:
    n = 1 + max(c["index"] for chunk in chunks for c in chunk["choices"])
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in "fgh"]
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}], "n": n, "tools": tools}
    return {form: {**body, **more} for form, more in FORMS.items()}


@pytest.mark.parametrize("leader", FORMS)
@pytest.mark.parametrize("chunks", ANSWERS.values(), ids=ANSWERS)
def test_the_same_object_from_miss_joined_and_hit(
    gw: Running, up: Upstream, prompt: str, start: Start, leader: str, chunks: list[Json]
) -> None:
    pieces = [sse([c], done=False) for c in chunks] + [b"data: [DONE]\n\n"]
    asks = bodies(prompt, chunks)
    found: dict[str, list[Json]] = {form: [] for form in FORMS}
    with gate() as go:
        up.script = fixed(Reply(pieces, content_type=SSE, gates={len(pieces) // 2: go}))
        with upstream_calls(up, 1):
            waiting = []
            for number, form in enumerate([leader, *FORMS], 1):
                waiting.append((form, start(asks[form])))
                listening(gw, number)
            go.set()
            results = [(form, wait()) for form, wait in waiting]
            results += [(form, start(asks[form])()) for form in FORMS]
    assert [r.get("cache") for _, r in results] == ["miss"] + ["joined"] * 3 + ["exact"] * 3, results
    for form, result in results:
        found[form].append(result["answer"])
    for form, answers in found.items():
        assert len(answers) == 2 + (form == leader)
        assert all(a == answers[0] for a in answers), form
    plain, streamed = found["json"][0], found["sse+usage"][0]
    assert plain["usage"]["total_tokens"] == streamed["usage"]["total_tokens"] == 18
    assert plain["usage"]["novel_tokens"] == streamed["usage"]["novel_tokens"] == 5
    assert not found["sse"][0].get("usage")
    assert bare(plain) == bare(streamed) == bare(found["sse"][0])


def bare(answer: Json) -> Json:
    """Without what the clients' own stream helpers add: `parsed` values, and nulls where nothing was."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items() if v is not None and k not in ("parsed", "parsed_arguments")}
        return [clean(v) for v in value] if isinstance(value, list) else value

    out = clean(essence(answer))
    for choice in out["choices"]:
        for name in ("content", "tool_calls"):
            if not choice["message"].get(name):
                choice["message"].pop(name, None)
        for index, call in enumerate(choice["message"].get("tool_calls", ())):
            assert call.pop("index", index) == index
    return dict(out)


@pytest.mark.parametrize("leader", ["json", "sse"])
def test_a_flight_that_breaks_raises_in_every_client(
    gw: Running, up: Upstream, prompt: str, start: Start, leader: str
) -> None:
    """Nobody takes half an answer for a whole one."""
    chunks = ANSWERS["text"]
    asks = bodies(prompt, chunks)
    broken = [sse([c], done=False) for c in chunks[:3]] + [b'data: {"error": {"message": "out of memory"}}\n\n']
    with gate() as go:
        up.script = fixed(Reply(broken, content_type=SSE, gates={3: go}))
        with upstream_calls(up, 1):
            waiting = []
            for number, form in enumerate([leader, *FORMS], 1):
                waiting.append(start(asks[form]))
                listening(gw, number)
            go.set()
            results = [wait() for wait in waiting]
    assert all("out of memory" in r["error"] for r in results), results
    assert {r["kind"] for r in results} <= {"APIError", "InternalServerError"}
