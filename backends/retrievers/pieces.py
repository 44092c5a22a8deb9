"""From what a search service answers to pieces of documents, or to what is wrong with it, which quotes nothing of it.

A defect spoils one result; `usable` says what becomes of the rest. The answer as a whole is bounded before it is
parsed: a value takes up to a hundred times its bytes in memory.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from backends.retrievers.base import Found, RetrieverError

MOST_VALUES = 250_000
MOST_RESULTS = 5_000
LONGEST_NAME = 1_000
"""Characters of an id, a version or a title."""
LONGEST_TEXT = 64 * 1024
"""Characters of the text of one result."""

_log = logging.getLogger(__name__)


class Defect(Exception):
    """What is wrong with one result: a path, and what is there."""


@dataclass(frozen=True, slots=True)
class Piece:
    document: str
    version: str
    text: str = field(repr=False)
    score: float
    title: str


def parse(data: bytes, what: str) -> Any:
    """The JSON in an answer of `what`. Raises RetrieverError."""
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise RetrieverError("bad_results", f"the answer of {what} holds too many values")
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # NaN, numbers beyond a double and lone surrogates are no JSON either and end here.
        raise RetrieverError("bad_results", f"the answer of {what} is not JSON") from None


def usable(items: Sequence[Any], piece: Callable[[Any], Piece | None], *, name: str, what: str) -> list[Piece]:
    """What `piece` makes of the items, without those that have a defect or (None) are not for this principal. Raises
    RetrieverError where there are too many, or where all that are for the principal have a defect: then it is rather
    the path that is wrong. `name` is the retriever's, for the log; `what` is the service in words."""
    if len(items) > MOST_RESULTS:
        raise RetrieverError("bad_results", f"{what} answered with more than {MOST_RESULTS} results")
    pieces: list[Piece] = []
    defects: list[Defect] = []
    for item in items:
        try:
            made = piece(item)
        except Defect as defect:
            defects.append(defect)
        else:
            if made is not None:
                pieces.append(made)
    if defects and not pieces:
        raise RetrieverError("bad_results", f"{what} answered with results that cannot be used: {defects[0]}")
    if defects:
        _log.warning("retriever %s: %d results left out, of one %s", name, len(defects), defects[0])
    return pieces


def found(pieces: Iterable[Piece], *, top_k: int, gone: Callable[[str], bool]) -> list[Found]:
    """The best `top_k` of the documents that are not gone, the best first. The service does not say where in its
    document a piece lies, so `position` counts the pieces of a document in this list."""
    counted: Counter[str] = Counter()
    best: list[Found] = []
    for piece in sorted(pieces, key=lambda piece: -piece.score):
        if len(best) == top_k:
            break
        if not gone(piece.document):
            position = counted[piece.document]
            counted[piece.document] += 1
            best.append(Found(piece.document, piece.version, position, piece.text, piece.score, piece.title))
    return best


def id_at(path: str, value: Any) -> str:
    """A document's id: text, or a whole number. Raises Defect."""
    if type(value) is int and -(2**63) <= value < 2**64:
        return str(value)
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME:
        raise Defect(f"{path} is no id (text of at most {LONGEST_NAME} characters, or a whole number)")
    return value


def text_at(path: str, value: Any) -> str:
    """Raises Defect."""
    if not isinstance(value, str) or not value.strip():
        raise Defect(f"{path} is no text, or an empty one")
    if len(value) > LONGEST_TEXT:
        raise Defect(f"{path} is a text of more than {LONGEST_TEXT} characters")
    return value


def score_at(path: str, value: Any) -> float:
    """Raises Defect."""
    try:
        score = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:  # a whole number beyond a double
        score = math.nan
    if not math.isfinite(score):
        raise Defect(f"{path} is no number")
    return score


def text_version(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def version_at(path: str, value: Any, text: str) -> str:
    """As the service has it; where it has none, that of the text. Raises Defect."""
    if value is None or value == "":
        return text_version(text)
    if type(value) is float:
        return repr(value)
    try:
        return id_at(path, value)
    except Defect:
        raise Defect(f"{path} is no version (text of at most {LONGEST_NAME} characters, or a number)") from None
