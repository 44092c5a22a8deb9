"""What writes one choice of a request: made from the model's tokenizer and the request's parameters."""

from backends.local.choice import Choice
from backends.local.constrain import Grammars
from backends.local.sampler import Sampler
from backends.local.tokenizer import Tokenizer
from backends.local.work import Work


class Opener:
    """`end_tokens` end an answer, `vocabulary` is the number of scores that the model gives. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer, end_tokens: frozenset[int], vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self.longest_token = max((len(token) for token in tokenizer.inner.get_vocab()), default=1)
        """Characters of the longest token: a text has at least its length divided by this many tokens."""
        self._grammars = Grammars(tokenizer.inner, end_tokens, vocabulary)

    def check(self, schema: str) -> None:
        """Whether answers can obey this JSON schema. May take a second: not for the event loop. Raises RequestError."""
        self._grammars.check(schema)

    def __call__(self, work: Work, index: int) -> tuple[Sampler, Choice]:
        constraint = None if work.schema is None else self._grammars.constraint(work.schema)
        choice = Choice(
            index=index,
            decode=self._tokenizer.decode,
            spell=self._grammars.spell,
            stops=work.stops,
            end_tokens=frozenset() if work.ignore_eos else self._end_tokens,
            max_tokens=work.max_tokens,
        )
        return Sampler(work.sampling, index, constraint), choice
