"""What a purge or a listing selects: every criterion given must hold; values are compared whole, never as patterns."""

from dataclasses import dataclass

from cache.entry import Entry


@dataclass(frozen=True, slots=True)
class Match:
    """Criteria joined by AND; None means "any". `older_than` is a wall-clock time: entries made before it match."""

    key: bytes | None = None
    tags: frozenset[str] | None = None  # any of them
    documents: frozenset[str] | None = None  # any of them
    endpoint: str | None = None
    model: str | None = None
    tenant: str | None = None
    user: str | None = None
    older_than: float | None = None

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
        )
