"""Legacy completions, models, health."""

import json
from typing import Any

import httpx
import pytest

from tests.support.gateway import ALICE, Running, config_text, running
from tests.support.traffic import chunks, error_of, fixed, outcome, upstream_calls
from tests.support.upstream import Reply, Upstream, free_port, sse, text_answer

Json = dict[str, Any]
MODES = pytest.mark.parametrize("path", ["/v1", "/rr/v1"], ids=["stream", "request_response"])


def complete(
    gw: Running, prompt: Any, *, path: str = "/v1", headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    body = {"model": "test-model", "prompt": prompt, **more}
    head = {"authorization": f"Bearer {ALICE}", **(headers or {})}
    return gw.client.post(f"{path}/completions", json=body, headers=head)


def whole(response: httpx.Response) -> Json:
    """A completion, put together where it is a stream."""
    if response.headers["content-type"] == "application/json":
        return dict(response.json())
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for chunk in chunks(response.text):
        assert chunk["object"] == "text_completion"
        for piece in chunk["choices"]:
            assert piece.keys() >= {"index", "text", "finish_reason"}
            texts[piece["index"]] = texts.get(piece["index"], "") + piece["text"]
            if piece["finish_reason"]:
                ends[piece["index"]] = piece["finish_reason"]
    return {"choices": [{"index": i, "text": texts[i], "finish_reason": ends[i]} for i in sorted(texts)]}


@MODES
@pytest.mark.parametrize("first", [False, True], ids=["plain first", "streamed first"])
def test_legacy_completions_in_both_forms(gw: Running, up: Upstream, prompt: str, path: str, first: bool) -> None:
    with upstream_calls(up, 1):
        answers = [complete(gw, prompt, path=path, stream=s) for s in (first, not first, first, not first)]
    assert [outcome(a) for a in answers] == ["miss", "exact", "exact", "exact"]
    text = f"text number {up.calls}"
    for answer in answers:
        (choice,) = whole(answer)["choices"]
        assert (choice["index"], choice["text"], choice["finish_reason"]) == (0, text, "stop")
    assert up.seen[-1].path == "/v1/completions"


@MODES
def test_legacy_usage_is_streamed_only_if_asked_for(gw: Running, prompt: str, path: str) -> None:
    for _ in range(2):
        found = chunks(complete(gw, prompt, path=path, stream=True).text)
        assert not [c for c in found if "usage" in c or not c["choices"]]
        found = chunks(complete(gw, prompt, path=path, stream=True, stream_options={"include_usage": True}).text)
        assert found[-1]["choices"] == []
        assert found[-1]["usage"]["total_tokens"] == 8


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_legacy_answers_that_may_not_be_stored(gw: Running, up: Upstream, prompt: str, stream: bool) -> None:
    for finish, text in (("length", "some"), ("content_filter", "some"), ("stop", "")):
        answer = text_answer(text)
        answer["choices"][0]["finish_reason"] = finish
        up.script = fixed(Reply([json.dumps(answer).encode()]))
        with upstream_calls(up, 2):
            for _ in range(2):
                complete(gw, f"{prompt} {finish} {text}", path="/rr/v1", stream=stream)


def several(seen: Any, number: int) -> Reply:
    """An answer to each prompt of the list, `n` times."""
    prompts = seen.body["prompt"]
    count = (len(prompts) if isinstance(prompts, list) else 1) * (seen.body.get("n") or 1)
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "test-model"}
    choices = [{"index": i, "text": f"{number}.{i}", "logprobs": None, "finish_reason": "stop"} for i in range(count)]
    if seen.body.get("stream"):
        return Reply([sse([{**head, "choices": [c]} for c in choices])], content_type="text/event-stream")
    return Reply([json.dumps({**head, "choices": choices}).encode()])


@MODES
@pytest.mark.parametrize("n", [1, 2])
def test_a_list_of_prompts(gw: Running, up: Upstream, prompt: str, path: str, n: int) -> None:
    """Every prompt gets its answer, in both forms."""
    up.script = several
    for stream in (False, True):
        choices = whole(complete(gw, [f"{prompt} a", f"{prompt} b"], path=path, n=n, stream=stream))["choices"]
        assert [c["index"] for c in choices] == list(range(2 * n))
        assert [c["text"].partition(".")[2] for c in choices] == [str(i) for i in range(2 * n)]


@MODES
def test_a_prompt_of_tokens_is_one_prompt(gw: Running, up: Upstream, path: str) -> None:
    with upstream_calls(up, 2):
        for prompt in ([1, 2, 3], [1, 2, 4]):
            assert [outcome(complete(gw, prompt, path=path)) for _ in range(2)] == ["miss", "exact"]


