"""One answer being written: its tokens go in, the text that may be shown and the reason of its end come out.

The log probabilities that are handed out are those of the tokens whose text is shown, together with it: the list spells
the answer, as OpenAI's does. So the end token is not in it, nor are the tokens of a stop string that was cut off; one
that the cut goes through is. (vLLM lists both.)
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence

from backends.local.sampler import Drawn, Logprobs
from backends.local.text import Detokenizer, StopMatcher
from backends.local.work import Alternative, FinishReason, TokenLogprob


class Choice:
    """`decode` turns token ids into text, `spell` one id into bytes. `tokens` counts every token the model made, the
    end token and those of a stop string included: each was a step of the model."""

    def __init__(
        self,
        *,
        index: int,
        decode: Callable[[Sequence[int]], str],
        spell: Callable[[int], bytes],
        stops: Sequence[str],
        end_tokens: Collection[int],
        max_tokens: int,
    ) -> None:
        self.index = index
        self.tokens = 0
        self.finish_reason: FinishReason | None = None
        self._text = Detokenizer(decode)
        self._spell = spell
        self._stop = StopMatcher(stops)
        self._end_tokens = end_tokens
        self._max_tokens = max_tokens
        self._decoded = 0  # characters
        self._shown = 0
        # Where the text of a token begins, in characters, and its log probability, until that text is shown.
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()

    def push(self, drawn: Drawn) -> tuple[str, tuple[TokenLogprob, ...]]:
        """Take the next token; the text it allows to show and the log probabilities that go with it. Sets
        `finish_reason` on the last one."""
        self.tokens += 1
        text = ""
        if drawn.token in self._end_tokens:
            self.finish_reason = "stop"
        else:
            if drawn.logprobs is not None:
                self._waiting.append((self._decoded, self._named(drawn.token, drawn.logprobs)))
            decoded = self._text.push(drawn.token)
            self._decoded += len(decoded)
            text = self._stop.push(decoded)
            if self._stop.matched or drawn.last:
                self.finish_reason = "stop"
            elif self.tokens >= self._max_tokens:
                self.finish_reason = "length"
        if self.finish_reason is not None:
            text += self._stop.finish()
        self._shown += len(text)
        return text, self._logprobs()

    def _logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those that go with the text shown so far: at the end also those without text of their own, such as that of a
        special token, but for what a stop string cut off."""
        everything = self.finish_reason is not None and not self._stop.matched
        ready = []
        while self._waiting and (everything or self._waiting[0][0] < self._shown):
            ready.append(self._waiting.popleft()[1])
        return tuple(ready)

    def _named(self, token: int, logprobs: Logprobs) -> TokenLogprob:
        top = tuple(self._alternative(other, logprob) for other, logprob in logprobs.top)
        return TokenLogprob(self._alternative(token, logprobs.chosen), top)

    def _alternative(self, token: int, logprob: float) -> Alternative:
        data = self._spell(token)
        return Alternative(data.decode("utf-8", "replace"), data, logprob)
