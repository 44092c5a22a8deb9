"""Stores: where answers are kept beyond one process's memory."""

import time
from collections.abc import Callable
from pathlib import Path

from cache.stores.base import Store, StoreError

SQLITE = "sqlite:///"
MEMORY = "memory://"


async def open_store(url: str, *, max_bytes: int, max_entry: int, now: Callable[[], float] = time.time) -> Store | None:
    """The store that `url` names, behind its deadline and breaker; None for memory:// (the front is all there is).

    Raises StoreError when it cannot be opened at all."""
    if url == MEMORY:
        return None
    if url.startswith(SQLITE):
        # Late, so that a gateway in memory loads no database.
        from cache.stores.guard import GuardedStore
        from cache.stores.sqlite import SQLiteStore

        path = Path(url.removeprefix(SQLITE))
        return GuardedStore(await SQLiteStore.open(path, max_bytes=max_bytes, max_body=max_entry, now=now))
    raise StoreError(f"there is no store of the kind {url.partition(':')[0]!r}")
