"""A store that is slow or dead must cost a miss, never a request: a deadline for every call, and a breaker.

After `failures` failed calls in a row the breaker is open and calls fail at once. When `retry_after` seconds have
passed one call is let through as a probe: its success closes the breaker, its failure opens it for as long again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from cache.stores.base import Store, StoreError, StoreStats, StoreUnavailable

SLOW_DEADLINE = 10.0
"""Seconds for what no request waits for: purge, listing, looking through questions or keys, flush, close."""

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class GuardedStore:
    """`store`, with `deadline` seconds for get, put, note and stats; `mono` is a monotonic clock in seconds.

    Whatever fails in there comes out as StoreUnavailable.
    """

    def __init__(
        self,
        store: Store,
        *,
        deadline: float = 0.25,
        failures: int = 5,
        retry_after: float = 5.0,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._deadline = deadline
        self._breaker = _Breaker(failures, retry_after, mono)

    @property
    def healthy(self) -> bool:
        """Whether the breaker is closed."""
        return self._breaker.closed

    async def get(self, key: bytes) -> Entry | None:
        return await self._guarded(self._deadline, self._store.get, key)

    async def put(self, entry: Entry) -> None:
        await self._guarded(self._deadline, self._store.put, entry)

    async def purge(self, match: Match, *, soft: bool = False, dry_run: bool = False) -> int:
        return await self._guarded(SLOW_DEADLINE, self._store.purge, match, soft=soft, dry_run=dry_run)

    async def entries(self, match: Match, *, limit: int) -> list[Entry]:
        return await self._guarded(SLOW_DEADLINE, self._store.entries, match, limit=limit)

    async def note(self, question: Question) -> None:
        await self._guarded(self._deadline, self._store.note, question)

    async def questions(self, *, after: bytes, limit: int) -> list[Question]:
        return await self._guarded(SLOW_DEADLINE, self._store.questions, after=after, limit=limit)

    async def known(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        return await self._guarded(SLOW_DEADLINE, self._store.known, keys)

    async def stats(self) -> StoreStats:
        return await self._guarded(self._deadline, self._store.stats)

    async def flush(self) -> None:
        await self._guarded(SLOW_DEADLINE, self._store.flush)

    async def aclose(self) -> None:
        """Close the store, whatever the breaker thinks of it."""
        await _timed(SLOW_DEADLINE, self._store.aclose)

    async def _guarded(
        self, deadline: float, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        probe = self._breaker.enter()
        try:
            result = await _timed(deadline, method, *args, **kwargs)
        except StoreUnavailable:
            self._breaker.failed()
            raise
        else:
            self._breaker.succeeded()
            return result
        finally:
            if probe:  # also when the caller was cancelled: the next one probes
                self._breaker.probe_ended()


class _Breaker:
    """Counts failures in a row, and decides who may call."""

    def __init__(self, failures: int, retry_after: float, mono: Callable[[], float]) -> None:
        self._limit = failures
        self._retry_after = retry_after
        self._mono = mono
        self._failures = 0
        self._retry_at = 0.0
        self._probing = False

    @property
    def closed(self) -> bool:
        return self._failures < self._limit

    def enter(self) -> bool:
        """Whether this call is the probe. StoreUnavailable when it may not be made at all."""
        if self.closed:
            return False
        if self._probing or self._mono() < self._retry_at:
            raise StoreUnavailable("the store failed repeatedly and is left alone for a while")
        self._probing = True
        return True

    def failed(self) -> None:
        self._failures += 1
        if not self.closed:
            self._retry_at = self._mono() + self._retry_after

    def succeeded(self) -> None:
        self._failures = 0

    def probe_ended(self) -> None:
        self._probing = False


async def _timed(deadline: float, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """The call's result. Every way to fail but cancellation is StoreUnavailable."""
    try:
        async with asyncio.timeout(deadline):
            return await method(*args, **kwargs)
    except StoreUnavailable:
        raise
    except TimeoutError as error:
        raise StoreUnavailable(f"no answer within {deadline} s") from error
    except Exception as error:
        if not isinstance(error, StoreError):
            # A defect in the store; the request goes on without it, but nobody should miss this.
            _log.exception("unforeseen error in %s", method.__qualname__)
        raise StoreUnavailable(str(error)) from error
