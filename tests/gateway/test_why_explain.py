"""From what the tiers said, and from what came before, to the one reason."""

import asyncio

import pytest

from gateway.asgi import Outlet
from gateway.ask import Ask
from gateway.decisions import Decision, Tier
from gateway.front import Incoming
from gateway.visit import Visit
from gateway.why.explain import Explainer, explain
from gateway.why.nearest import Found, Known
from gateway.why.sketch import Sketch, sketch
from gateway.why.why import CODES, Why
from tests.gateway.asking import SNAPSHOT, ask

NOW = 1_800_000_000.0
OTHER = sketch(ask("Else?"), b"s")


def missed(*tiers: Tier) -> Decision:
    d = Decision("req_1", NOW, "default", "chat")
    d.outcome, d.key, d.tiers = "miss", b"\x07" * 32, tiers
    return d


def known(*, ends: float = NOW + 60, reason: str | None = None, of: Sketch = OTHER) -> Known:
    return Known(b"scope", of, 1, ends, reason)


MISS = Tier("exact", "miss")
QUESTION = Found(None, known(), ("question",))


@pytest.mark.parametrize("code", ["no_cache", "tier_not_asked", "over_budget"])
def test_a_cache_that_was_not_asked_is_the_reason(code: str) -> None:
    why = explain(missed(Tier("exact", "skipped", code)), QUESTION, NOW)
    assert (why.code, why.differs, why.nearest) == (code, (), None)


def test_an_answer_that_was_there_is_its_own_nearest() -> None:
    for code in ("expired", "older_than_asked", "made_in_future"):
        why = explain(missed(Tier("exact", "miss", code, -90)), QUESTION, NOW)
        assert (why.code, why.differs, why.nearest) == (code, (), b"\x07" * 32)
    assert "90 seconds ago" in explain(missed(Tier("exact", "miss", "expired", -90)), Found(), NOW).text


def test_the_same_request_before() -> None:
    assert explain(missed(MISS), Found(known()), NOW).code == "purged_or_evicted"
    gone = explain(missed(MISS), Found(known(ends=NOW)), NOW)
    assert (gone.code, gone.nearest, gone.amount) == ("expired", None, 0.0)
    cut = explain(missed(MISS), Found(known(reason="too_large")), NOW)
    assert (cut.code, cut.reason) == ("not_stored_before", "too_large")


def test_nothing_before() -> None:
    assert explain(missed(MISS), Found(), NOW).code == "first_request"


def test_a_conversation_that_goes_on() -> None:
    why = explain(missed(MISS), Found(None, known(), ("earlier turn 1", "earlier turn 2", "question"), True), NOW)
    assert (why.code, why.nearest) == ("continued", OTHER.key)


