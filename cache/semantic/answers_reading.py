"""What an answer's prose says, as far as the comparer can tell: words with their negations, names and numbers.

Nothing is understood. A sentence is the unit in which words belong together; a number belongs to the word after it
(what it counts) and to the two before it (its frame). A negation turns the next three words that say something, up to a
comma, or the one before it when none follows.
"""

import re
from typing import NamedTuple

from cache.semantic.answers_numbers import is_number, number_at
from cache.semantic.answers_tokens import ASIAN, Token, language_of, sentences_of
from cache.semantic.answers_words import (
    IDIOM,
    LEAST,
    MOST,
    NEGATORS,
    OPPOSITE,
    PHRASES,
    ROLES,
    SAYS,
    meaning,
    number_of,
)

MAX_TOKENS = 1_500
NEGATED_WORDS = 3
BRIEF = 4
"""Tokens."""
_BOUNDS = {MOST: 1, LEAST: 2}
_ASIAN_NOT = re.compile("不是|不能|不会|不可|不要|没有|不|没|無|无|ない|ません|ず|않|없|아니|못")
_ASIAN_SMALL = re.compile("[的是了在和这那它他她我你您吗呢吧]")
_PARTICLES = {
    "on": meaning("enable"),
    "up": number_of("particle up"),
    "down": number_of("particle up") | OPPOSITE,
}
_TURNERS = {"turn", "turned", "turning", "switch", "switched", "switching", "scroll", "is", "it", "go", "goes", "going"}


class Word(NamedTuple):
    """`role` tells what it comes after ("than", "from"), 0 for nothing of that kind."""

    meaning: int
    sentence: int
    name: bool
    role: int


class Number(NamedTuple):
    """`unit` and `frame` are 0 where there is none; `before` are the meanings of the frame's words; `bound` is 1 for at
    most, 2 for at least, else 0."""

    value: int
    unit: int
    frame: int
    before: tuple[int, int]
    bound: int
    sentence: int


class Reading(NamedTuple):
    """`brief`: nothing but what was asked for, as in "Paris."; `asks`: all that it says is a question."""

    language: str
    says: int
    words: list[Word]
    numbers: list[Number]
    brief: bool
    asks: bool


def read(text: str) -> Reading | None:
    """Of prose in NFKC; None when it is too long. Linear in its length."""
    parts = sentences_of(text)
    sentences = [part.tokens for part in parts]
    size = sum(map(len, sentences))
    if size > MAX_TOKENS:
        return None
    language = language_of(text, sentences)
    words: list[Word] = []
    numbers: list[Number] = []
    for at, tokens in enumerate(sentences):
        _Sentence(at, tokens, language, words, numbers).read()
    brief = size <= BRIEF and (size == 1 or language in ASIAN or all(word.name for word in words))
    told = {word.sentence for word in words} | {number.sentence for number in numbers}
    asks = bool(told) and all(parts[at].asks for at in told)
    return Reading(language, _says(sentences), words, numbers, brief, asks)


def _says(sentences: list[list[Token]]) -> int:
    """1 for an answer that begins with yes, -1 with no, after any sentence that says nothing."""
    for tokens in sentences[:3]:
        said = SAYS.get(tokens[0].folded, 0)
        if said > 0 or (said < 0 and (len(tokens) == 1 or tokens[1].kind == "pause")):
            return said
        if any(token.kind != "word" or meaning(token.folded) for token in tokens):
            return 0
    return 0


