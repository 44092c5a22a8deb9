"""Which vectors of a request are kept and may be used: all that can be had in a bounded time, the rest is a miss."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from cache.exact import ExactCache
from cache.stores.base import StoreUnavailable
from cache.stores.memory import Slot

GROUP = 32
"""Entries that are asked of the store at once."""
TIME = 0.5
"""Seconds after which what the store has not given counts as missing."""


async def slots(cache: ExactCache, keys: Sequence[bytes], seconds: float | None) -> dict[bytes, Slot]:
    """Those of these keys that are kept, fresh or stale; from memory, and for so many seconds at most (None: any) from
    the store."""
    found: dict[bytes, Slot] = {}
    missing = [key for key in keys if not _take(found, key, cache.front.peek(key))]
    if not missing:
        return found
    with suppress(TimeoutError):
        async with asyncio.timeout(TIME if seconds is None else min(TIME, max(0.0, seconds))):
            if len(missing) > GROUP:
                # Mostly all of many are new, and to ask for each would take one turn of the store's after the other.
                with suppress(StoreUnavailable):
                    known = await cache.known(missing)
                    missing = [key for key in missing if key in known]
            for start in range(0, len(missing), GROUP):
                group = missing[start : start + GROUP]
                for key, slot in zip(group, await asyncio.gather(*map(cache.get, group)), strict=True):
                    _take(found, key, slot)
    return found


def _take(found: dict[bytes, Slot], key: bytes, slot: Slot | None) -> bool:
    if slot is not None:
        found[key] = slot
    return slot is not None
