"""A whole answer -> the chunks of a stream that accumulate to exactly that answer."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.normalize import Api
from gateway.wire.sse import DONE_EVENT, event

Json = dict[str, Any]
CHUNK_OBJECTS: dict[Api, str] = {"chat": "chat.completion.chunk", "completions": "text_completion"}

IN_EVERY_CHUNK = ("id", "object", "created", "model", "system_fingerprint", "service_tier")

# A replay need not be paced like the original, but one huge chunk defeats clients that draw as text arrives.
_PIECE = re.compile(r".{1,80}(?:\s|$)|.{1,80}", re.DOTALL)
_encode = msgspec.json.encode


def render_stream(api: Api, answer: Json, *, include_usage: bool) -> bytes:
    """The whole SSE body for a stored answer, `[DONE]` included. Usage only where the client asked for it."""
    top = {k: answer[k] for k in IN_EVERY_CHUNK if k in answer} | {"object": CHUNK_OBJECTS[api]}
    if include_usage:
        top["usage"] = None
    pieces = [piece for c in answer["choices"] for piece in _pieces(api, c)]
    # What else the answer carries (citations, token ids) goes out once: in every chunk it would be the chunks' number
    # of times as large.
    once = {k: v for k, v in answer.items() if k not in top and k not in ("choices", "usage")}
    out = [event(_encode({**top, **once, "choices": [piece]})) for piece in pieces[:1]]
    out += [event(_encode({**top, "choices": [piece]})) for piece in pieces[1:]]
    if include_usage and answer.get("usage") is not None:
        out.append(event(_encode({**top, "choices": [], "usage": answer["usage"]})))
    return b"".join(out) + DONE_EVENT


def client_event(data: bytes, chunk: Json, *, usage: bool) -> bytes | None:
    """An upstream event as this client is to see it. We ask upstream for usage for our own accounting; a client that
    did not ask gets neither the usage chunk (many index `choices[0]`) nor the `usage` key. None: nothing to send."""
    if usage or "usage" not in chunk:
        return event(data if b"\n" not in data else _encode(chunk))
    if not chunk.get("choices"):
        return None
    return event(_encode({k: v for k, v in chunk.items() if k != "usage"}))


def _pieces(api: Api, choice: Json) -> Iterator[Json]:
    return _chat_pieces(choice) if api == "chat" else _text_pieces(choice)


def _chat_pieces(choice: Json) -> Iterator[Json]:
    message = dict(choice["message"])
    known = ("message", "logprobs", "finish_reason", "index")
    rest = {k: v for k, v in choice.items() if k not in known}

    def piece(delta: Json, **more: Any) -> Json:
        base = {"index": choice["index"], "delta": delta, "logprobs": None, "finish_reason": None}
        return {**base, **more}

    content = message.pop("content", None)
    calls = message.pop("tool_calls") if message.get("tool_calls") else None
    refusal = message.pop("refusal", None)
    first: Json = {"role": message.pop("role", "assistant"), "content": "" if content is not None else None}
    if refusal is not None:
        first["refusal"] = refusal
    # Everything else a message carries (reasoning, annotations) goes out whole, ahead of the text.
    yield piece({**first, **message})
    logprobs = choice.get("logprobs")
    for text in _PIECE.findall(content) if isinstance(content, str) else ():
        yield piece({"content": text})
    if content is not None and not isinstance(content, str):
        yield piece({"content": content})
    for i, call in enumerate(calls or ()):
        yield piece({"tool_calls": [{**call, "index": i}]})
    yield piece({}, logprobs=logprobs, finish_reason=choice.get("finish_reason"), **rest)


def _text_pieces(choice: Json) -> Iterator[Json]:
    rest = {k: v for k, v in choice.items() if k not in ("text", "logprobs", "finish_reason", "index")}

    def piece(text: str, **more: Any) -> Json:
        return {"index": choice["index"], "text": text, "logprobs": None, "finish_reason": None, **more}

    for text in _PIECE.findall(choice.get("text") or ""):
        yield piece(text)
    yield piece("", logprobs=choice.get("logprobs"), finish_reason=choice.get("finish_reason"), **rest)
