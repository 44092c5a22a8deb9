"""What tests say about traffic: how often the upstream is asked, what an answer's head means, how a stream reads."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.gateway import Running
from tests.support.upstream import Reply, Seen, Upstream

Json = dict[str, Any]
ENVELOPE = {"message", "type", "param", "code"}


@contextmanager
def upstream_calls(up: Upstream, expected: int) -> Iterator[None]:
    """What happens inside must reach the upstream so many times."""
    before = up.calls
    yield
    assert up.calls - before == expected, f"{up.calls - before} upstream calls instead of {expected}"


def outcome(response: httpx.Response) -> str:
    """The one-word outcome of a good answer."""
    assert response.status_code == 200, f"{response.status_code} {response.text[:300]}"
    return response.headers["x-refrain-cache"]


def error_of(response: httpx.Response, status: int) -> Json:
    """The error of an answer that must be one, in the envelope and with the headers that every answer has."""
    assert response.status_code == status, f"{response.status_code} {response.text[:300]}"
    assert response.headers["content-type"].startswith("application/json")
    assert response.headers["x-request-id"]
    assert response.headers["cache-control"] == "private, no-store"
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == ENVELOPE
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["message"]
    assert isinstance(body["error"]["type"], str)
    return dict(body["error"])


def text_of(response: httpx.Response) -> str:
    """The text of a chat answer, streamed or not."""
    if response.headers["content-type"].startswith("text/event-stream"):
        return str(accumulated(response.text)["choices"][0]["message"]["content"])
    return str(response.json()["choices"][0]["message"]["content"])


def decision(gw: Running, response: httpx.Response) -> Json:
    """The record of this answer's request."""
    found = gw.admin("GET", "/admin/decisions", params={"id": response.headers["x-request-id"]})
    assert found.status_code == 200, found.text
    return dict(found.json())


def byte_identical(gw: Running, response: httpx.Response) -> bool:
    """Whether this answer came the short way, without its request being parsed."""
    return any(t.get("why") == "byte_identical" for t in decision(gw, response)["tiers"])


def events(text: str) -> list[str]:
    """The data of each event of a stream, `[DONE]` included, read by the letter of the SSE specification."""
    out: list[str] = []
    data: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if data:
                out.append("\n".join(data))
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        else:
            assert line.startswith(":") or line.partition(":")[0] in ("event", "id", "retry"), f"no SSE line: {line!r}"
    assert not data, "the last event does not end"
    return out


def chunks(text: str) -> list[Json]:
    """The chunks of a stream that ends as a complete one must."""
    found = events(text)
    assert found[-1] == "[DONE]"
    assert "[DONE]" not in found[:-1]
    return [json.loads(event) for event in found[:-1]]


def accumulated(text: str) -> Json:
    """A chat stream put together as a client does it: strings joined, tool calls by index, the rest as it came."""
    answer: Json = {}
    choices: dict[int, Json] = {}
    for chunk in chunks(text):
        assert chunk["object"] == "chat.completion.chunk"
        for name, value in chunk.items():
            if name not in ("choices", "object") and not (value is None and name in answer):
                answer.setdefault(name, value) if name in ("id", "created", "model") else answer.update({name: value})
        assert (chunk["id"], chunk["created"], chunk["model"]) == (answer["id"], answer["created"], answer["model"])
        for piece in chunk["choices"]:
            _add(choices.setdefault(piece["index"], {"index": piece["index"], "message": {}}), piece)
    return {**answer, "object": "chat.completion", "choices": [choices[i] for i in sorted(choices)]}


def _add(choice: Json, piece: Json) -> None:
    assert "finish_reason" in piece
    assert not choice.get("finish_reason"), "a choice goes on after its finish_reason"
    choice["finish_reason"] = piece["finish_reason"]
    if piece.get("logprobs") is not None:
        choice["logprobs"] = piece["logprobs"]
    message = choice["message"]
    for name, value in piece["delta"].items():
        if name == "tool_calls":
            for call in value:
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    calls.append({k: v for k, v in call.items() if k != "index"})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        elif name == "role":
            assert message.get("role") in (None, value)
            message["role"] = value
        elif isinstance(value, str) and isinstance(message.get(name), str):
            message[name] += value
        elif value is not None or name not in message:
            message[name] = value


def essence(answer: Json) -> Json:
    """An answer without what may be spelled in two ways: absent and null, and how the tokens were counted."""
    out = {k: v for k, v in answer.items() if v is not None and k not in ("choices", "usage")}
    out["choices"] = [
        {k: v for k, v in c.items() if v is not None and k != "message"}
        | {"message": {k: v for k, v in c["message"].items() if v is not None}}
        for c in answer["choices"]
    ]
    return out


def fixed(reply: Reply) -> Callable[[Seen, int], Reply]:
    """A script that always gives this reply."""
    return lambda seen, number: reply


def until(what: Callable[[], Any], timeout: float = 10.0) -> Any:
    """Wait until `what` gives something true, and give it."""
    deadline = time.monotonic() + timeout
    while not (found := what()):
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)
    return found
