"""What is counted beside the ledger, decision by decision."""

from typing import Any

import pytest

from gateway.decisions import Decision, Tier
from gateway.ledger.ledger import MAX_MODELS, OTHER
from gateway.metrics.observed import MAX_CODES, Observed
from gateway.recorder import Recorder


def decision(*tiers: Tier, **fields: Any) -> Decision:
    d = Decision("req_1", 0.0, "default", "chat")
    d.tiers = tiers
    for name, value in fields.items():
        setattr(d, name, value)
    return d


def test_look_ups_by_tier_and_result_with_the_time_that_they_took() -> None:
    seen = Observed()
    phases = {"exact": 0.3, "semantic": 4.0, "upstream": 900.0}
    for _ in range(2):
        seen.request(decision(Tier("exact", "miss"), Tier("semantic", "miss", "no_neighbour"), phases=phases))
    seen.request(decision(Tier("exact", "miss"), Tier("semantic", "hit", similarity=0.97), phases=phases))
    assert seen.lookups == {("exact", "miss"): 3, ("semantic", "miss"): 2, ("semantic", "hit"): 1}
    assert {key: sum(times.counts) for key, times in seen.tiers.items()} == dict(seen.lookups)
    assert seen.tiers["semantic", "miss"].total == pytest.approx(0.008)


def test_a_tier_that_was_passed_over_took_no_time() -> None:
    seen = Observed()
    seen.request(decision(Tier("exact", "skipped", "no_cache"), phases={"exact": 1.0}))
    seen.request(decision(Tier("semantic", "hit", "alias"), phases={}))  # found without a search
    assert seen.lookups == {("exact", "skipped"): 1, ("semantic", "hit"): 1}
    assert seen.tiers == {}


def test_hits_of_the_exact_tier_are_the_ledgers_to_count() -> None:
    recorder = Recorder(10)
    recorder.finish(decision(Tier("exact", "hit"), outcome="exact", phases={"exact": 0.1}), 0.0)
    recorder.finish(decision(Tier("exact", "hit", "stale_if_error"), outcome="stale", phases={"exact": 0.1}), 0.0)
    assert recorder.observed.lookups == {}
    assert recorder.observed.tiers == {}


def test_calls_by_backend_and_model() -> None:
    seen = Observed()
    seen.call("a", "m", 200.0, first_ms=None, output=20)
    seen.call("a", "m", 300.0, first_ms=None, output=20)
    seen.call("b", "m", 100.0, first_ms=None, output=20)
    assert {key: (sum(t.counts), t.total) for key, t in seen.calls.items()} == {
        ("a", "m"): (2, 0.5),
        ("b", "m"): (1, 0.1),
    }
    assert seen.tokens == {}  # nobody saw the tokens come


def test_the_time_of_a_token_is_that_of_those_after_the_first() -> None:
    seen = Observed()
    seen.call("a", "m", 500.0, first_ms=100.0, output=41)
    assert (sum(seen.tokens[("a",)].counts), seen.tokens[("a",)].total) == (1, pytest.approx(0.01))
    for output in (0, 1):
        seen.call("a", "m", 500.0, first_ms=100.0, output=output)
    assert sum(seen.tokens[("a",)].counts) == 1


def test_a_client_that_makes_up_models_does_not_grow_the_metrics() -> None:
    """There are backends that answer for every name."""
    seen = Observed()
    for number in range(MAX_MODELS + 50):
        seen.call("a", f"m{number}", 1.0, first_ms=None, output=1)
    seen.call("a", "m0", 1.0, first_ms=None, output=1)
    assert len(seen.calls) == MAX_MODELS + 1
    assert sum(seen.calls["a", OTHER].counts) == 50
    assert sum(seen.calls["a", "m0"].counts) == 2


def test_nor_does_it_take_the_names_of_models_that_others_speak_of() -> None:
    seen = Observed(lambda model: model == "honest")
    for number in range(MAX_MODELS + 50):
        seen.call("a", f"m{number}", 1.0, first_ms=None, output=1)
    seen.call("a", "honest", 1.0, first_ms=None, output=1)
    assert sum(seen.calls["a", "honest"].counts) == 1


def test_an_upstream_that_makes_up_codes_does_not_either() -> None:
    seen = Observed()
    for number in range(MAX_CODES + 10):
        seen.failed("a", f"code {number}")
    seen.failed("a", "code 0")
    assert len(seen.failures) == MAX_CODES + 1
    assert (seen.failures["a", OTHER], seen.failures["a", "code 0"]) == (10, 2)


def test_a_copy_stays_as_it_is() -> None:
    seen = Observed()
    seen.request(decision(Tier("exact", "miss"), phases={"exact": 0.3}))
    copy = seen.copy()
    seen.request(decision(Tier("semantic", "miss"), phases={"semantic": 3.0}))
    seen.call("a", "m", 1.0, first_ms=0.5, output=9)
    seen.failed("a", "x")
    assert copy.lookups == {("exact", "miss"): 1}
    assert copy.tiers.keys() == {("exact", "miss")}
    assert (copy.calls, copy.tokens, copy.failures) == ({}, {}, {})
