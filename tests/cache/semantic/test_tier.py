"""The semantic tier: what is embedded when, and what is served to whom."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.match import Match
from cache.semantic.embedder import EmbedderError, Reason
from cache.semantic.vectors import BARE_AT_ONCE, DEADLINE
from tests.contract.stores import START, Clock, key_of
from tests.support.embedders import Placed
from tests.support.tiers import AGAIN, RESET, RIVERS, SAME, Paced, Tiered, memory_cache, tiered


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def t(clock: Clock) -> AsyncIterator[Tiered]:
    async with tiered(clock) as made:
        yield made


# What is embedded when


async def test_the_first_question_of_a_context_embeds_nothing_the_second_both_the_third_itself(t: Tiered) -> None:
    first = await t.tell("a", RESET)
    assert (first.reason, first.slot, first.similarity, first.vector) == ("first_in_context", None, None, None)
    assert t.embedded == []
    assert t.tier.known.vectors == 0
    second = await t.tell("b", RIVERS, "Danube and Wien.")
    assert second.slot is None
    assert second.vector is not None
    assert sorted(t.embedded) == sorted([RESET, RIVERS])
    assert t.tier.known.vectors == 2
    assert t.served(await t.ask("d", SAME)) == "Click on it."
    assert t.embedded == [SAME]
    assert (await t.ask("e", SAME, context="d")).reason == "first_in_context"
    assert t.embedded == []
    assert t.tier.counts == {"first_in_context": 2, second.reason: 1, "": 1}


async def test_a_hit_says_how_near_it_is_and_whose_answer(t: Tiered) -> None:
    await t.tell("a")
    await t.tell("b", RIVERS, "Danube and Wien.")
    found = await t.ask("c", SAME)
    assert found.slot is not None
    assert found.slot.entry.key == key_of("a")
    assert found.similarity == pytest.approx(1.0)
    assert found.reason == ""


async def test_fifty_at_once_embed_each_text_once(t: Tiered) -> None:
    """Also that of the one question before them."""
    await t.tell("a")
    texts = [f"Question {'and ' * n}" for n in range(50)]
    found = await asyncio.gather(*(t.ask(f"q{n}", text) for n, text in enumerate(texts)))
    assert all(each.slot is None and each.vector is not None for each in found)
    assert sorted(t.embedded) == sorted([RESET, *texts])


async def test_no_more_of_those_before_are_embedded_at_once_than_that(t: Tiered) -> None:
    assert isinstance(t.embedder, Paced)
    t.embedder.fails = "unavailable"
    for n in range(BARE_AT_ONCE + 3):
        await t.tell(f"a{n}", f"Question {'and ' * n}")
    t.embedder.fails = None
    await t.ask("b")
    assert len(t.embedded) == BARE_AT_ONCE + 1
    await t.ask("b")
    assert len(t.embedded) == 3 + 1
    assert set(t.embedder.deadlines) == {DEADLINE}


# An embedder that fails

REASONS: list[Reason] = ["starting", "deadline", "failed", "too_long", "bad_vector", "busy", "unavailable"]


@pytest.mark.parametrize("reason", REASONS)
async def test_a_failure_is_a_miss_and_the_question_is_embedded_later(t: Tiered, reason: Reason) -> None:
    await t.tell("a", RIVERS, "Danube and Wien.")
    t.embedder.fails = reason
    finding = await t.tell("b", RESET)
    said = reason if reason == "too_long" else f"embedder_{reason}"
    assert (finding.reason, finding.slot, finding.vector) == (said, None, None)
    assert t.tier.counts[said] == 1
    t.embedder.fails = None
    found = await t.ask("c", SAME)
    if reason == "too_long":
        assert found.slot is None
        assert len(t.tier.known.questions) == 0, "neither of them can ever be compared"
    else:
        assert t.served(found) == "Click on it."
        assert sorted(t.embedded) == sorted([RIVERS, RESET, SAME])


@pytest.mark.parametrize("state", ["starting", "failed"])
async def test_before_it_has_been_ready_questions_are_written_down(t: Tiered, state: str) -> None:
    t.embedder.dimensions, t.embedder.state = 0, state  # type: ignore[assignment]
    assert (await t.tell("a")).reason == f"embedder_{state}"
    assert t.embedded == []
    t.embedder.dimensions, t.embedder.state = Placed.dimensions, "ready"
    assert t.served(await t.ask("b", SAME)) == "Click on it."


async def test_one_text_that_the_model_does_not_take_spoils_no_other(t: Tiered) -> None:
    assert isinstance(t.embedder, Paced)
    await t.tell("a", RIVERS, "Danube and Wien.")
    t.embedder.refused[RIVERS] = EmbedderError("too_long")
    assert (await t.tell("b", RESET)).vector is not None
    assert list(t.tier.known.questions) == [key_of("b")]
    assert t.served(await t.ask("c", SAME)) == "Click on it."


async def test_a_question_that_is_too_long_for_the_model_is_not_learnt(t: Tiered) -> None:
    assert isinstance(t.embedder, Paced)
    await t.tell("z", RIVERS, "Danube and Wien.")
    t.embedder.refused[RESET] = EmbedderError("too_long")
    assert (await t.tell("a")).reason == "too_long"
    assert list(t.tier.known.questions) == [key_of("z")]


async def test_a_defect_of_the_embedder_is_its_own_and_leaves_nothing_half_done(t: Tiered) -> None:
    assert isinstance(t.embedder, Paced)
    await t.tell("a")
    t.embedder.refused[SAME] = RuntimeError("a defect")
    with pytest.raises(RuntimeError):
        await t.ask("b", SAME)
    assert t.served(await t.ask("b", AGAIN)) == "Click on it."


# Who is served


@pytest.mark.parametrize("change", ["purged", "expired", "stale", "another_scope", "alive"])
async def test_an_answer_is_fetched_and_looked_at_before_it_is_served(t: Tiered, clock: Clock, change: str) -> None:
    await t.tell("a", expires=START + 10, keep_until=START + 20)
    await t.tell("b", RIVERS, "Danube and Wien.")
    reason = {"purged": "gone", "expired": "gone", "stale": "expired", "another_scope": "gone", "alive": ""}[change]
    match change:
        case "purged":
            await t.cache.purge(Match(key=key_of("a")))
        case "another_scope":
            await t.put("a", "Click on it.", scope=key_of("another"))
        case _:
            clock.time += {"expired": 20, "stale": 10, "alive": 9.9}[change]
    found = await t.ask("c", SAME)
    assert found.reason == reason
    assert (found.slot is None) == (change != "alive")
    assert t.tier.known.questions.get(key_of("a")) is not None, "the store may only be down"
    lost = change in ("purged", "expired")
    assert await t.tier.known.sweep() == lost
    assert (t.tier.known.questions.get(key_of("a")) is None) == lost
    assert t.tier.known.vectors == (1 if lost else 2)
    assert ((await t.ask("c", SAME)).slot is None) == (change != "alive")


async def test_the_scope_that_asks_is_the_one_that_counts(t: Tiered) -> None:
    """The context holds it as well; this is the second lock on the door."""
    await t.tell("a")
    await t.tell("b", RIVERS, "Danube and Wien.")
    assert (await t.ask("c", SAME, scope=key_of("another"))).slot is None


@pytest.mark.parametrize(("answer", "served"), [("Click on it.", "Click on it."), ("Write to the support.", None)])
async def test_only_one_of_the_same_answer_stands_in(t: Tiered, clock: Clock, answer: str, served: str | None) -> None:
    """Once the nearest has been chosen, what it answers is the right answer, whether it can be served or not."""
    await t.tell("a", RESET, "Click on it.", expires=START + 10)
    await t.tell("z", RIVERS, "Danube and Wien.")
    clock.time += 11
    assert (await t.tell("b", SAME, answer)).reason == "expired"
    found = await t.ask("c", AGAIN, threshold=0.5)
    assert t.served(found) == served
    assert found.reason == ("" if served else "expired")


async def test_near_ones_with_other_answers_speak_against_each_other(t: Tiered) -> None:
    await t.tell("z", RIVERS, "Danube and Wien.")
    for name, answer in (("a", "Click on it."), ("b", "Write to the support.")):
        t.tier.learn(await t.ask(name, threshold=2.0), await t.put(name, answer))
    await t.tier.compared()
    assert (await t.ask("c", SAME, threshold=0.95)).reason == "margin"


async def test_strict_and_threshold_reach_the_verifier(t: Tiered) -> None:
    await t.tell("a", "How do I reset my password?")
    t.embedder.place = lambda _: "everything is near"
    asked = "How do I change my password?"
    assert (await t.ask("b", asked, threshold=0.5)).slot is not None
    assert (await t.ask("b", asked, threshold=0.5, strict=True)).slot is None
    assert (await t.ask("b", SAME, threshold=1.5)).slot is None


# Contexts

WORDS = st.sampled_from(["c", "d", "e"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, st.text(min_size=1, max_size=8)), min_size=1, max_size=12))
def test_contexts_never_meet(asked: list[tuple[str, str]]) -> None:
    """All texts lie in one place, and everything near is served."""

    async def run() -> None:
        clock = Clock()
        t = Tiered(memory_cache(clock), clock, Placed(lambda _: "here"))
        try:
            for n, (context, text) in enumerate(asked):
                found = await t.ask(f"{n}", text, context=context, threshold=-9.0)
                assert t.served(found) in (None, context)
                assert (found.reason == "first_in_context") == (context not in [c for c, _ in asked[:n]])
                t.tier.learn(found, await t.put(f"{n}", context))
                await t.tier.compared()
        finally:
            await t.tier.aclose()

    asyncio.run(run())


async def test_what_is_over_is_over(t: Tiered) -> None:
    """The end, while texts are embedded, answers compared, and others asked."""
    assert isinstance(t.embedder, Paced)
    await t.tell("a")
    await t.tell("b", RIVERS, "Danube and Wien.")
    t.embedder.held = asyncio.Event()
    asking = [asyncio.create_task(t.ask(f"q{n}", SAME)) for n in range(10)]
    await asyncio.sleep(0)
    for n in range(10):
        t.tier.learn(await t.ask(f"n{n}", context=f"{n}"), await t.put(f"n{n}", "Click on it. " * 2000))
    closing = asyncio.create_task(t.tier.aclose())
    await asyncio.sleep(0)
    t.embedder.held.set()
    async with asyncio.timeout(5):
        await closing
        found = await asyncio.gather(*asking)
    assert {t.served(each) for each in found} <= {None, "Click on it."}
    assert t.embedder.closed
