"""Answers that obey a JSON schema: before each token llguidance's grammar says which ones may come.

Any thread may use Grammars. The library's tokenizer never changes; a compiled schema is only copied, and the table of
them has a lock. What the copies share, states of the lexer that are made when needed, the library guards itself. A
Constraint changes with each token and belongs to one thread at a time.

A schema is refused where the library cannot do it to the letter, since an answer that only looks as if it obeyed would
be worse. What a schema may cost is bounded by the limits below, so that nobody stops the others with one. Measured with
49,152 tokens: what the limits let through compiles within 0.3 s; a token then takes 0.1 ms, with a pattern that was
made to be slow 25 ms, and within a constant of 30,000 characters, which is read anew for each token, 25 ms as well.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from numpy.typing import NDArray

from backends.local.errors import RequestError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_SCHEMA = 65_536  # characters
KEPT = 8  # compiled schemas
REASON = 300  # characters of the library's reason, which may quote a long pattern

LIMITS = LLParserLimits(
    max_grammar_size=10_000,  # symbols: about 1,000 optional properties, 3,000 required ones
    max_items_in_row=20_000,  # more than such a grammar comes to; the library's 2,000 fail within the answer
    max_lexer_states=100_000,  # 50 MB
    verbose_errors=False,
)

OPTIONS: "JsonCompileOptions" = {
    # A small model that lost the thread writes white space for ever, where it may.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,24}",
    # A schema can set these too. What they would change is no longer JSON, or no longer obeys the schema.
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
    "json_allow_general_unicode_escapes": False,
}


class ConstraintFailed(Exception):
    """The grammar came to a limit, or nothing can follow although it is not complete."""


class Constraint:
    """What one answer may still be. `failed` is called where that cannot be told any more."""

    def __init__(self, matcher: LLMatcher, vocabulary: int, failed: Callable[[], None]) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._failed = failed

    @property
    def complete(self) -> bool:
        """Whether the answer is complete and nothing can follow."""
        return self._matcher.is_stopped()

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, booleans of shape (vocabulary,). End tokens are among them where the answer is
        complete. Raises ConstraintFailed."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """Go on with a token that was allowed. Raises ConstraintFailed."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            self._failed()
            # Not the library's words, which would be logged: they may quote the answer.
            raise ConstraintFailed(self._matcher.stop_reason())


class Grammars:
    """The schemas that came, compiled for one tokenizer of transformers. `vocabulary` is the number of scores that the
    model gives. Takes half a second."""

    def __init__(self, tokenizer: Any, end_tokens: frozenset[int], vocabulary: int) -> None:
        self._decode = tokenizer.decode
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None
        # The vocabulary of a tokenizer may be larger than the model's, and the other way round.
        size = max(vocabulary, len(tokenizer))
        try:
            self._tokens = from_tokenizer(tokenizer, n_vocab=size, eos_token=sorted(end_tokens) or None)
        except ValueError as error:  # a tokenizer that is not a fast one, or of a kind that the library does not know
            self._missing = str(error)

    def spell(self, token: int) -> bytes:
        """The bytes of one token; of a special token its name."""
        if self._tokens is None:
            text: str = self._decode([token])
            return text.encode()
        return self._tokens.decode_bytes([token])

    def check(self, schema: str) -> None:
        """Compile a JSON schema. Raises RequestError where answers cannot be made to obey it."""
        self._matcher(schema)

    def constraint(self, schema: str) -> Constraint:
        """For one answer. Quick where the schema was checked before; raises RequestError as `check` does."""
        return Constraint(self._matcher(schema), self._vocabulary, partial(self._forget, schema))

    def _matcher(self, schema: str) -> LLMatcher:
        with self._lock:
            compiled = self._compiled.get(schema)
            if compiled is not None:
                self._compiled.move_to_end(schema)
        if compiled is None:
            compiled = self._compile(schema)
            with self._lock:
                self._compiled[schema] = compiled
                if len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
        return compiled.deep_copy()

    def _forget(self, schema: str) -> None:
        """After a failure: the states that all its answers share may be what came to the limit."""
        with self._lock:
            self._compiled.pop(schema, None)

    def _compile(self, schema: str) -> LLMatcher:
        if self._tokens is None:
            raise RequestError(
                f"This model's tokenizer cannot be used with a schema: {self._missing}",
                param="response_format",
                code="unsupported_parameter",
            )
        if len(schema) > MAX_SCHEMA:
            raise _refused(f"it has {len(schema)} characters, more than {MAX_SCHEMA}")
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=OPTIONS)
        except ValueError as error:
            raise _refused(str(error)) from error
        compiled = LLMatcher(self._tokens, grammar, log_level=0, limits=LIMITS)
        # A schema without a single answer, such as one that only refers to itself, fails with the first token.
        first = compiled.deep_copy()
        first.compute_bitmask()
        for matcher in (compiled, first):
            if matcher.is_error():
                raise _refused(matcher.get_error().removesuffix("<non-verbose/>").strip())
        return compiled


def _refused(reason: str) -> RequestError:
    return RequestError(
        f"'response_format' holds a schema that answers cannot be made to obey: {reason[:REASON]}",
        param="response_format",
        code="invalid_value",
    )
