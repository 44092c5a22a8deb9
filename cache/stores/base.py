"""The contract of a store. tests/contract runs one suite against every implementation."""

from dataclasses import dataclass
from typing import Protocol

from cache.entry import Entry
from cache.match import Match


class StoreError(Exception):
    """A store could not do what was asked. Foreign errors (sqlite3, redis) become this at the store's edge."""


class StoreUnavailable(StoreError):
    """The store did not answer in time, is closed, or its breaker is open. To a request this is a miss."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """`bytes` is what counts against `max_bytes`. Counted since this process started: `evicted` for space, `corrupt`
    values removed, `dropped` puts that could not be written."""

    entries: int
    bytes: int
    max_bytes: int
    evicted: int = 0
    corrupt: int = 0
    dropped: int = 0
    healthy: bool = True


class Store(Protocol):
    """Answers by key, bounded in bytes; the least recently used go first.

    An entry is returned only when its stored key equals the key asked for and its `keep_until` lies ahead; any
    value that cannot be read is a miss and is removed. Every method may raise StoreUnavailable.
    """

    async def get(self, key: bytes) -> Entry | None: ...

    async def put(self, entry: Entry) -> None:
        """Keep the entry. May return before it is durable; `flush` waits for that. Entries larger than the
        store's whole bound are ignored."""
        ...

    async def purge(self, match: Match, *, soft: bool = False, dry_run: bool = False) -> int:
        """Remove (or, with `dry_run`, only count) all matching entries, those still on their way to disk
        included. When it returns no later `get` finds them. With `soft` those that are fresh become stale instead
        (`Entry.stale_from`): no later `get` finds them fresh."""
        ...

    async def entries(self, match: Match, *, limit: int) -> list[Entry]:
        """Up to `limit` matching entries, the newest first."""
        ...

    async def stats(self) -> StoreStats: ...

    async def flush(self) -> None:
        """Return when everything put before is durable."""
        ...

    async def aclose(self) -> None: ...
