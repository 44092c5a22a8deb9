"""An answer's prose cut into sentences and tokens, and which language it is in."""

import re
import unicodedata
from collections import Counter
from typing import NamedTuple

from cache.semantic.answers_words import LANGUAGES, MONTHS

_MARKS = re.compile(r"[*_#>|]{2,}|(?<!\w)[*_#>|]|[*_|](?!\w)")
_ITEM = re.compile(r"(?:[-*•+–]|\(?\d{1,2}[.)]|[a-h]\))\s+")
# No end after an initial or a title: "U. S.", "Dr. Smith".
_SENTENCES = re.compile(r"(?<!\b[A-Z])(?<!\b[A-Z][a-z])(?<!\bMrs)(?<!e\.g)(?<!i\.e)[.!?;]+(?=\s|$)|\n+|[。！？；]")
_DAY_DOT = re.compile(rf"(?<=\d)\.(?= (?:{'|'.join(MONTHS)})\b)", re.IGNORECASE)  # am 3. Mai
ASIAN = ("CJK", "ja", "HANGUL")
"""Languages whose words are not told apart by blanks, or not by blanks alone."""
_ASIAN = "\u3005-\u3007\u3400-\u9fff\uac00-\ud7a3"
_TOKENS = re.compile(
    r"(?P<code>`[^`\n]+`)"
    r"|(?P<iso>\d{4}-\d{2}-\d{2}(?!\d))"
    r"|(?P<time>(?<!\d)\d{1,2}:\d{2}(?!\d))"
    r"|(?P<version>v?\d+(?:\.\d+){2,}\b|https?://\S+)"
    r"|(?P<number>(?<![\w.])-?\d[\d.,]*(?<![.,])|\d+)(?P<after>[a-zA-Z]{1,3}\b)?"
    rf"|(?P<asian>[{_ASIAN}]+|[\u30a0-\u30ff]+|[\u3040-\u309f]+)"
    rf"|(?P<word>[^\W\d_{_ASIAN}\u3040-\u30ff][^\W_{_ASIAN}\u3040-\u30ff]*(?:['+#-][^\W_{_ASIAN}\u3040-\u30ff]+)*[+#]*)"
    r"|(?P<sign>°[CFcf]?|[%$€£¥])|(?P<pause>[,:()—]|\s[-–]\s)|(?P<to>[-–])"
)
_HEAD = 2_000  # characters that tell the script


class Token(NamedTuple):
    """`kind` names the group of the pattern; `first` is the first of its sentence."""

    kind: str
    text: str
    folded: str
    first: bool


class Sentence(NamedTuple):
    tokens: list[Token]
    asks: bool


def sentences_of(text: str) -> list[Sentence]:
    """Each sentence, line or list item that has tokens, without the marks of lists and of Markdown."""
    text = _DAY_DOT.sub("", text)
    found: list[Sentence] = []
    start = 0
    for end in _SENTENCES.finditer(text):
        found.append(Sentence(_tokens(text[start : end.start()]), "?" in end[0] or "？" in end[0]))
        start = end.end()
    found.append(Sentence(_tokens(text[start:]), False))
    return [sentence for sentence in found if sentence.tokens]


def _tokens(part: str) -> list[Token]:
    part = _MARKS.sub(" ", part).strip()
    item = _ITEM.match(part)
    found: list[Token] = []
    for match in _TOKENS.finditer(part, item.end() if item else 0):
        kind = match.lastgroup or ""
        if kind == "after":  # 5km
            found.append(Token("number", match["number"], match["number"], not found))
            kind, body = "word", match["after"]
        else:
            body = match[0].strip("`") if kind == "code" else match[0]
        found.append(Token(kind, body, body if kind == "code" else body.casefold(), not found))
    return found


def language_of(text: str, sentences: list[list[Token]]) -> str:
    """The script, where it is not Latin, else the language that most words without a meaning are of; "" when unsure."""
    head = text[:_HEAD]
    if re.search("[\u3040-\u30ff]", head):
        return "ja"
    if not head.isascii():
        letters = [c for c in head if c.isalpha()]
        scripts = Counter(unicodedata.name(c, "?").split()[0] for c in letters if not c.isascii())
        script, count = next(iter(scripts.most_common(1)), ("", 0))
        if script != "LATIN" and 3 * count > len(letters):
            return script
    votes = Counter(
        language for tokens in sentences for token in tokens for language in LANGUAGES.get(token.folded, "").split()
    )
    (best, most), (_, second) = [*votes.most_common(2), ("", 0), ("", 0)][:2]
    return best if most > max(1, second) else ""
