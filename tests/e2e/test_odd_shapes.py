"""Fields of types that nobody expects, from clients and upstreams: answered or refused, never an internal error."""

import copy
import gzip
import json
import zlib
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway import ALICE, Running
from tests.support.traffic import error_of, fixed, outcome, text_of, upstream_calls
from tests.support.upstream import Reply, Upstream, chat_answer, chat_chunks, sse

Json = dict[str, Any]
SSE = "text/event-stream"
_examples = count(1)

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**70, 0.5, 1e300, "", "text", "audio", [], [[]], [{}], [None], [1, "a"], {}),
    *({"a": []}, {"type": []}, {"type": {}}, [{"type": []}], [{"type": None}], {"text": 1}, [{"type": "text"}]),
    [{"text": {}}],
]
odd = st.sampled_from(ODD)

FIELDS = [
    *("stream", "stream_options", "n", "tools", "modalities", "audio", "temperature", "seed", "stop", "max_tokens"),
    *("max_completion_tokens", "response_format", "web_search_options", "store", "background", "conversation", "cache"),
    *("cache_control", "metadata", "user", "logprobs", "top_logprobs", "tool_choice", "prompt_cache_key", "prompt"),
    *("previous_response_id", "service_tier", "logit_bias", "functions", "suffix", "echo", "best_of"),
]
PLACES = ["role", "content", "name", "tool_calls", "refusal", "function_call", "cache_control", "audio", "tool_call_id"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    api=st.sampled_from(["chat/completions", "completions"]),
    path=st.sampled_from(["/v1", "/careful/v1", "/textual/v1"]),
    fields=st.dictionaries(st.sampled_from(FIELDS), odd, max_size=3),
    message=st.dictionaries(st.sampled_from(PLACES), odd, max_size=2),
)
def test_clients(gw: Running, api: str, path: str, fields: Json, message: Json) -> None:
    text = f"odd {next(_examples)}"
    messages = [{"role": "user", "content": text, **message}]
    body = {"model": "test-model", "messages": messages, "prompt": text, **fields}
    for _ in range(2):
        response = gw.client.post(f"{path}/{api}", json=body, headers={"authorization": f"Bearer {ALICE}"})
        assert response.status_code in (200, 400), response.text
        if response.status_code == 400:
            error_of(response, 400)


@pytest.mark.parametrize("field", FIELDS)
def test_one_odd_field(gw: Running, prompt: str, field: str) -> None:
    for value in (5, "audio", ["audio"], [{}], {"a": 1}, True):
        response = gw.chat(prompt, path="/careful/v1", **{field: value})
        assert response.status_code in (200, 400), f"{value}: {response.text}"


