"""Every test of this folder that asks for a store runs once per kind of store."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cache.stores.base import Store
from tests.contract.stores import STORES, Clock, Kind

Open = Callable[[int], Awaitable[Store]]


@pytest.fixture(params=list(STORES))
def kind(request: pytest.FixtureRequest) -> Kind:
    return STORES[request.param]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def open_store(kind: Kind, clock: Clock, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens a store of `max_bytes`; the next call finds the same files."""
    opened: list[Store] = []

    async def open_one(max_bytes: int) -> Store:
        opened.append(await kind.open(tmp_path, max_bytes, clock))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.aclose()


@pytest.fixture
async def store(open_store: Open) -> Store:
    """A store with room for everything."""
    return await open_store(64 * 1024 * 1024)
