"""The engine's answers in OpenAI's wire forms, as dictionaries: chat and legacy completions, whole and streamed."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backends.local.logprobs import TextLogprobs, chat_logprobs
from backends.local.work import FinishReason, Piece, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of one answer repeats. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class Written:
    """A whole choice."""

    text: str
    reason: FinishReason
    logprobs: Sequence[TokenLogprob]


class Form(Protocol):
    """The shape of one answer on one route."""

    def whole(self, head: Head, choices: Sequence[Written], usage: Usage) -> dict[str, Any]: ...

    def opening(self, head: Head, choice: int) -> dict[str, Any] | None:
        """The chunk before the text of a choice; None where the form has none."""
        ...

    def piece(self, head: Head, piece: Piece) -> dict[str, Any]: ...

    def end(self, head: Head, choice: int, reason: FinishReason) -> dict[str, Any]: ...

    def usage(self, head: Head, usage: Usage) -> dict[str, Any]: ...


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
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
    """`logprobs`: whether the request asked for log probabilities."""

    id_prefix = "chatcmpl-"

    def __init__(self, *, logprobs: bool) -> None:
        self._told = logprobs

    def whole(self, head: Head, choices: Sequence[Written], usage: Usage) -> dict[str, Any]:
        rendered = [
            {
                "index": index,
                "message": {"role": "assistant", "content": written.text, "refusal": None},
                "logprobs": self._logprobs(written.logprobs),
                "finish_reason": written.reason,
            }
            for index, written in enumerate(choices)
        ]
        return _object(head, "chat.completion", rendered) | {"usage": usage_object(usage)}

    def opening(self, head: Head, choice: int) -> dict[str, Any]:
        return self._chunk(head, choice, {"role": "assistant", "content": ""})

    def piece(self, head: Head, piece: Piece) -> dict[str, Any]:
        return self._chunk(head, piece.choice, {"content": piece.text}, logprobs=self._logprobs(piece.logprobs))

    def end(self, head: Head, choice: int, reason: FinishReason) -> dict[str, Any]:
        return self._chunk(head, choice, {}, reason=reason)

    def usage(self, head: Head, usage: Usage) -> dict[str, Any]:
        return _object(head, "chat.completion.chunk", []) | {"usage": usage_object(usage)}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(tokens) if self._told else None

    def _chunk(
        self,
        head: Head,
        choice: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        reason: FinishReason | None = None,
    ) -> dict[str, Any]:
        rendered = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return _object(head, "chat.completion.chunk", [rendered])


class TextForm:
    """`logprobs`: whether the request asked for log probabilities."""

    id_prefix = "cmpl-"

    def __init__(self, *, logprobs: bool) -> None:
        self._told = logprobs
        self._logprobs: defaultdict[int, TextLogprobs] = defaultdict(TextLogprobs)  # by choice

    def whole(self, head: Head, choices: Sequence[Written], usage: Usage) -> dict[str, Any]:
        rendered = [
            self._choice(index, written.text, written.reason, written.logprobs) for index, written in enumerate(choices)
        ]
        return _object(head, "text_completion", rendered) | {"usage": usage_object(usage)}

    def opening(self, head: Head, choice: int) -> None:
        return None

    def piece(self, head: Head, piece: Piece) -> dict[str, Any]:
        return _object(head, "text_completion", [self._choice(piece.choice, piece.text, None, piece.logprobs)])

    def end(self, head: Head, choice: int, reason: FinishReason) -> dict[str, Any]:
        return _object(head, "text_completion", [self._choice(choice, "", reason, ())])

    def usage(self, head: Head, usage: Usage) -> dict[str, Any]:
        return _object(head, "text_completion", []) | {"usage": usage_object(usage)}

    def _choice(
        self, index: int, text: str, reason: FinishReason | None, tokens: Sequence[TokenLogprob]
    ) -> dict[str, Any]:
        logprobs = self._logprobs[index].render(tokens) if self._told else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
