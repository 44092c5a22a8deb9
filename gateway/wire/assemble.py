"""Chunks of a streamed answer -> the whole answer, as the same API would have given it without streaming.

Fields we know have their own rule (roles, tool calls by index, finish reasons); any other field survives by its type:
strings are joined, lists extended, objects merged, everything else is replaced by the latest value.
"""

from typing import Any

from gateway.normalize import Api

Json = dict[str, Any]
OBJECTS: dict[Api, str] = {"chat": "chat.completion", "completions": "text_completion"}
NOT_KEPT = frozenset({"choices", "object", "obfuscation"})


class Assembler:
    """Add chunks in order; `complete` once every choice that began has its finish reason, and there is one."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._top: Json = {}
        self._choices: dict[int, Json] = {}

    @property
    def complete(self) -> bool:
        return bool(self._choices) and all(c.get("finish_reason") for c in self._choices.values())

    def add(self, chunk: Json) -> None:
        for name, value in chunk.items():
            # `usage: null` stands in every chunk before the one that counts.
            if name not in NOT_KEPT and (value is not None or name not in self._top):
                self._top[name] = value
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._add_choice(choice)

    def result(self) -> Json:
        top = {"id": None, "object": OBJECTS[self._api], **self._top}
        if top.get("usage") is None:
            top.pop("usage", None)
        usage = top.pop("usage", None)
        top["choices"] = [_finished(self._api, _joined(c)) for _, c in sorted(self._choices.items())]
        if usage is not None:
            top["usage"] = usage
        return top

    def _add_choice(self, piece: Json) -> None:
        index = piece.get("index")
        index = index if type(index) is int else 0
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        for name, value in piece.items():
            if name == "message":
                continue  # ours is made of the deltas
            if name == "delta":
                if isinstance(value, dict):
                    _merge_delta(choice.setdefault("message", {}), value)
            elif name == "finish_reason":
                choice[name] = value if value is not None else choice.get(name)
            elif name != "index":
                choice[name] = merged(choice.get(name), value)


def _merge_delta(message: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "role":
            message["role"] = value or message.get("role")
        elif name == "tool_calls" and isinstance(value, list):
            message["tool_calls"] = _merge_calls(message.get("tool_calls") or [], value)
        else:
            message[name] = merged(message.get(name), value)


def _merge_calls(calls: list[Json], pieces: list[Any]) -> list[Json]:
    by_index = {c.get("index", i): c for i, c in enumerate(calls)}
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        index = piece.get("index")
        index = index if type(index) is int else len(by_index)
        call = by_index.setdefault(index, {"index": index})
        for name, value in piece.items():
            if name == "index":
                continue
            if name in ("id", "type"):
                call[name] = value if value is not None else call.get(name)
            else:
                call[name] = merged(call.get(name), value)
    return [call for _, call in sorted(by_index.items())]


def _own(value: Any) -> Any:
    """A copy of what `merged` would change in place."""
    if isinstance(value, dict):
        return {k: _own(v) for k, v in value.items()}
    return list(value) if isinstance(value, list) else value


class _Pieces(list[str]):
    """A string still in pieces: joined once at the end, so that a long answer takes time in proportion."""


def merged(old: Any, new: Any) -> Any:
    """The value after one more piece of it; takes over `old`, never changes `new`."""
    if new is None:
        return old
    if old is None:
        return _own(new)
    if isinstance(new, str) and isinstance(old, _Pieces):
        old.append(new)
        return old
    if isinstance(new, str) and isinstance(old, str):
        return _Pieces((old, new))
    if isinstance(new, list) and isinstance(old, list) and not isinstance(old, _Pieces):
        old.extend(new)
        return old
    if isinstance(new, dict) and isinstance(old, dict):
        for name, value in new.items():
            old[name] = merged(old.get(name), value)
        return old
    return new


def _joined(value: Any) -> Any:
    """The value with every string whole; leaves the pieces as they are, so that more may come."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, list):
        return [_joined(v) for v in value]
    if isinstance(value, dict):
        return {k: _joined(v) for k, v in value.items()}
    return value


def _finished(api: Api, choice: Json) -> Json:
    if api == "completions":
        return {"text": "", "logprobs": None, **choice}
    message = {"role": "assistant", "content": None, "refusal": None, **choice.get("message", {})}
    if isinstance(calls := message.get("tool_calls"), list):
        # `index` belongs to the stream; the whole object orders calls by their place.
        message["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in calls]
    if message.get("content") == "" and message.get("tool_calls"):
        message["content"] = None
    rest = {k: v for k, v in choice.items() if k not in ("message", "index", "finish_reason")}
    return {
        "index": choice["index"],
        "message": message,
        "logprobs": None,
        **rest,
        "finish_reason": choice["finish_reason"],
    }
