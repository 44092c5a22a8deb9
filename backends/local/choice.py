"""One answer being written: its tokens go in, the text that may be shown and the reason of its end come out."""

from collections.abc import Callable, Collection, Sequence

from backends.local.text import Detokenizer, StopMatcher
from backends.local.work import FinishReason


class Choice:
    """`tokens` counts every token the model made, the end-of-answer token and those of a stop string included: each
    was a step of the model."""

    def __init__(
        self,
        *,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str],
        end_tokens: Collection[int],
        max_tokens: int,
    ) -> None:
        self._text = Detokenizer(decode)
        self._stop = StopMatcher(stops)
        self._end_tokens = end_tokens
        self._max_tokens = max_tokens
        self.tokens = 0
        self.finish_reason: FinishReason | None = None

    def push(self, token: int) -> str:
        """Take the next token; the text it allows to show. Sets `finish_reason` on the last one."""
        self.tokens += 1
        if token in self._end_tokens:
            self.finish_reason = "stop"
            return self._stop.finish()
        text = self._stop.push(self._text.push(token))
        if self._stop.matched:
            self.finish_reason = "stop"
        elif self.tokens >= self._max_tokens:
            self.finish_reason = "length"
            text += self._stop.finish()
        return text
