"""Log probabilities in OpenAI's two wire forms: a list of objects for chat, parallel lists for legacy completions."""

import codecs
from collections.abc import Sequence
from typing import Any

from backends.local.work import Alternative, TokenLogprob


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [
        _chat_token(token.chosen) | {"top_logprobs": [_chat_token(other) for other in token.top]} for token in tokens
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: Alternative) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


class TextLogprobs:
    """Those of one choice. It counts characters, so that each token is told where it begins in the answer's text."""

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")("ignore")
        self._offset = 0

    def render(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The next tokens of the choice. The chosen one is always in its map, as at OpenAI."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._characters.decode(token.chosen.data))
        return {
            "tokens": [_name(token.chosen) for token in tokens],
            "token_logprobs": [token.chosen.logprob for token in tokens],
            "top_logprobs": [{_name(other): other.logprob for other in (*token.top, token.chosen)} for token in tokens],
            "text_offset": offsets,
        }


def _name(token: Alternative) -> str:
    """Its text; its bytes where it is no whole character, so that two such tokens do not get one name."""
    try:
        return token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
