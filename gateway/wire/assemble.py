"""Chunks of a streamed answer -> the whole answer, as the same API would have given it without streaming.

What we know has its own rule:
- top level: the first `id`, `created` and `model` that say something (Azure's first chunk has empty ones), and the
  latest of everything else (`usage` comes last, or in every chunk anew);
- choices by their `index`; the latest finish reason; log probabilities one after the other; other fields of a choice
  are the latest, but lists (token ids) go on;
- what a delta brings is joined (`merge`), known or not; tool calls by their `index`.
"""

from typing import Any

from gateway.normalize import Api
from gateway.wire.merge import Entries, Object, Text, joined, merged

Json = dict[str, Any]
OBJECTS: dict[Api, str] = {"chat": "chat.completion", "completions": "text_completion"}
NOT_KEPT = frozenset({"choices", "object", "obfuscation"})
REQUIRED: Json = {"id": "", "created": 0, "model": ""}
"""What every answer and every chunk must have, and what stands there when the upstream left it out."""


class Assembler:
    """Add chunks in order; `complete` once every choice that began has its finish reason, and there is one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._top: Json = {}
        self._settled = set(NOT_KEPT)
        self._choices: dict[int, _Choice] = {}

    @property
    def complete(self) -> bool:
        if not self._choices or self._top.get("error"):
            return False
        return all(choice.finish_reason for choice in self._choices.values())

    def add(self, chunk: Json) -> None:
        top = self._top
        for name, value in chunk.items():
            if name not in self._settled and (value is not None or name not in top):
                top[name] = value
                if value and name in REQUIRED:
                    self._settled.add(name)
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return
        for place, piece in enumerate(choices):
            if isinstance(piece, dict):
                index = piece.get("index")
                if type(index) is not int:
                    index = place
                if (choice := self._choices.get(index)) is None:
                    choice = self._choices[index] = _Choice(self._api, index)
                choice.add(piece)

    def result(self) -> Json:
        top = dict(self._top)
        usage = top.pop("usage", None)
        for name, otherwise in REQUIRED.items():
            if top.get(name) is None:
                top[name] = otherwise
        choices = [choice for _, choice in sorted(self._choices.items())]
        top = {"id": top.pop("id"), "object": OBJECTS[self._api], **top}
        top["choices"] = [choice.whole() for choice in choices]
        return top if usage is None else {**top, "usage": usage}


class _Choice:
    def __init__(self, api: Api, index: int) -> None:
        self._api = api
        self._index = index
        self.finish_reason: Any = None
        self._message: Json = {}
        self._calls = _Calls()
        self._logprobs: list[Json] = []
        self._rest: Json = {}

    def add(self, piece: Json) -> None:
        for name, value in piece.items():
            if name == "delta":
                if isinstance(value, dict):
                    self._add_delta(value)
            elif name == "index":
                pass
            elif name == "finish_reason":
                self.finish_reason = value or self.finish_reason
            elif name == "logprobs":
                if isinstance(value, dict):
                    self._logprobs.append(value)
            elif name == "text" and self._api == "completions":
                self._rest[name] = merged(self._rest.get(name, ""), value)
            elif name != "message":  # the message is ours, made of the deltas
                self._rest[name] = _next(self._rest.get(name), value)

    def _add_delta(self, delta: Json) -> None:
        message = self._message
        for name, value in delta.items():
            old = message.get(name)
            if type(old) is Text and type(value) is str:  # nearly all there is
                old.add(value)
            elif name == "tool_calls" and isinstance(value, list):
                message[name] = self._calls
                self._calls.add(value)
            elif name == "content":
                message[name] = _content(old, value)
            else:
                message[name] = merged(old, value, name)

    def whole(self) -> Json:
        keys: Json = {"content": None, "refusal": None} if self._api == "chat" else {}
        return {
            "index": self._index,
            **({"message": self._whole_message()} if self._api == "chat" else {"text": ""}),
            "logprobs": _logprobs(self._logprobs, keys),
            **joined(Object(self._rest)),
            "finish_reason": self.finish_reason,
        }

    def _whole_message(self) -> Json:
        message: Json = {"role": "assistant", "content": None, "refusal": None}
        message |= {name: joined(value) for name, value in self._message.items()}
        message["role"] = message["role"] or "assistant"
        if message.get("tool_calls") is self._calls:
            message["tool_calls"] = self._calls.whole()
        if message["content"] == "" and message.get("tool_calls"):
            message["content"] = None
        return message


class _Calls:
    """Tool calls, each in pieces that may interleave.

    The index tells them apart. Where it does not: servers that leave it out send calls one after the other, and
    servers that number every call 0 (vLLM's parsers, Gemini) begin each with an id of its own beside a name.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[int, Object]] = []
        self._at: dict[int | str, Object] = {}

    def add(self, pieces: list[Any]) -> None:
        for piece in pieces:
            if isinstance(piece, dict):
                self._call(piece).add(piece)

    def whole(self) -> list[Json]:
        """In the order of the index, and without it: it belongs to the stream."""
        calls = [joined(call) for _, call in sorted(self._calls, key=lambda numbered: numbered[0])]
        return [{name: value for name, value in call.items() if name != "index"} for call in calls]

    def _call(self, piece: Json) -> Object:
        """The call that this piece belongs to."""
        index: Any = piece.get("index")
        id_: Any = piece.get("id")
        numbered, known = type(index) is int, isinstance(id_, str) and id_ != ""
        named = any(isinstance(value, dict) and value.get("name") for value in piece.values())
        call: Object | None
        if numbered or known:
            call = self._at.get(index if numbered else id_)
        else:
            call = self._calls[-1][1] if self._calls and not named else None
        if call is None or (known and named and call.get("id") not in (None, "", id_)):
            call = Object()
            self._calls.append((index if numbered else len(self._calls), call))
        if numbered:
            self._at[index] = call
        if known:
            self._at[id_] = call
        return call


def _content(old: Any, new: Any) -> Any:
    """Text, or a list of parts; a server that changes from one to the other in mid-stream (Mistral thinks in parts
    and answers in text) means them one after the other."""
    if isinstance(new, str) and isinstance(old, list):
        parts = old if isinstance(old, Entries) else Entries(old)
        if new and parts and isinstance(parts[-1], dict) and parts[-1].get("type") == "text":
            parts[-1] = merged(parts[-1], {"text": new})
        elif new:
            parts.add([{"type": "text", "text": new}])
        return parts
    if isinstance(new, list) and isinstance(old, str | Text):
        return merged([{"type": "text", "text": str(old)}] if str(old) else [], new)
    return merged(old, new)


def _next(old: Any, new: Any) -> Any:
    """The next value of a choice's own field. Strings and objects are told anew, as in filter results."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {**old, **new}
    return merged(old, new) if isinstance(new, list) or new is None else new


def _logprobs(pieces: list[Json], keys: Json) -> Json | None:
    """The lists of all pieces, one after the other."""
    if not pieces:
        return None
    whole = dict(keys)
    for piece in pieces:
        for name, value in piece.items():
            if isinstance(value, list):
                if isinstance(known := whole.get(name), list):
                    known.extend(value)
                else:
                    whole[name] = list(value)
            elif value is not None or name not in whole:
                whole[name] = value
    return whole
