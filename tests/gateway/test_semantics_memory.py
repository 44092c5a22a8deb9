"""What a gateway's semantic tier remembers of its hits, and of those that were reported wrong."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cache.match import Match
from gateway.state import State
from tests.contract.stores import Clock
from tests.gateway.desk import happens
from tests.gateway.semantic_desk import OFF, SemanticDesk, config_of, request, semantic_desk
from tests.support.tiers import AGAIN, RESET, RIVERS, SAME

WHO = request(SAME)
A, B = request(RESET), request(AGAIN)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def desk(clock: Clock) -> AsyncIterator[SemanticDesk]:
    async with semantic_desk(clock) as made:
        yield made


async def answered(desk: SemanticDesk) -> bytes:
    """Two questions of one answer, of which one has served `WHO`; gives the key of that one."""
    await desk.tell(request(RIVERS), "Danube and Wien.")
    found = [(ask, await desk.find(ask)) for ask in (A, B)]  # at one time, so that both are misses
    for ask, finding in found:
        await desk.tell(ask, finding=finding)
    desk.tier.known.questions.merge(A.key, B.key)
    reuse = await desk.similar(WHO)
    assert reuse is not None
    return reuse.slot.entry.key


def other(key: bytes) -> bytes:
    return B.key if key == A.key else A.key


async def never_again(desk: SemanticDesk) -> None:
    assert desk.semantics.remembered(WHO, 1) is None
    assert await desk.similar(WHO) is None
    assert desk.said == [("miss", "reported_wrong")]
    assert await desk.similar(request(f"{SAME}??")) is not None, "somebody else's question"


# Hits


async def test_a_hit_is_remembered(desk: SemanticDesk) -> None:
    assert desk.semantics.remembered(WHO, 1) is None
    served = await answered(desk)
    reuse = desk.semantics.remembered(WHO, 1)
    assert reuse is not None
    assert reuse.slot.entry.key == served
    assert reuse.similarity == pytest.approx(1.0)
    assert reuse.ttl == 86_400


@pytest.mark.parametrize(
    "change", ["generation", "who", "tier", "purge", "soft", "replaced", "age", "max_age", "reload"]
)
async def test_it_is_remembered_as_long_as_all_is_as_it_was(desk: SemanticDesk, clock: Clock, change: str) -> None:
    served = await answered(desk)
    who, generation = WHO, 1
    match change:
        case "generation":
            generation = 2
        case "who":
            who = request(SAME, temperature=0)
        case "tier":
            who = request(SAME, headers={"x-refrain-tier": "exact"})
        case "purge":
            await desk.cache.purge(Match(key=served))
        case "soft":
            await desk.cache.purge(Match(key=served), soft=True)
        case "replaced":
            await desk.tell(A if served == A.key else B, "Write to the support.")
        case "age":
            clock.time += 86_400
        case "max_age":
            clock.time += 10
            who = request(SAME, headers={"cache-control": "max-age=9"})
        case "reload":
            await desk.semantics.apply(config_of(endpoints=OFF))
    assert desk.semantics.remembered(who, generation) is None


# Reported wrong


async def test_what_was_reported_is_not_served_again_by_search_or_memory(desk: SemanticDesk) -> None:
    served = await answered(desk)
    somebody = request(f"{SAME}!!")
    assert await desk.similar(somebody) is not None
    pairs = desk.semantics.report(WHO.key, served)
    assert sorted(pairs) == sorted((WHO.key, ask.key) for ask in (A, B))
    assert desk.semantics.remembered(somebody, 1) is not None, "for others it is what it was"
    await never_again(desk)


async def test_nor_by_another_of_its_group_that_is_remembered(desk: SemanticDesk) -> None:
    """It was served by one, then by the other, and the first time is reported."""
    served = await answered(desk)
    await desk.cache.purge(Match(key=served), soft=True)
    reuse = await desk.similar(WHO)
    assert reuse is not None
    assert reuse.slot.entry.key == other(served)
    desk.semantics.report(WHO.key, served)
    await never_again(desk)


@pytest.mark.parametrize("off", [False, True])
async def test_a_report_holds_after_a_reload(clock: Clock, tmp_path: Path, off: bool) -> None:
    """Also where the tier was off when it came."""
    async with semantic_desk(clock, tmp_path / "cache.db") as desk:
        served = (await desk.known()).entry.key
        assert await desk.similar(WHO) is not None
        await desk.cache.flush()
        if off:
            await desk.semantics.apply(config_of(endpoints=OFF))
        assert desk.semantics.report(WHO.key, served) == [(WHO.key, served)]
        await desk.semantics.apply(config_of("another"))
        await restored(desk)
        await never_again(desk)


@pytest.mark.parametrize("served_is_gone", [False, True])
async def test_a_report_holds_after_a_restart(clock: Clock, tmp_path: Path, served_is_gone: bool) -> None:
    """For each of its group: who was served is not all that said it."""
    state = await State.open(tmp_path / "state.db")
    async with semantic_desk(clock, tmp_path / "cache.db") as desk:
        served = await answered(desk)
        await state.report_wrong(desk.semantics.report(WHO.key, served), at=clock(), by="ops")
        await desk.cache.purge(Match(key=served if served_is_gone else other(served)))
        await desk.cache.flush()
    await state.aclose()
    state = await State.open(tmp_path / "state.db")
    async with semantic_desk(clock, tmp_path / "cache.db", None) as desk:
        desk.semantics.recall(await state.wrong_pairs())
        await desk.semantics.apply(config_of())
        await restored(desk)
        await never_again(desk)
    await state.aclose()


async def restored(desk: SemanticDesk) -> None:
    await happens(lambda: len(desk.tier.known.questions) == 2)
