"""Are two answers, made separately for two like questions, the same answer?

A wrong yes lets wrong answers be served, a wrong no costs hits: in doubt they differ. What counts, in this order: equal
text; what must be equal as a whole (JSON, code, refusals); what contradicts (another yes or no, negation, number, unit,
name, order); a word put in another's place, which is words of their own on both sides in sentences that share some; at
last whether what is shared says enough. The shorter answer may be wholly in the longer one; where both say more, they
must share a number with its unit, or a name.

A gist is made once per answer and has a bound whatever the answer's length: answers that say more than it has room for
are the same only when their texts are.
"""

import re
import unicodedata
from array import array
from dataclasses import dataclass
from hashlib import blake2b

from cache.semantic.answers_pair import MIN_SHARED, Side, contradict, say_enough
from cache.semantic.answers_reading import Number, Reading, Word, read
from cache.semantic.answers_shapes import canonical_json, cut_code, is_refusal

MAX_READ = 16_000
"""Characters: of a longer answer only the whole text counts."""
MAX_WORDS = 96
MAX_NUMBERS = 24
_PIECE = 200  # characters; bounds what a run of combining marks costs to put in order
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_MAX_SENTENCES = 4096
_NUMBER = 7  # integers of a packed number


@dataclass(frozen=True, slots=True)
class Gist:
    """At most 1.6 KB. `whole` is the digest of the folded text, `code` of its code blocks (empty without); the rest is
    a `Reading`, packed: `words` 4 bytes each, `places` 2, `numbers` 28. Without `readable` nothing counts but `whole`.
    """

    whole: bytes
    readable: bool = False
    code: bytes = b""
    language: str = ""
    says: int = 0
    brief: bool = False
    words: bytes = b""
    places: bytes = b""
    numbers: bytes = b""


def gist(answer: str) -> Gist:
    """What comparing needs of an answer. Takes any text, in time linear in its length."""
    text = _normal(answer)
    if (value := canonical_json(text)) is not None:
        return Gist(_digest(f"json {value}"))
    code, prose = cut_code(text)
    whole = _digest(text.strip() if code else " ".join(map(_fold, text.split())).rstrip(" ."))
    if len(prose) > MAX_READ or is_refusal(prose):
        return Gist(whole)
    reading = read(prose)
    if reading is None or reading.asks:
        return Gist(whole)
    words, numbers = list(dict.fromkeys(reading.words)), list(dict.fromkeys(reading.numbers))
    if len(words) > MAX_WORDS or len(numbers) > MAX_NUMBERS:
        return Gist(whole)
    return _packed(whole, _digest(code) if code else b"", reading, words, numbers)


def same_answer(a: Gist, b: Gist) -> bool:
    """False when in doubt. Symmetric."""
    if a.whole == b.whole:
        return True
    if not (a.readable and b.readable) or a.code != b.code:
        return False
    if a.language != b.language and a.language and b.language:
        return False
    if not _may_meet(a, b):
        return False
    one, two = (Side(g.says, g.brief, bool(g.code), *_unpacked(g)) for g in (a, b))
    one.meet(two)
    two.meet(one)
    return not contradict(one, two) and say_enough(one, two)


def _may_meet(a: Gist, b: Gist) -> bool:
    """Most that differ are told by little: words of their own on both sides, few shared and no number."""
    said_a, said_b = set(memoryview(a.words).cast("I")), set(memoryview(b.words).cast("I"))
    shared = said_a & said_b
    if a.code or len(shared) >= MIN_SHARED or not (said_a - shared and said_b - shared):
        return True
    numbers_a, numbers_b = memoryview(a.numbers).cast("I")[::_NUMBER], memoryview(b.numbers).cast("I")[::_NUMBER]
    return not set(numbers_a).isdisjoint(numbers_b)


def _normal(answer: str) -> str:
    if not answer.isascii():
        pieces = (answer[at : at + _PIECE] for at in range(0, len(answer), _PIECE))
        text = "".join(unicodedata.normalize("NFKC", piece) for piece in pieces)
        answer = _UNSEEN.sub("", text).replace("’", "'").replace("−", "-")
    return answer.replace("\r\n", "\n")


def _fold(word: str) -> str:
    """Without case, but where little else is left: `-D`, mW."""
    return word if len(word) < 4 and not word[1:].islower() else word.casefold()


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _packed(whole: bytes, code: bytes, reading: Reading, words: list[Word], numbers: list[Number]) -> Gist:
    places = [min(w.sentence, _MAX_SENTENCES - 1) << 4 | w.role << 1 | w.name for w in words]
    parts = [part for n in numbers for part in (n.value, n.unit, n.frame, *n.before, n.bound, n.sentence)]
    return Gist(
        whole,
        True,
        code,
        reading.language,
        reading.says,
        reading.brief,
        array("I", [word.meaning for word in words]).tobytes(),
        array("H", places).tobytes(),
        array("I", parts).tobytes(),
    )


def _unpacked(g: Gist) -> tuple[list[Word], list[Number]]:
    meanings, places = memoryview(g.words).cast("I").tolist(), memoryview(g.places).cast("H").tolist()
    parts = memoryview(g.numbers).cast("I").tolist()
    return (
        [Word(said, at >> 4, bool(at & 1), at >> 1 & 7) for said, at in zip(meanings, places, strict=True)],
        [
            Number(value, unit, frame, (first, second), bound, sentence)
            for value, unit, frame, first, second, bound, sentence in zip(*[iter(parts)] * _NUMBER, strict=True)
        ],
    )
