from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cache.retrieval.desk import Desk
from tests.support.retrievers import Shelf

LEAVE = "Parental leave is fourteen weeks.\n\nUnpaid leave needs a form."
PAY = "Pay during parental leave is full."


@pytest.fixture(params=["memory", "sqlite"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    """With the front alone, and with a store behind it."""
    shelf = Shelf()
    shelf.put("leave.md", LEAVE, version="7", title="Leave")
    shelf.put("hr/pay.md", PAY, needs=["hr"])
    desk = Desk(shelf, "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'cache.db'}")
    await desk.start()
    yield desk
    await desk.cache.aclose()