@pytest.mark.parametrize(
    ("tier", "words"),
    [
        (None, "it is off for this endpoint"),
        (Tier("semantic", "skipped", "tools"), "the request has tools"),
        (Tier("semantic", "skipped", "over_budget"), "the endpoint's budget"),
        (Tier("semantic", "miss", "first_in_context"), "it knows no other question"),
        (Tier("semantic", "miss", "nothing_near"), "No question is near."),
        (Tier("semantic", "miss", "similarity", similarity=0.5, source=b"n"), "0.50, which is not near enough"),
        (
            Tier("semantic", "miss", "negation", similarity=0.97, source=b"n"),
            "0.97, and the verifier refused it: ",
        ),
        (Tier("semantic", "miss", "reported_wrong", similarity=0.97, source=b"n"), "reported to be wrong"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value and value.why),
)
def test_another_question_comes_with_the_semantic_tiers_word(tier: Tier | None, words: str) -> None:
    why = explain(missed(MISS, *([] if tier is None else [tier])), QUESTION, NOW)
    assert (why.code, why.differs) == ("question", ("question",))
    assert why.text.startswith("Only what is asked differs from the nearest entry. ")
    assert words in why.text
    assert why.nearest == (OTHER.key if tier is None or tier.source is None else b"n")


def test_where_more_than_the_question_differs_the_semantic_tiers_word_comes_second() -> None:
    said = Tier("semantic", "miss", "number", similarity=0.99, source=b"n")
    why = explain(missed(MISS, said), Found(None, known(), ("parameter seed",)), NOW)
    assert (why.code, why.nearest) == ("parameter", OTHER.key)
    assert why.text.startswith("It differs from the nearest entry in: parameter seed. ")
    assert "similarity 0.99, and the verifier refused it: " in why.text


def test_nor_is_it_told_where_it_has_compared_nothing() -> None:
    why = explain(missed(MISS, Tier("semantic", "skipped", "tools")), Found(None, known(), ("tools",)), NOW)
    assert why.text == "It differs from the nearest entry in: tools. " + CODES["tools"]


# What is remembered


async def _nowhere(message: object) -> None:
    raise AssertionError("nobody is there to send to")


def visit_of(asked: Ask, explainer: Explainer, outcome: str = "miss") -> Visit:
    d = missed(MISS)
    d.outcome = outcome  # type: ignore[assignment]
    visit = Visit(SNAPSHOT, Incoming(asked.raw, None, 0.0), d, Outlet(_nowhere, lambda: None))
    visit.ask, visit.known = asked, explainer.before(asked.key)
    return visit


def told(explainer: Explainer, asked: Ask, **changes: object) -> Why | None:
    visit = visit_of(asked, explainer)
    for name, value in changes.items():
        setattr(visit.decision, name, value)
    asyncio.run(explainer.explain(visit, NOW, large=False))
    return visit.decision.why


def code(explainer: Explainer, asked: Ask, **changes: object) -> str:
    why = told(explainer, asked, **changes)
    assert why is not None
    return why.code


def test_what_was_stored_is_learnt() -> None:
    explainer = Explainer()
    assert code(explainer, ask(), stored=True) == "first_request"
    assert code(explainer, ask()) == "purged_or_evicted"
    assert code(explainer, ask(seed=1)) == "parameter"


def test_a_failure_teaches_nothing() -> None:
    explainer = Explainer()
    assert code(explainer, ask(), error="upstream_error") == "first_request"
    assert code(explainer, ask()) == "first_request"


def test_an_answer_that_no_cache_may_keep_is_not_learnt() -> None:
    explainer = Explainer()
    assert code(explainer, ask(store=True), not_stored="store_requested") == "store_requested"
    assert explainer.before(b"").learnt == 0


def test_others_may_have_an_answer_finished_whose_first_client_left() -> None:
    explainer = Explainer()
    visit = visit_of(ask(), explainer)
    visit.decision.error = "client_disconnected"
    asyncio.run(explainer.explain(visit, NOW, large=False))
    assert code(explainer, ask()) == "not_stored_before"
    visit.decision.stored = True  # by now
    code(explainer, ask("Something?"))
    assert code(explainer, ask(seed=1)) == "parameter"


def test_hits_cost_nothing_and_say_nothing() -> None:
    explainer = Explainer()
    for outcome in ("exact", "semantic", "joined", "stale"):
        visit = visit_of(ask(), explainer, outcome)
        visit.decision.stored = True
        asyncio.run(explainer.explain(visit, NOW, large=False))
        assert visit.decision.why is None
    assert explainer.before(b"").learnt == 0


def test_a_request_that_lives_shorter_is_past_its_life_sooner() -> None:
    explainer = Explainer()
    code(explainer, ask(headers={"x-refrain-ttl": "60s"}), stored=True, at=NOW - 120)
    why = told(explainer, ask())
    assert why is not None
    assert (why.code, why.amount) == ("expired", 60.0)


def test_who_was_on_the_way_when_an_ended_answer_was_made_anew_is_told_of_its_end() -> None:
    explainer = Explainer()
    code(explainer, ask(headers={"x-refrain-ttl": "60s"}), stored=True, at=NOW - 120)
    for visit in [visit_of(ask(), explainer) for _ in range(4)]:
        visit.decision.stored = True
        asyncio.run(explainer.explain(visit, NOW, large=False))
        assert visit.decision.why is not None
        assert visit.decision.why.code == "expired"
    assert code(explainer, ask()) == "purged_or_evicted"
