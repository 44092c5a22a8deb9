"""Documents, and the rules for what is made from them, in the words of docs/retrieval.md.

Every document carries a canary (its name and version), and every answer says the canaries of the prompt that it was
made from. So it is known of each answer which documents are in it; and of each document it is known here in which
states it may have been found while a request was under way. There is more than one only while a change is coming into
force, and for five minutes where nobody has told of it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from tests.scopes.log import Asked
from tests.scopes.model import Leak

CANARY = re.compile(rb"canary-(\w+)-v(\d+)-")
MARK = "mark"
"""A document without a canary."""
UNNOTICED = 300.0
"""Seconds for which a service's results are used again."""


@dataclass(frozen=True)
class Content:
    """A document as it is found: whatever is about its topic finds it, for those who have all that it needs."""

    version: int
    topic: str
    needs: frozenset[str]

    def text(self, document: str) -> str:
        return f"{self.topic} canary-{document}-v{self.version}-"


@dataclass(eq=False)
class Spell:
    """`content` (None: it is not found) from the tick `since` to the tick `over`, or `until` then by the clock."""

    content: Content | None
    since: int
    over: float = inf
    until: float = inf

    def overlaps(self, asked: Asked) -> bool:
        return self.since <= asked.ended and asked.began < self.over and asked.at <= self.until


@dataclass
class Documents:
    """What has become of them all, by name; the last spell of each is what is in force, or will be."""

    spells: dict[str, list[Spell]] = field(default_factory=dict)

    def become(self, document: str, content: Content | None, tick: int, *, until: float = inf) -> None:
        """From `tick` on it may be found so; what it was may still be found, `until` then at most."""
        known = self.spells.setdefault(document, [Spell(None, 0)])
        if known[-1].content != content:
            for spell in known:
                spell.until = min(spell.until, until)
            known.append(Spell(content, tick))

    def in_force(self, document: str, tick: int, *, but: int = 1) -> None:
        """Of all but the last spells no trace is left."""
        for spell in self.spells.get(document, [])[:-but]:
            spell.over = min(spell.over, tick)

    def changing(self, asked: Asked) -> bool:
        """Was any document changing while this request was under way?"""
        return any(
            asked.began <= tick <= asked.ended
            for spells in self.spells.values()
            for spell in spells
            for tick in (spell.since, spell.over)
        )

    def versions(self, document: str, asked: Asked, topic: str | None) -> set[int | None]:
        """Those that may be in the answer; None: it need not be. `topic` None: whatever it is about."""
        assert asked.person is not None
        return {
            content.version if (content := spell.content) is not None and _finds(content, asked, topic) else None
            for spell in self.spells[document]
            if spell.overlaps(asked)
        }

    def withheld(self, asked: Asked, topic: str | None) -> bool:
        """Is there a document that would be found if the asker were allowed to see it?"""
        contents = [spells[-1].content for spells in self.spells.values()]
        return any(c is not None and topic in (None, c.topic) and not _allowed(c, asked) for c in contents)


def _finds(content: Content, asked: Asked, topic: str | None) -> bool:
    return topic in (None, content.topic) and _allowed(content, asked)


def _allowed(content: Content, asked: Asked) -> bool:
    assert asked.person is not None
    return content.needs <= asked.person.permissions


def canaries(content: bytes) -> set[tuple[str, int]]:
    return {(name.decode(), int(version)) for name, version in CANARY.findall(content)}


def judge_documents(
    documents: Documents, asked: Asked, found: Collection[tuple[str, int]], among: Collection[str], topic: str | None
) -> None:
    """Raises Leak where other documents are in the answer than the asker's. `among` are those of the retriever."""
    for name, version in found:
        if name not in among:
            raise Leak("another retriever", f"{name} v{version}")
    for name in among:
        versions: set[int | None] = {version for known, version in found if known == name}
        versions = versions or {None}
        allowed = documents.versions(name, asked, topic)
        if len(versions) > 1:
            raise Leak("two versions", f"of {name}: {sorted(map(str, versions))}")
        if not versions <= allowed:
            raise Leak(_rule(documents.spells[name], versions, asked), f"{name}: {versions}, not of {allowed}")


def _rule(spells: list[Spell], versions: set[int | None], asked: Asked) -> str:
    """What is wrong with a version that is not among those allowed."""
    if versions == {None}:
        return "document left out"
    [now] = [spell.content for spell in spells][-1:]
    current = now is not None and {now.version} == versions
    return "not allowed to see it" if current and now is not None and not _allowed(now, asked) else "outdated document"


class Labels:
    """Names of versions, as answers have them. One version has one name, and no two have the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}

    def judge(self, header: str, found: Collection[tuple[str, int]], retriever: str) -> None:
        """Raises Leak where the header does not name just the documents that are in the answer."""
        named = dict(_named(header, retriever))
        if named.keys() != {name for name, _ in found}:
            raise Leak("x-refrain-documents", f"{header!r} of {sorted(found)}")
        for name, version in found:
            label = named[name]
            expected = f"{retriever}/{name}@{version}" if retriever == "kb" else label
            if self._known.setdefault((name, version), label) != label or label != expected:
                raise Leak("x-refrain-documents", f"{label} for {name} v{version}")
        if len(set(self._known.values())) < len(self._known):
            raise Leak("x-refrain-documents", f"{header!r}: a name of another version")


def _named(header: str, retriever: str) -> Iterator[tuple[str, str]]:
    for label in filter(None, header.split(", ")):
        where, _, name = label.partition("/")
        if where != retriever:
            raise Leak("x-refrain-documents", f"{label}, asked of {retriever}")
        if (id := name.partition("@")[0].removesuffix(".md")) != MARK:
            yield id, label


def visible(actual: Mapping[str, Content], permissions: frozenset[str]) -> set[tuple[str, int]]:
    """All that somebody with these permissions can find."""
    return {(name, content.version) for name, content in actual.items() if content.needs <= permissions}
