"""Does a request ask about now? Then its answer ages fast and lives `volatile_ttl` instead of the endpoint's TTL.

A wrong yes costs a shorter life, a wrong no may hand out yesterday's answer to today's question: what is in doubt
counts. What is asked is in the users' words, so nobody else's turns are read.

Texts are cut into words (scripts without blanks: characters) and walked once along a tree of phrases (the
lists are in volatile_words.txt). At each word the longest phrase wins, and one that is not about now ("alternating
current", "from now on") takes its words with it. So the time is linear in the text, whatever it says.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from importlib import resources
from itertools import pairwise, product
from typing import Any

from gateway.normalize import Api

# Not seen when read: joiners, direction marks, soft hyphens, variation selectors; and signs that Arabic (vowels, the
# stretching line) and Hebrew (points) are mostly written without.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670]+"
)
_ACCENTS = re.compile("[\u0300-\u036f\u0653-\u0655]+")

# Stops are words, so that no phrase reaches over one: "Is it raining now? Write ..." is not "now write".
_PAUSES = ",،、"
_STOPS = '.;:!?\n"()。؟।'
_ASCII = {c: " " if not chr(c).isalnum() and chr(c) not in "_,." else chr(c).lower() for c in range(128)}
_ASCII |= {ord(c): "." for c in _STOPS if c.isascii()}
# Hindi's vowel signs are no letters to `\w`.
_NO_WORD = re.compile(r"[\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]+|[^\w\s.,\u0900-\u0963]+")
_DIGITS = re.compile(r"\d+")
_CHINESE_AND_ON = "\u3005"  # from here on in Unicode there are the scripts without blanks, and Korean

END = 4_000
"""Characters that are read of a text's beginning and of its end."""
LONG = 48_000
"""Characters of all turns together. More is not read, which would hold up everybody else, and counts as about now."""

_VERDICT = ""  # no word is empty, so its place in a node is free
_NUMBER = "#"
_DEPTH = 16  # words (characters) in the longest phrase, or more
_BY_CHARACTER = ("zh", "ja", "ko")
_Node = dict[str, Any]  # from the next word to its node; the verdict is in the node where a phrase ends


def about_now(api: Api, body: Mapping[str, Any]) -> bool:
    """Does any user turn of this chat, or any prompt of this completion, ask about now?"""
    found = _user_texts(body.get("messages")) if api == "chat" else _strings(body.get("prompt"))
    texts = [_ends(text) for text in found]
    return sum(map(len, texts)) > LONG or any(_speaks_of_now(text) for text in texts)


def _user_texts(messages: Any) -> Iterator[str]:
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        content = message.get("content")
        yield from _strings(
            [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else content
        )


def _strings(value: Any) -> Iterator[str]:
    yield from (v for v in (value if isinstance(value, list) else (value,)) if isinstance(v, str))


def _ends(text: str) -> str:
    """What is asked stands before or after what is pasted."""
    return text if len(text) <= 2 * END else f"{text[:END]}\n{text[-END:]}"


def _speaks_of_now(text: str) -> bool:
    if text.isascii():
        text = text.translate(_ASCII)
        return _found(_PHRASES, text.replace(".", " . ").replace(",", " , ").split())
    text = _fold(text)
    return _found(_PHRASES, _words(text)) or (
        max(text, default="") >= _CHINESE_AND_ON and _found(_STRINGS, _characters(text))
    )


def _fold(text: str) -> str:
    text = unicodedata.normalize("NFKC", _UNSEEN.sub("", text)).casefold()
    # Turkish has two letters i, and casefold, which knows no language, makes three of them.
    text = text.replace("\u0307", "").replace("ı", "i")
    for signs, stop in ((_STOPS, " . "), (_PAUSES, " , ")):
        for sign in signs:
            text = text.replace(sign, stop)
    return text


def _words(text: str) -> list[str]:
    return _NO_WORD.sub(" ", text).split()


def _characters(text: str) -> list[str]:
    # Korean has blanks, but hangs its particles on the word: with the blanks, nothing is found across two words.
    return list(_DIGITS.sub("0", text))


def _found(tree: _Node, words: list[str]) -> bool:
    """Is there a phrase about now?"""
    words.append("\n")  # so that every word has a next; a line's end is a stop, so this is no word
    past = 0
    # Most words begin nothing, or are followed by something else; no more than this is done for those.
    for at in [
        at
        for at, (word, after) in enumerate(pairwise(words))
        if word in tree and (_VERDICT in (node := tree[word]) or after in node or _NUMBER in node)
    ]:
        if at < past:
            continue
        verdict, size = _longest(tree, words, at)
        if verdict:
            return True
        if verdict is False:
            past = at + size
    return False


def _longest(tree: _Node, words: list[str], at: int) -> tuple[bool | None, int]:
    """The verdict of the longest phrase at this place, and how many words it takes."""
    node, verdict, size = tree, None, 0
    # No deeper than the tree, so the whole stays linear.
    for depth, word in enumerate(words[at : at + _DEPTH], 1):
        if word not in node:
            if _NUMBER not in node or not word.isdecimal():
                break
            word = _NUMBER
        node = node[word]
        if _VERDICT in node:
            verdict, size = node[_VERDICT], depth
    return verdict, size


def _trees(lists: str) -> tuple[_Node, _Node]:
    """The phrases of languages that are cut into words, and of those that are read by character."""
    phrases: _Node = {}
    strings: _Node = {}
    tree, cut = phrases, _words
    for line in lists.splitlines():
        if line.startswith("["):
            tree, cut = (strings, _characters) if line.strip("[]") in _BY_CHARACTER else (phrases, _words)
        elif not line.startswith("--"):
            entries = line.removeprefix("not:")
            for entry in filter(None, map(str.strip, entries.split(";"))):
                for phrase in _spellings(_fold(entry.replace(_NUMBER, "0"))):
                    node = tree
                    for word in cut(phrase):
                        node = node.setdefault(_NUMBER if word == "0" else word, {})
                    node[_VERDICT] = entries is line
    return phrases, strings


def _spellings(entry: str) -> Iterator[str]:
    """Every choice of `this {week|month}`, with and without its accents: many write none."""
    bare = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", entry)))
    for spelling in {entry.removeprefix("="), (entry if entry.startswith("=") else bare).removeprefix("=")}:
        pieces = re.split(r"\{([^{}]*)\}", spelling)
        yield from map("".join, product(*(p.split("|") if i % 2 else [p] for i, p in enumerate(pieces))))


_PHRASES, _STRINGS = _trees(resources.files("gateway").joinpath("volatile_words.txt").read_text("utf-8"))