ANSWER_PLACES: list[tuple[Any, ...]] = [
    *(("id",), ("created",), ("model",), ("usage",), ("choices",), ("object",), ("error",), ("choices", 0)),
    *(("choices", 0, "index"), ("choices", 0, "finish_reason"), ("choices", 0, "message"), ("choices", 0, "logprobs")),
    *(("choices", 0, "message", "content"), ("choices", 0, "message", "role"), ("choices", 0, "message", "tool_calls")),
    *(("choices", 0, "message", "refusal"), ("choices", 0, "message", "extra")),
    *(("usage", "prompt_tokens"), ("usage", "completion_tokens")),
]
CHUNK_PLACES: list[tuple[Any, ...]] = [
    *(("id",), ("usage",), ("choices",), ("choices", 0), ("choices", 0, "index"), ("choices", 0, "finish_reason")),
    *(("choices", 0, "delta"), ("choices", 0, "delta", "content"), ("choices", 0, "delta", "role")),
    *(("choices", 0, "delta", "tool_calls"), ("choices", 0, "logprobs"), ("choices", 0, "delta", "extra")),
]


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of `value` with `new` at that place, where there is such a place."""
    out = copy.deepcopy(value)
    inner = out
    for step in place[:-1]:
        try:
            inner = inner[step]
        except (KeyError, IndexError, TypeError):
            return out
    if isinstance(inner, dict) or (isinstance(inner, list) and len(inner) > place[-1]):
        inner[place[-1]] = new
    return out


def answered_or_the_upstreams_fault(gw: Running, path: str, stream: bool) -> None:
    """In the one form, then, perhaps from the cache, in the other."""
    text = f"odd answer {next(_examples)}"
    for form in (stream, not stream):
        response = gw.chat(text, path=path, stream=form)
        assert "internal_error" not in response.text, response.text
        assert response.status_code in (200, 502), response.text


@settings(max_examples=60, deadline=None, derandomize=True)
@given(place=st.sampled_from(ANSWER_PLACES), value=odd, stream=st.booleans())
def test_whole_answers(gw: Running, up: Upstream, place: tuple[Any, ...], value: Any, stream: bool) -> None:
    up.script = fixed(Reply([json.dumps(changed(chat_answer("a b"), place, value)).encode()]))
    answered_or_the_upstreams_fault(gw, "/rr/v1", stream)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(place=st.sampled_from(CHUNK_PLACES), value=odd, number=st.integers(0, 4), stream=st.booleans())
def test_chunks(gw: Running, up: Upstream, place: tuple[Any, ...], value: Any, number: int, stream: bool) -> None:
    chunks = chat_chunks(chat_answer("a b"), include_usage=True)
    chunks[number] = changed(chunks[number], place, value)
    up.script = fixed(Reply([sse(chunks)], content_type=SSE))
    answered_or_the_upstreams_fault(gw, "/v1", stream)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize(
    "calls",
    [
        [{}],
        [{"index": None}],
        [{"index": "a"}, {"index": 0}],
        [{"index": []}],
        [{"index": {}}],
        [{"index": 0, "function": None}],
        [{"index": 0, "function": "f"}, {"index": 0, "function": {"arguments": "x"}}],
        [{"index": 0, "function": {"arguments": {}}}, {"index": 0, "function": {"arguments": "x"}}],
        [{"index": -1}, {"index": 10**9}],
        [None, 1, "a"],
    ],
    ids=str,
)
def test_tool_calls_of_any_shape(gw: Running, up: Upstream, stream: bool, calls: list[Any]) -> None:
    chunks = chat_chunks(chat_answer("a"), include_usage=True)
    chunks[1]["choices"][0]["delta"] = {"tool_calls": calls}
    up.script = fixed(Reply([sse(chunks)], content_type=SSE))
    answered_or_the_upstreams_fault(gw, "/v1", stream)


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_an_upstream_that_compresses_all_the_same(
    gw: Running, up: Upstream, prompt: str, path: str, coding: str
) -> None:
    """We ask for no coding; one that comes anyway is undone, and the client sees neither bytes nor header of it."""
    pack = gzip.compress if coding == "gzip" else zlib.compress
    if path == "/v1":
        raw, kind = sse(chat_chunks(chat_answer("packed text"), include_usage=True)), SSE
    else:
        raw, kind = json.dumps(chat_answer("packed text")).encode(), "application/json"
    up.script = fixed(Reply([pack(raw)], content_type=kind, headers={"content-encoding": coding}))
    with upstream_calls(up, 1):
        for _ in range(2):
            for stream in (False, True):
                response = gw.chat(prompt, path=path, stream=stream)
                assert text_of(response) == "packed text"
                assert "content-encoding" not in response.headers


def test_an_answer_that_inflates_without_end_is_cut(gw: Running, up: Upstream, prompt: str) -> None:
    """100 MB of blanks in 100 KB: refused, not held."""
    bomb = gzip.compress(b" " * 100_000_000)
    up.script = fixed(Reply([bomb], headers={"content-encoding": "gzip"}))
    response = gw.chat(prompt, path="/rr/v1")
    error_of(response, 502)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_extra_chunks_and_fields_of_known_providers(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    """Usage beside the last choice, a first chunk without choices, a comment in between: all are out there."""
    chunks = chat_chunks(chat_answer("one two"), include_usage=False)
    chunks[-1]["usage"] = chat_answer("")["usage"]
    chunks[-1]["x_groq"] = {"id": "req_1"}
    first = {**chunks[0], "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    up.script = fixed(Reply([sse([first, *chunks])], content_type=SSE))
    with upstream_calls(up, 1):
        for _ in range(2):
            assert text_of(gw.chat(prompt, stream=stream)) == "one two"
    assert gw.chat(prompt).json()["usage"]["total_tokens"] == 18
    assert outcome(gw.chat(prompt)) == "exact"


@pytest.mark.parametrize("value", ["é".encode(), "é".encode("latin-1"), b"\xff\xfe", b"a\tb"], ids=str)
@pytest.mark.parametrize("name", ["openai-beta", "anthropic-beta", "anthropic-version"])
def test_headers_that_are_passed_on_may_hold_any_byte(gw: Running, prompt: str, name: str, value: bytes) -> None:
    """Such a header goes upstream or is refused; it is no internal error."""
    body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
    headers = [(b"authorization", f"Bearer {ALICE}".encode()), (name.encode(), value)]
    response = gw.client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code in (200, 400), response.text


def test_media_types_are_compared_without_regard_to_case(gw: Running, up: Upstream, prompt: str) -> None:
    """RFC 9110, 8.3.1: Text/Event-Stream is text/event-stream."""
    raw = sse(chat_chunks(chat_answer("in capitals"), include_usage=True))
    up.script = fixed(Reply([raw], content_type="Text/Event-Stream; Charset=UTF-8"))
    for stream in (True, False):
        assert text_of(gw.chat(prompt, stream=stream)) == "in capitals"


@pytest.mark.parametrize("calls", [5, True, "text", [5], ["a"], [None], {"a": 1}], ids=str)
def test_an_answer_kept_in_one_form_does_not_fail_in_the_other(
    gw: Running, up: Upstream, prompt: str, calls: Any
) -> None:
    """What cannot be streamed is no entry that turns each later stream of it into an internal error."""
    answer = chat_answer("hello")
    answer["choices"][0]["message"]["tool_calls"] = calls
    up.script = fixed(Reply([json.dumps(answer).encode()]))
    for stream in (False, True, True):
        response = gw.chat(prompt, path="/rr/v1", stream=stream)
        assert response.status_code in (200, 502), response.text
