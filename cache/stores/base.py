"""The contract of a store. tests/contract runs one suite against every implementation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cache.entry import Entry
from cache.match import Match
from cache.question import Question


class StoreError(Exception):
    """A store could not do what was asked. Foreign errors (sqlite3, redis) become this at the store's edge."""


class StoreUnavailable(StoreError):
    """The store did not answer in time, is closed, or its breaker is open. To a request this is a miss."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """`bytes` is what counts against `max_bytes`. Counted since this process started: `evicted` for space, `corrupt`
    values removed, `dropped` puts and notes that could not be written."""

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

    async def note(self, question: Question) -> None:
        """Keep the question beside the entry of its key, in place of an earlier one; ignored where there is no such
        entry. It counts against the store's bound, goes when its entry goes, and stays when a newer answer of the
        same key takes the entry's place. May return before it is durable.

        A store whose entries end with the process keeps none: the index that they are for ends with it, too."""
        ...

    async def questions(self, *, after: bytes, limit: int) -> list[Question]:
        """The questions of entries that may still be kept, in the order of their keys, from the first key greater
        than `after` on (b"" is before all). There are fewer than `limit` only where the last is among them."""
        ...

    async def known(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        """Those of these keys that have an entry that may still be kept, and when that was made (Entry.created); those
        on their way to disk included. Reads no values, and is no use of the entries."""
        ...

    async def stats(self) -> StoreStats: ...

    async def flush(self) -> None:
        """Return when everything put before is durable."""
        ...

    async def aclose(self) -> None: ...
