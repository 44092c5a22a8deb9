"""What a purge or a listing selects: every criterion given must hold; values are compared whole, never as patterns.
(Apart from `text`, which is for people who look for something.)"""

from dataclasses import dataclass

from cache.entry import Entry


@dataclass(frozen=True, slots=True)
class Match:
    """Criteria joined by AND; None means "any". `older_than` is a wall-clock time: entries made before it match. `text`
    is a part of the model, user, tenant, a tag or a document, or the beginning of the key in hexadecimal digits; the
    case of ASCII letters does not matter."""

    key: bytes | None = None
    tags: frozenset[str] | None = None  # any of them
    documents: frozenset[str] | None = None  # any of them
    endpoint: str | None = None
    model: str | None = None
    tenant: str | None = None
    user: str | None = None
    older_than: float | None = None
    text: str | None = None

    def accepts(self, entry: Entry) -> bool:
        return (
            (self.key is None or entry.key == self.key)
            and (self.tags is None or not self.tags.isdisjoint(entry.tags))
            and (self.documents is None or not self.documents.isdisjoint(entry.documents))
            and (self.endpoint is None or entry.endpoint == self.endpoint)
            and (self.model is None or entry.model == self.model)
            and (self.tenant is None or entry.tenant == self.tenant)
            and (self.user is None or entry.user == self.user)
            and (self.older_than is None or entry.created < self.older_than)
            and (self.text is None or _has(entry, self.text.encode().lower()))
        )


def _has(entry: Entry, text: bytes) -> bool:
    # Of bytes lower() takes ASCII letters only, as SQLite's does.
    words = (entry.model, entry.user, entry.tenant, *entry.tags, *entry.documents)
    return any(text in word.encode().lower() for word in words) or entry.key.hex().encode().startswith(text)
