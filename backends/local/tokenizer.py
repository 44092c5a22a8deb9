"""The model's tokenizer and chat template, as the engine uses them."""

from collections.abc import Sequence
from typing import Any

import jinja2

from backends.local.errors import RequestError


class Tokenizer:
    """Wraps a transformers tokenizer. Encoding a long text takes seconds: call it off the event loop, and from one
    thread only, since a fast tokenizer may not be entered twice."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def inner(self) -> Any:
        """The transformers tokenizer, for what reads it once."""
        return self._tokenizer

    @property
    def end_token(self) -> int | None:
        token: int | None = self._tokenizer.eos_token_id
        return token

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The prompt that asks for the assistant's next message. Raises RequestError where the template refuses."""
        if not self._tokenizer.chat_template:
            raise RequestError(
                "This model has no chat template. Use /v1/completions, or an instruction-tuned model.", param="messages"
            )
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise RequestError(
                f"The model's chat template refuses these messages: {error}", param="messages", code="invalid_value"
            ) from error
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def encode_text(self, prompt: str) -> list[int]:
        ids: list[int] = self._tokenizer(prompt)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Without special tokens; U+FFFD for bytes that are no character."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