class _Sentence:
    """One sentence on its way into the reading."""

    def __init__(self, at: int, tokens: list[Token], language: str, words: list[Word], numbers: list[Number]) -> None:
        self._at = at
        self._tokens = tokens
        self._language = language
        self._words = words
        self._numbers = numbers
        self._negating = 0  # words that the last negation still turns
        self._pending = False  # it has turned none yet
        self._bound = 0
        self._role = 0

    def read(self) -> None:
        at = 0
        while at < len(self._tokens):
            at += self._take(at)
        self._end_negation()

    def _take(self, at: int) -> int:
        """Read what begins at this token; how many tokens that was."""
        token = self._tokens[at]
        if is_number(self._tokens, at, self._language):
            return self._number(at)
        if token.kind == "pause":
            self._end_negation()
        elif token.kind in ("code", "version"):
            self._add(number_of(token.text), name=True)
        elif token.kind == "asian":
            self._asian(token.text)
        elif token.kind == "word":
            self._role = ROLES.get(token.folded, self._role)
            if size := self._phrase(at):
                return size
            if token.folded in NEGATORS:
                if not token.first or len(self._tokens) == 1 or self._tokens[1].kind != "pause":  # "No, it is."
                    self._negating, self._pending = NEGATED_WORDS, True
            elif not (token.first and token.folded in SAYS):
                self._word(at, token)
        return 1

    def _phrase(self, at: int) -> int:
        for phrase, kind in PHRASES.get(self._tokens[at].folded, ()):
            end = at + len(phrase)
            if tuple(t.folded for t in self._tokens[at:end]) == phrase and (
                kind == IDIOM or is_number(self._tokens, end, self._language)
            ):
                self._bound = _BOUNDS.get(kind, 0)
                return len(phrase)
        return 0

    def _word(self, at: int, token: Token) -> None:
        said = meaning(token.folded)
        if token.folded in _PARTICLES and any(t.folded in _TURNERS for t in self._tokens[max(0, at - 4) : at]):
            said = _PARTICLES[token.folded]
        name = self._is_name(at, token)
        if not said and name and not token.first and not token.folded.startswith("i'") and token.text != "I":
            said = number_of(token.folded)  # Go, US, AM: written so, they are no small words
        if said:
            self._add(said, name=name)

    def _is_name(self, at: int, token: Token) -> bool:
        """A capital says so, but in German, or at the beginning, unless there are more of them."""
        if any(c.isupper() or c.isdigit() for c in token.text[1:]):
            return True
        after = self._tokens[at + 1 : at + 2]
        return (
            token.text[0].isupper()
            and self._language != "de"
            and (not token.first or any(t.kind == "word" and t.text[0].isupper() for t in after))
        )

    def _asian(self, run: str) -> None:
        """Scripts without blanks are compared by pairs of signs; hiragana are endings."""
        turned = OPPOSITE if _ASIAN_NOT.search(run) else 0
        run = _ASIAN_NOT.sub("", run)
        if not run or "\u3040" <= run[0] <= "\u309f":
            if turned:
                self._negating, self._pending = 0, True
                self._end_negation()
            return
        for part in filter(None, _ASIAN_SMALL.split(run)):
            for pair in [part[i : i + 2] for i in range(len(part) - 1)] or [part]:
                self._add(number_of(pair) ^ turned, name=False)

    def _add(self, said: int, *, name: bool) -> None:
        if self._negating:
            self._negating -= 1
            self._pending = False
            said ^= OPPOSITE
        self._words.append(Word(said, self._at, name, self._role))
        self._role = 0

    def _end_negation(self) -> None:
        """A negation that had nothing after it is of the word before it."""
        if self._pending and self._words and self._words[-1].sentence == self._at:
            last = self._words[-1]
            self._words[-1] = last._replace(meaning=last.meaning ^ OPPOSITE)
        self._negating, self._pending = 0, False

    def _number(self, at: int) -> int:
        found, size = number_at(self._tokens, at, self._language)
        before = [t.folded for t in self._tokens[max(0, at - 2) : at] if t.kind == "word"]
        frame = number_of(" ".join(before)) if len(before) == 2 else 0
        first, second = [*map(meaning, before), 0, 0][:2]
        turned = OPPOSITE if self._negating else 0
        self._pending = False
        for value, unit in found:
            self._numbers.append(Number(value ^ turned, unit, frame, (first, second), self._bound, self._at))
        self._bound = self._role = 0
        return size
