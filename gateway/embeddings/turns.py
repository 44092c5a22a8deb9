"""Work that would hold up the event loop goes to a thread."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

LARGE = 64 * 1024
"""Bytes to do with from which on a thread does it; up to that it is about a millisecond."""

P = ParamSpec("P")
T = TypeVar("T")


async def in_turns(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives, which has so many bytes to do with."""
    return await asyncio.to_thread(work, *args, **kwargs) if size > LARGE else work(*args, **kwargs)