def test_legacy_and_chat_do_not_mix(gw: Running, up: Upstream, prompt: str) -> None:
    """The same body on both routes: an entry each."""
    body = {"model": "test-model", "prompt": prompt, "messages": [{"role": "user", "content": prompt}]}
    head = {"authorization": f"Bearer {ALICE}"}
    with upstream_calls(up, 2):
        for _ in range(2):
            chat = gw.client.post("/rr/v1/chat/completions", json=body, headers=head)
            text = gw.client.post("/rr/v1/completions", json=body, headers=head)
            assert chat.json()["object"] == "chat.completion"
            assert text.json()["object"] == "text_completion"


def test_legacy_needs_a_prompt(gw: Running, up: Upstream) -> None:
    with upstream_calls(up, 0):
        body = {"model": "test-model", "messages": [{"role": "user", "content": "a"}]}
        response = gw.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {ALICE}"})
        assert error_of(response, 400)["param"] == "prompt"


# Models


@pytest.mark.parametrize("path", ["/v1", "/rr/v1"])
def test_the_list_of_models(gw: Running, path: str) -> None:
    found = gw.admin("GET", f"{path}/models", key=ALICE)
    assert found.status_code == 200
    assert found.json()["object"] == "list"
    assert {m["id"] for m in found.json()["data"]} == {"test-model", "other-model"}
    for model in found.json()["data"]:
        assert model.keys() >= {"id", "object", "created", "owned_by"}
        assert model["object"] == "model"


def test_one_model(gw: Running) -> None:
    assert gw.admin("GET", "/v1/models/test-model", key=ALICE).json()["id"] == "test-model"
    for unknown in ("nothing", "test-model/x", "*", "TEST"):
        assert error_of(gw.admin("GET", f"/v1/models/{unknown}", key=ALICE), 404)["code"] == "model_not_found"


def test_models_need_a_key_and_a_known_endpoint(gw: Running) -> None:
    error_of(gw.client.get("/v1/models"), 401)
    error_of(gw.client.get("/v1/models/test-model"), 401)
    error_of(gw.admin("GET", "/nowhere/v1/models"), 404)


def test_a_model_with_a_slash_in_its_name(up: Upstream) -> None:
    with running(config_text(up.url).replace('models: {"*": fake}', 'models: {"org/model": fake}')) as gw:
        assert gw.admin("GET", "/v1/models/org/model", key=ALICE).json()["id"] == "org/model"
        assert [m["id"] for m in gw.admin("GET", "/v1/models").json()["data"]] == ["org/model"]


def test_models_while_the_backend_is_down() -> None:
    """The list is short, but it is one."""
    with running(config_text(f"http://127.0.0.1:{free_port()}/v1")) as gw:
        assert gw.admin("GET", "/v1/models").json() == {"object": "list", "data": []}


# Health


def test_health_is_open_and_says_states_only(gw: Running) -> None:
    assert gw.client.get("/healthz").json() == {"status": "ok"}
    assert gw.client.get("/readyz").json() == {"status": "ready"}
    for path in ("/healthz", "/readyz"):
        response = gw.client.get(path, headers={"authorization": "Bearer rf-wrong"})
        assert response.status_code == 200
        assert set(response.json()) == {"status"}


def test_readiness_follows_the_backend() -> None:
    with running(config_text(f"http://127.0.0.1:{free_port()}/v1")) as gw:
        assert gw.chat("a").status_code == 502
        ready = gw.client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "down"})
        assert gw.client.get("/healthz").status_code == 200


def test_an_open_gateway_needs_no_key(up: Upstream, prompt: str) -> None:
    """`auth.required: false` on loopback: everything is open, admin as well."""
    text = config_text(up.url)
    begin, end = text.index("\nauth:"), text.index("\nendpoints:")
    with running(text[:begin] + "\nauth: {required: false}" + text[end:]) as gw, upstream_calls(up, 1):
        body = {"model": "test-model", "messages": [{"role": "user", "content": prompt}]}
        for headers in ({}, {"authorization": "Bearer anything"}, {"authorization": "Bearer anything"}):
            response = gw.client.post("/v1/chat/completions", json=body, headers=headers)
            assert response.status_code == 200
        for path in ("/admin/stats", "/metrics", "/v1/models", "/admin/entries", "/admin/decisions"):
            assert gw.client.get(path).status_code == 200
