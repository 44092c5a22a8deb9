"""A whole answer -> the chunks of a stream that accumulate to exactly that answer; and live events in the form that a
client asked for."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gateway.normalize import Api
from gateway.wire.assemble import REQUIRED
from gateway.wire.sse import DONE_EVENT, event

Json = dict[str, Any]
CHUNK_OBJECTS: dict[Api, str] = {"chat": "chat.completion.chunk", "completions": "text_completion"}

IN_EVERY_CHUNK = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
HEAD = frozenset({*IN_EVERY_CHUNK, "choices", "usage", "obfuscation"})

# A replay need not be paced like the original, but one huge chunk defeats clients that draw as text arrives.
PIECE = 80
_PIECE = re.compile(rf".{{1,{PIECE}}}(?:\s|$)|.{{1,{PIECE}}}", re.DOTALL)
STREAMED = frozenset({"refusal", "reasoning_content", "reasoning", "arguments", "input"})
"""Fields whose strings clients put together from pieces. What else a message carries goes out whole: the Node SDK
keeps only the last piece of it."""

_encode = msgspec.json.encode


def render_stream(api: Api, answer: Json, *, include_usage: bool) -> bytes:
    """The whole SSE body for a stored answer, `[DONE]` included. Usage only where the client asked for it."""
    top = {k: answer[k] for k in IN_EVERY_CHUNK if k in answer} | {"object": CHUNK_OBJECTS[api]}
    top |= {name: otherwise for name, otherwise in REQUIRED.items() if top.get(name) is None}
    if include_usage:
        top["usage"] = None
    # What else the answer carries (citations, token ids) goes out once: in every chunk it would be the chunks' number
    # of times as large.
    once = {k: v for k, v in answer.items() if k not in HEAD}
    # The Python SDK takes a choice's place from when it comes first.
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    pieces = _chat_pieces if api == "chat" else _text_pieces
    out: list[bytes] = []
    begin = _encode({**top, **once})[:-1] + b',"choices":['
    for choice in choices:
        for piece in pieces(choice):
            out.append(event(b"%b%b]}" % (begin, _encode(piece))))
            if len(out) == 1:
                begin = _encode(top)[:-1] + b',"choices":['
    if include_usage and answer.get("usage") is not None:
        out.append(event(_encode({**top, "choices": [], "usage": answer["usage"]})))
    return b"".join(out) + DONE_EVENT


def _chat_pieces(choice: Json) -> Iterator[Json]:
    base = {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": None}
    rest = {k: v for k, v in choice.items() if k != "message" and k not in base}
    message = dict(choice["message"])
    # Where they come live: they are of the whole text.
    cited = {"annotations": message.pop("annotations")} if message.get("annotations") else {}
    first, *deltas = _deltas(message)
    # The Python SDK takes a choice's own fields from its first chunk. Those that tell of its end (`stop_reason`) are
    # looked for in its last.
    yield {**base, "delta": first, **rest}
    for delta in deltas:
        yield {**base, "delta": delta}
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        logprobs = {"content": None, "refusal": None, **logprobs}
    end = {"delta": cited, "logprobs": logprobs, "finish_reason": choice.get("finish_reason")}
    yield {**base, **end, **{k: v for k, v in rest.items() if not isinstance(v, dict | list)}}


def _deltas(message: Json) -> Iterator[Json]:
    """The message in pieces; the first brings its role, and all that does not come in pieces."""
    parts = dict(message)
    content = parts.pop("content", None)
    calls = parts.pop("tool_calls") if parts.get("tool_calls") else ()
    call = parts.pop("function_call") if isinstance(parts.get("function_call"), dict) else None
    first, tails = _cut(parts)
    yield {**first, "role": parts.get("role") or "assistant", "content": "" if isinstance(content, str) else content}
    yield from tails
    for text in _PIECE.findall(content) if isinstance(content, str) else ():
        yield {"content": text}
    if call is not None:
        first, tails = _cut(call)
        yield from ({"function_call": piece} for piece in (first, *tails))
    for index, call in enumerate(calls):
        yield from ({"tool_calls": [{**piece, "index": index}]} for piece in _call_pieces(call))


def _call_pieces(call: Json) -> Iterator[Json]:
    kind = next((k for k in ("function", "custom") if isinstance(call.get(k), dict)), None)
    if kind is None:
        yield call
        return
    first, tails = _cut(call[kind])
    yield {**call, kind: first}
    yield from ({kind: tail} for tail in tails)


def _cut(fields: Json) -> tuple[Json, list[Json]]:
    """The object with the first pieces of its long strings, and the pieces that follow."""
    first, tails = dict(fields), []
    for name in STREAMED & fields.keys():
        if isinstance(value := fields[name], str) and len(value) > PIECE:
            first[name], *more = _PIECE.findall(value)
            tails += [{name: piece} for piece in more]
    return first, tails


def _text_pieces(choice: Json) -> Iterator[Json]:
    base = {"index": choice["index"], "text": "", "logprobs": None, "finish_reason": None}
    rest = {k: v for k, v in choice.items() if k not in base}
    for text in _PIECE.findall(choice.get("text") or ""):
        yield {**base, "text": text}
    yield {**base, "logprobs": choice.get("logprobs"), "finish_reason": choice.get("finish_reason"), **rest}


def client_event(data: bytes, chunk: Json, *, usage: bool) -> bytes | None:
    """An upstream event as this client is to see it. We ask upstream for usage for our own accounting; a client that
    did not ask gets neither the usage chunk (many index `choices[0]`) nor the `usage` key. None: nothing to send."""
    if usage or "usage" not in chunk:
        return event(data if b"\n" not in data else _encode(chunk))
    if not chunk.get("choices") and (chunk["usage"] is not None or chunk.keys() <= HEAD) and not chunk.get("error"):
        return None
    return event(_encode({k: v for k, v in chunk.items() if k != "usage"}))


def without_usage(events: bytes) -> bytes:
    """Events as `event` writes them, for a client that did not ask for usage."""
    return _each(events, lambda data, chunk: client_event(data, chunk, usage=False))


def with_usage(events: bytes) -> bytes:
    """Events as `event` writes them, for a client that asked for usage: it is still to come, so null so far."""

    def change(data: bytes, chunk: Json) -> bytes:
        if "usage" in chunk or "choices" not in chunk:
            return event(data)
        return event(_encode({**chunk, "usage": None}))

    return _each(events, change)


def _each(events: bytes, change: Callable[[bytes, Json], bytes | None]) -> bytes:
    pieces = (piece.removeprefix(b"data: ") for piece in events.split(b"\n\n") if piece)
    return b"".join(change(data, msgspec.json.decode(data)) or b"" for data in pieces)
