"""What becomes of a gateway's semantic tier: reloads, restarts, purges, the end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache.match import Match
from tests.contract.stores import Clock
from tests.gateway.desk import happens
from tests.gateway.semantic_desk import CONFIG, OFF, SemanticDesk, config_of, entry_of, request, semantic_desk
from tests.support.tiers import RESET, SAME, Paced


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def desk(clock: Clock) -> AsyncIterator[SemanticDesk]:
    async with semantic_desk(clock) as made:
        yield made


# Reloads


async def test_a_tier_is_kept_as_long_as_its_embedder_is_the_same(desk: SemanticDesk) -> None:
    tier = desk.tier
    await desk.known()
    await desk.semantics.apply(config_of())
    assert desk.semantics.tier is tier
    assert await desk.similar(request(SAME)) is not None
    await desk.semantics.apply(config_of("another"))
    assert desk.tier is not tier
    assert [each.closed for each in desk.embedders] == [True, False]
    assert await desk.similar(request(SAME)) is None
    await desk.semantics.apply(config_of(endpoints=OFF))
    assert desk.semantics.tier is None
    assert desk.embedders[1].closed
    assert desk.semantics.stats() == {"state": "off"}
    await desk.semantics.apply(CONFIG)
    assert len(desk.embedders) == 3


@pytest.mark.parametrize("dimensions", [8, 16])
async def test_what_was_found_before_a_reload_is_not_learnt_with_the_former_vector(
    desk: SemanticDesk, dimensions: int
) -> None:
    """An answer may be on its way to the store while a configuration is put in force."""
    await desk.known()
    ask = request("What is a password?")
    finding = await desk.find(ask)
    assert finding is not None
    assert finding.vector is not None
    await desk.semantics.apply(config_of("another"))
    desk.embedders[1].dimensions = dimensions
    desk.semantics.learn(finding, entry_of(ask))
    assert desk.tier.known.vectors == 0, "it is another embedder's"
    assert list(desk.tier.known.questions) == [ask.key], "it is learnt all the same"


async def test_the_end_while_it_is_asked(desk: SemanticDesk) -> None:
    await desk.known()
    desk.embedders[0].held = asyncio.Event()
    asking = asyncio.create_task(desk.find(request(SAME)))
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(desk.semantics.aclose())
    await asyncio.sleep(0)
    desk.embedders[0].held.set()
    await closing
    finding = await asking
    desk.semantics.learn(finding, entry_of(request(SAME)))
    assert desk.semantics.remembered(request(SAME), 1) is None
    assert not desk.semantics.ill
    await desk.semantics.aclose()


# Care


async def test_what_the_store_has_kept_is_known_once_the_embedder_is_ready(clock: Clock, tmp_path: Path) -> None:
    async with semantic_desk(clock, tmp_path / "cache.db") as desk:
        await desk.known()
        await desk.cache.flush()
    async with semantic_desk(clock, tmp_path / "cache.db") as desk:
        desk.embedders[0].state = "starting"
        await asyncio.sleep(0.15)
        assert len(desk.tier.known.questions) == 0
        desk.embedders[0].state = "ready"
        await happens(lambda: desk.tier.known.vectors == 2)
        assert await desk.similar(request(SAME)) is not None


async def test_after_a_purge_its_questions_are_forgotten(desk: SemanticDesk) -> None:
    await desk.known()
    await happens(lambda: desk.embedders[0].state == "ready")
    await desk.cache.purge(Match(key=request(RESET).key))
    desk.semantics.purged()
    await happens(lambda: len(desk.tier.known.questions) == 1)


async def test_the_stats_say_what_came_of_look_ups(desk: SemanticDesk) -> None:
    await desk.known()
    await desk.similar(request(SAME))
    desk.semantics.judged[False] += 1
    stats = desk.semantics.stats()
    misses = stats.pop("misses")
    assert misses.pop("first_in_context") == sum(misses.values()) == 1
    similarities = stats.pop("similarities")
    assert (sum(similarities["hit"]), sum(similarities["miss"])) == (1, 1)
    assert stats == {
        "state": "ready",
        "detail": Paced.detail,
        "embedder": "all-MiniLM-L6-v2",
        "lookups": 3,
        "hits": 1,
        "hits_by_alias": 0,
        "reported": {"right": 0, "wrong": 1},
        "questions": 2,
        "vectors": 2,
        "bytes": desk.tier.known.size,
    }
    desk.embedders[0].state = "failed"
    assert desk.semantics.ill
