"""The engine's answers in OpenAI's wire forms, as dictionaries: chat and legacy completions, whole and streamed."""

from dataclasses import dataclass
from typing import Any, Protocol

from backends.local.work import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of one answer repeats. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Form(Protocol):
    """The shape of one route's answers."""

    id_prefix: str

    def whole(self, head: Head, choices: list[tuple[str, FinishReason]], usage: Usage) -> dict[str, Any]: ...

    def opening(self, head: Head, choice: int) -> dict[str, Any] | None:
        """The chunk before the text of a choice; None where the form has none."""
        ...

    def piece(self, head: Head, choice: int, text: str) -> dict[str, Any]: ...

    def end(self, head: Head, choice: int, reason: FinishReason) -> dict[str, Any]: ...

    def usage(self, head: Head, usage: Usage) -> dict[str, Any]: ...


def usage_object(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }


def _object(head: Head, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": name,
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "system_fingerprint": head.system_fingerprint,
    }


class ChatForm:
    id_prefix = "chatcmpl-"

    def whole(self, head: Head, choices: list[tuple[str, FinishReason]], usage: Usage) -> dict[str, Any]:
        rendered = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": reason,
            }
            for index, (text, reason) in enumerate(choices)
        ]
        return _object(head, "chat.completion", rendered) | {"usage": usage_object(usage)}

    def opening(self, head: Head, choice: int) -> dict[str, Any]:
        return self._chunk(head, choice, {"role": "assistant", "content": ""}, None)

    def piece(self, head: Head, choice: int, text: str) -> dict[str, Any]:
        return self._chunk(head, choice, {"content": text}, None)

    def end(self, head: Head, choice: int, reason: FinishReason) -> dict[str, Any]:
        return self._chunk(head, choice, {}, reason)

    def usage(self, head: Head, usage: Usage) -> dict[str, Any]:
        return _object(head, "chat.completion.chunk", []) | {"usage": usage_object(usage)}

    def _chunk(self, head: Head, choice: int, delta: dict[str, Any], reason: FinishReason | None) -> dict[str, Any]:
        rendered = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _object(head, "chat.completion.chunk", [rendered])


class TextForm:
    id_prefix = "cmpl-"

    def whole(self, head: Head, choices: list[tuple[str, FinishReason]], usage: Usage) -> dict[str, Any]:
        rendered = [self._choice(index, text, reason) for index, (text, reason) in enumerate(choices)]
        return _object(head, "text_completion", rendered) | {"usage": usage_object(usage)}

    def opening(self, head: Head, choice: int) -> None:
        return None

    def piece(self, head: Head, choice: int, text: str) -> dict[str, Any]:
        return _object(head, "text_completion", [self._choice(choice, text, None)])

    def end(self, head: Head, choice: int, reason: FinishReason) -> dict[str, Any]:
        return _object(head, "text_completion", [self._choice(choice, "", reason)])

    def usage(self, head: Head, usage: Usage) -> dict[str, Any]:
        return _object(head, "text_completion", []) | {"usage": usage_object(usage)}

    def _choice(self, index: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
