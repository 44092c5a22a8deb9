"""What the writing of a text says, before its words are read: quotes, code, capitals."""

import re
import unicodedata

from cache.semantic.lexicon import ENGLISH, tokens

_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]+"
)
_QUOTED = re.compile(
    r"```(.{1,2000}?)```|`([^`\n]{1,400})`|\"([^\"\n]{1,400})\"|“([^“”\n]{1,400})”|„([^„“”\n]{1,400})[“”]"
    r"|«([^«»\n]{1,400})»|「([^「」\n]{1,400})」|『([^『』\n]{1,400})』|(?<!\w)'([^'\n]{1,400})'(?!\w)",
    re.DOTALL,
)
_CODE = re.compile(r"[_{}\[\]\\@]|\w\(|://|--|::|->")
_APOSTROPHES = str.maketrans("’‘ʼ＇", "''''")
_PUNCTUATION = "\"'`()[]{}.,;:!?*_“”„«»"


def fold(text: str) -> str:
    text = _UNSEEN.sub("", text) if not text.isascii() else text
    return unicodedata.normalize("NFKC", text).translate(_APOSTROPHES)


def quoted_in(text: str) -> frozenset[str]:
    if not any(sign in text for sign in "`\"“„«「『'"):
        return frozenset()
    return frozenset(
        " ".join(next(filter(None, found)).split()).strip(" .,;:!?") for found in _QUOTED.findall(text) if any(found)
    )


def code_in(text: str) -> frozenset[str]:
    if not _CODE.search(text):
        return frozenset()
    return frozenset(word.casefold().strip(".,;:!?\"'`") for word in text.split() if _CODE.search(word))


def capitals_in(text: str) -> set[str]:
    """Words with a capital where grammar does not ask for one, folded; none where most words have one."""
    found, begins, words, light = [], True, 0, ENGLISH.light
    for word in text.split():
        bare = word.strip(_PUNCTUATION)
        if bare:
            low = bare.casefold().removesuffix("'s")
            words += low not in light
            if low not in light and bare[0].isupper() and not (begins and bare[1:].islower()):
                found.append(low)
            begins = low in light and word[-1] == ","  # after "Hi," something begins
        begins = begins or word[-1] in ".?!:"
    return {part for word in found for part in tokens(word)} if 10 * len(found) <= 7 * max(words, 3) else set()
