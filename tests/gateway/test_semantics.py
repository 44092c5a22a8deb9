"""The semantic tier of one gateway: when it is asked, and what may be served."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.semantics import life_of
from tests.contract.stores import Clock
from tests.gateway.semantic_desk import SemanticDesk, entry_of, request, semantic_desk
from tests.support.tiers import AGAIN, RESET, RIVERS, SAME, Paced


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def desk(clock: Clock) -> AsyncIterator[SemanticDesk]:
    async with semantic_desk(clock) as made:
        yield made


# When it is asked


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n": 2}, "several_choices"),
        ({"headers": {"x-refrain-tier": "exact"}}, "tier_not_asked"),
        ({"headers": {"cache-control": "no-cache"}}, "no_cache"),
    ],
)
async def test_what_is_no_question_is_skipped(desk: SemanticDesk, more: Any, why: str) -> None:
    assert await desk.find(request(**more)) is None
    assert desk.said == [("skipped", why)]
    assert desk.tier.counts == {}


@pytest.mark.parametrize(
    "more",
    [{"endpoint": "without"}, {"endpoint": "nothing"}, {"store": True}, {"headers": {"cache-control": "no-store"}}],
)
async def test_where_there_is_no_such_tier_nothing_is_said(desk: SemanticDesk, more: Any) -> None:
    assert not desk.semantics.may_answer(request(**more))
    assert await desk.find(request(**more)) is None
    assert desk.said == []


async def test_a_miss_is_booked_with_its_reason_and_a_hit_is_not_yet(desk: SemanticDesk) -> None:
    assert desk.semantics.may_answer(request())
    await desk.tell(request())
    assert desk.said == [("miss", "first_in_context")]
    await desk.tell(request(RIVERS), "Danube and Wien.")
    [said] = desk.visit.decision.tiers
    assert (said.name, said.result) == ("semantic", "miss")
    assert said.similarity is not None
    assert await desk.similar(request(SAME)) is not None
    assert desk.said == []
    assert "semantic" in desk.visit.decision.phases


async def test_while_the_embedder_starts_it_is_skipped(desk: SemanticDesk) -> None:
    desk.embedders[0].dimensions, desk.embedders[0].state = 0, "starting"  # type: ignore[assignment]
    await desk.tell(request())
    assert desk.said == [("skipped", "embedder_starting")]
    assert desk.semantics.may_answer(request()), "or the question would not be written down"
    desk.embedders[0].dimensions, desk.embedders[0].state = Paced.dimensions, "ready"
    assert await desk.similar(request(SAME)) is not None


async def test_a_defect_is_not_in_the_way(desk: SemanticDesk) -> None:
    await desk.tell(request())
    desk.embedders[0].refused[SAME] = RuntimeError("a defect")
    assert await desk.find(request(SAME)) is None
    assert desk.said == [("skipped", "failed")]


async def test_a_large_request_is_read_as_well(desk: SemanticDesk) -> None:
    before = [{"role": "assistant", "content": "word " * 5000}]

    def large(text: str) -> Any:
        return request(text, messages=[*before, {"role": "user", "content": text}])

    for text in (RESET, RIVERS):
        await desk.tell(large(text))
    assert await desk.similar(large(SAME)) is not None
    assert await desk.similar(request(SAME)) is None


# What may be served


async def test_a_hit_is_booked_with_its_source(desk: SemanticDesk, clock: Clock) -> None:
    slot = await desk.known()
    clock.time += 100
    reuse = await desk.similar(request(SAME))
    assert reuse is not None
    assert reuse.slot is slot
    reuse.book(desk.visit, "alias")
    decision = desk.visit.decision
    assert (decision.outcome, decision.age, decision.status) == ("semantic", 100, 200)
    assert decision.saved == decision.served == slot.entry.usage.total
    [tier] = decision.tiers
    assert (tier.name, tier.result, tier.why) == ("semantic", "hit", "alias")
    assert (tier.source, tier.ttl) == (slot.entry.key, 86_400 - 100)
    assert tier.similarity == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("endpoint", "headers", "age", "served"),
    [
        ("default", {}, 86_399, True),
        ("default", {}, 86_400, False),
        ("default", {"cache-control": "max-age=50"}, 49, True),
        ("default", {"cache-control": "max-age=50"}, 51, False),
        ("default", {"cache-control": "max-stale"}, 86_400, False),
        ("quick", {}, 59, True),
        ("quick", {}, 60, False),
        ("brief", {}, 3_599, True),
        ("brief", {}, 3_600, False),
        ("brief", {"cache-control": "max-stale"}, 3_600, False),
    ],
)
async def test_only_what_is_fresh_is_served_to_others(
    desk: SemanticDesk, clock: Clock, endpoint: str, headers: Any, age: int, served: bool
) -> None:
    await desk.known(endpoint=endpoint)
    clock.time += age
    reuse = await desk.similar(request(SAME, endpoint=endpoint, headers=headers))
    assert (reuse is not None) == served
    if not served:
        assert desk.said == [("miss", "expired")]
    life = life_of(request(endpoint=endpoint))
    assert life is not None
    assert (life.if_error, life.revalidate) == (0.0, 0.0)


async def test_learning_takes_bytes_from_the_answers(desk: SemanticDesk) -> None:
    await desk.known()
    stats = await desk.cache.front.stats()
    size = desk.tier.known.size
    assert 0 < size < stats.bytes
    await desk.semantics.aclose()
    assert (await desk.cache.front.stats()).bytes == stats.bytes - size


async def test_an_answer_without_a_look_up_leaves_its_group(desk: SemanticDesk) -> None:
    """A refresh: it is made beside the requests that the former one serves."""
    ask = request(RESET)
    await desk.known()
    again = request(AGAIN)
    await desk.tell(again)
    key = ask.key
    desk.tier.known.questions.merge(key, again.key)
    assert len(desk.tier.known.questions.group_of(key)) == 2
    entry = entry_of(ask, "Write to the support.")
    await desk.cache.put(entry, since=desk.cache.mark())
    desk.semantics.learn(None, entry)
    assert desk.tier.known.questions.group_of(key) == {key}
