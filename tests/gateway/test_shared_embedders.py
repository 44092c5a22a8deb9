"""One embedder for all parts of a gateway: made once, started by the first of them, closed by the last."""

import asyncio
from typing import Any

import numpy as np
import pytest

from cache.semantic.embedder import EmbedderError
from gateway.config import Embedder as EmbedderConfig
from gateway.embedders import SharedEmbedders
from tests.support.embedders import Placed

ONE = EmbedderConfig(model="one")
OTHERS: dict[str, dict[str, Any]] = {
    "model": {"model": "two"},
    "server": {"model": "one", "base_url": "http://127.0.0.1:9/v1"},
    "key": {"model": "one", "base_url": "http://127.0.0.1:9/v1", "api_key": "sk-1"},
    "other_key": {"model": "one", "base_url": "http://127.0.0.1:9/v1", "api_key": "sk-2"},
}


class Counted(Placed):
    def __init__(self, config: EmbedderConfig) -> None:
        super().__init__(lambda text: text, identity=config.model)
        self.config = config
        self.state = "starting"
        self.starts = self.closes = 0
        self.closing: asyncio.Event | None = None

    async def start(self) -> None:
        self.starts += 1
        self.state = "ready"

    async def aclose(self) -> None:
        self.closes += 1
        if self.closing is not None:
            await self.closing.wait()


class Workshop:
    def __init__(self) -> None:
        self.made: list[Counted] = []
        self.shared = SharedEmbedders(self._make)

    def _make(self, config: EmbedderConfig) -> Counted:
        self.made.append(Counted(config))
        return self.made[-1]


@pytest.fixture
def shop() -> Workshop:
    return Workshop()


async def test_all_that_want_the_same_have_one(shop: Workshop) -> None:
    leases = [shop.shared(EmbedderConfig(model="one", hourly_cost=cost)) for cost in (None, 0.1, 0.2)]
    assert len(shop.made) == 1
    assert shop.made[0].starts == 0, "it is made, and not started"
    for lease in leases:
        await lease.start()
    assert shop.made[0].starts == 1
    for lease in leases:
        assert (lease.state, lease.identity, lease.dimensions, lease.detail) == ("ready", "one", 8, "")
        assert np.array_equal(await lease.embed(["a"], deadline=1), await leases[0].embed(["a"], deadline=1))


def test_other_settings_are_another_embedder(shop: Workshop) -> None:
    shop.shared(ONE)
    for number, settings in enumerate(OTHERS.values(), 2):
        shop.shared(EmbedderConfig(**settings))
        assert len(shop.made) == number, settings


async def test_the_last_to_leave_closes_it(shop: Workshop) -> None:
    one, two = shop.shared(ONE), shop.shared(ONE)
    await one.start()
    await one.aclose()
    await one.aclose()
    assert shop.made[0].closes == 0
    assert (await two.embed(["a"], deadline=1)).shape == (1, 8), "who stays is not disturbed"
    await two.aclose()
    await two.aclose()
    assert shop.made[0].closes == 1


async def test_after_the_last_has_left_a_new_one_is_made(shop: Workshop) -> None:
    first = shop.shared(ONE)
    await first.start()
    await first.aclose()
    again = shop.shared(ONE)
    await again.start()
    assert [e.starts for e in shop.made] == [1, 1]
    assert again.state == "ready"
    await again.aclose()
    assert [e.closes for e in shop.made] == [1, 1]


async def test_who_comes_while_it_is_being_closed_has_a_new_one(shop: Workshop) -> None:
    """A reload closes the old parts while it begins the new ones."""
    first = shop.shared(ONE)
    shop.made[0].closing = asyncio.Event()
    closing = asyncio.create_task(first.aclose())
    await asyncio.sleep(0)
    shop.shared(ONE)
    assert len(shop.made) == 2
    shop.made[0].closing.set()
    await closing
    assert [e.closes for e in shop.made] == [1, 0]


async def test_one_that_nobody_has_started_is_closed_all_the_same(shop: Workshop) -> None:
    await shop.shared(ONE).aclose()
    assert (shop.made[0].starts, shop.made[0].closes) == (0, 1)


async def test_its_errors_reach_whoever_asked(shop: Workshop) -> None:
    lease = shop.shared(ONE)
    shop.made[0].fails = "busy"
    with pytest.raises(EmbedderError) as caught:
        await lease.embed(["a"], deadline=1)
    assert caught.value.reason == "busy"
