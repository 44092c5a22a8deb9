"""The books must balance whatever comes: served + unserved = consumed + saved, in tokens and in USD."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.decisions import Decision
from gateway.ledger.ledger import MAX_CODES, MAX_MODELS, OTHER, Charge, Key, Ledger
from gateway.principal import Principal
from gateway.recorder import Recorder
from tests.gateway.values import some

SUMS = ("served", "unserved", "consumed", "billable", "saved")
TOKENS = dict.fromkeys(SUMS, 0)
USD = dict.fromkeys(SUMS, 0.0)


def decision(tenant: str = "acme", **fields: Any) -> Decision:
    d = Decision("req_1", 0.0, "default", "chat")
    d.principal = Principal(tenant, "alice") if tenant else None
    for name, value in fields.items():
        setattr(d, name, value)
    return d


def call(tokens: int, usd: float | None, *, served: bool = True, tenant: str = "acme") -> Decision:
    """A decision as a call of a provider leaves it."""
    split = {"served": tokens, "unserved": 0} if served else {"served": 0, "unserved": tokens}
    money = {"usd": usd, "usd_billable": usd, "usd_used": (usd or 0.0) if served else 0.0}
    return decision(tenant, outcome="miss", consumed=tokens, billable=tokens, **money, **split)


def sums(**numbers: float) -> dict[str, float]:
    return {**TOKENS, **numbers}


def money(**numbers: float) -> dict[str, float]:
    return {**USD, **numbers}


def hit(tokens: int, usd: float | None, *, tenant: str = "acme") -> Decision:
    return decision(tenant, outcome="exact", served=tokens, saved=tokens, usd_saved=usd)


def test_an_empty_ledger_has_zeros() -> None:
    by = {"endpoint": {}, "tenant": {}, "model": {}, "tier": {}}
    parts = {"tokens": {"cached": 0, "estimated": 0}, "usd": {"overhead": 0.0}}
    assert Ledger().stats() == {"requests": {}, "tokens": TOKENS, "usd": USD, "by": by, "parts": parts}
    assert Ledger().stats("nobody") == Ledger().stats()


def test_a_call_a_hit_and_an_abandoned_call() -> None:
    ledger = Ledger()
    for d in (call(10, 0.5), hit(10, 0.5), call(7, 0.25, served=False), decision(outcome=None, error="x")):
        ledger.book(d)
    stats = ledger.stats()
    assert stats["requests"] == {"miss": 2, "exact": 1, "error": 1}
    assert stats["tokens"] == sums(served=20, unserved=7, consumed=17, billable=17, saved=10)
    assert stats["usd"] == money(served=1.0, unserved=0.25, consumed=0.75, billable=0.75, saved=0.5)


def test_tenants_are_kept_apart_and_summed_up() -> None:
    ledger = Ledger()
    ledger.book(call(10, None))
    ledger.book(call(3, None, tenant="globex"))
    ledger.book(decision("", outcome=None))
    assert ledger.stats("acme")["tokens"]["consumed"] == 10
    assert ledger.stats("globex")["tokens"]["consumed"] == 3
    assert ledger.stats()["tokens"]["consumed"] == 13
    assert ledger.stats("nobody") == Ledger().stats()
    assert ledger.stats()["requests"] == {"miss": 2, "error": 1}


def test_looking_changes_nothing() -> None:
    ledger = Ledger()
    ledger.book(call(10, 0.5))
    assert ledger.stats() == ledger.stats() == ledger.stats("acme")
    ledger.stats("nobody")
    assert ledger.stats() == ledger.stats("acme")


def test_money_counts_where_the_backend_reports_no_tokens() -> None:
    """Own hardware is paid by the hour, whether or not the server counts its tokens."""
    ledger = Ledger()
    ledger.book(call(0, 0.5))
    ledger.book(hit(0, 0.5))
    usd = ledger.stats()["usd"]
    assert (usd["consumed"], usd["saved"], usd["served"]) == (0.5, 0.5, 1.0)


booked = st.builds(
    lambda kind, tokens, usd, tenant: (
        hit(tokens, usd, tenant=tenant) if kind == "hit" else call(tokens, usd, served=kind == "call", tenant=tenant)
    ),
    st.sampled_from(["hit", "call", "lost"]),
    st.integers(0, 10_000),
    st.none() | st.integers(0, 1000).map(lambda n: n / 1024),  # exact in binary, so that sums can be compared
    st.sampled_from(["acme", "globex", ""]),
)


@some
@given(st.lists(booked, max_size=20))
def test_the_books_balance(decisions: list[Decision]) -> None:
    ledger = Ledger()
    for d in decisions:
        ledger.book(d)
    for tenant in (None, "acme", "globex"):
        stats = ledger.stats(tenant)
        views = [found for view in stats["by"].values() for found in view.values()]
        for found in (stats, *views):
            for unit in (found["tokens"], found["usd"]):
                assert unit["served"] + unit["unserved"] == unit["consumed"] + unit["saved"]
                assert unit["billable"] == unit["consumed"]
        for view in stats["by"].values():
            assert sum(found["requests"] for found in view.values()) == sum(stats["requests"].values())
            for name in SUMS:
                assert sum(found["tokens"][name] for found in view.values()) == stats["tokens"][name]
    assert sum(ledger.stats()["requests"].values()) == len(decisions)
    assert ledger.stats()["tokens"]["consumed"] == sum(d.consumed for d in decisions)


def test_sums_are_kept_apart_and_count_times() -> None:
    ledger = Ledger()
    for ms in (0.05, 0.1, 0.12, 1e9):
        ledger.book(decision(outcome="miss", backend="fake", ms=ms, first_ms=ms / 2))
    ledger.book(decision(outcome="exact", ms=1.0, error="late"))
    found = dict(ledger.totals("acme"))
    assert found.keys() == {Key("acme", "default", "", "fake", "miss"), Key("acme", "default", "", "", "exact")}
    miss, exact = found["acme", "default", "", "fake", "miss"], found["acme", "default", "", "", "exact"]
    # 0.1 ms is in the bucket up to 0.1 ms
    assert (miss.buckets[0], miss.buckets[1], miss.buckets[-1], sum(miss.buckets)) == (2, 1, 1, 4)
    assert (miss.first_buckets[0], miss.first_buckets[-1], miss.first_ms) == (3, 1, miss.ms / 2)
    assert (exact.requests, exact.errors, sum(exact.buckets), sum(exact.first_buckets)) == (1, 1, 1, 0)
    assert list(ledger.totals("globex")) == []
    assert ledger.errors == {("default", "late"): 1}


def test_a_hit_has_its_first_byte_when_it_has_its_last() -> None:
    ledger = Ledger()
    ledger.book(decision(outcome="exact", ms=0.2))
    [(_, found)] = ledger.totals()
    assert (found.first_ms, found.first_buckets) == (0.2, found.buckets)


def test_all_that_a_decision_counts_is_added_up() -> None:
    ledger = Ledger()
    d = call(20, 0.5)
    d.input, d.output, d.cached, d.estimated, d.usd_overhead, d.ms_saved = 12, 8, 5, 20, 0.125, 40.0
    for _ in range(2):
        ledger.book(d)
    [(_, found)] = ledger.totals()
    names = ("requests", "input", "output", "cached", "estimated", "usd_overhead", "ms_saved", "usd_billable")
    assert [getattr(found, name) for name in names] == [2, 24, 16, 10, 40, 0.25, 80.0, 1.0]


def test_money_of_an_answer_that_was_given_is_served_and_the_rest_is_not() -> None:
    """A call that failed, the search before it, and the call whose answer was given."""
    recorder, d = Recorder(10), decision(outcome="miss")
    recorder.charge(d, Charge(3, usd=0.125, by_token=True, overhead=True))
    recorder.charge(d, Charge(7, 5.0, 0.25))
    recorder.charge(d, Charge(18, 5.0, 0.5))
    d.served, d.usd_used = 18, 0.5
    recorder.finish(d, 0.0)
    stats = recorder.ledger.stats()
    assert stats["tokens"] == sums(served=18, unserved=10, consumed=28, billable=3)
    assert stats["usd"] == money(served=0.5, unserved=0.375, consumed=0.875, billable=0.125)
    assert stats["parts"]["usd"] == {"overhead": 0.125}


def test_sums_that_somebody_has_got_do_not_change() -> None:
    """A thread may be reading them."""
    ledger = Ledger()
    ledger.book(call(10, 0.5))
    [(_, first)] = ledger.totals()
    for _ in range(3):
        ledger.book(call(10, 0.5))
        [(_, later)] = ledger.totals()
    assert (first.requests, sum(first.buckets), later.requests, later.consumed) == (1, 1, 4, 40)


# Names


def test_stats_are_also_by_endpoint_tenant_model_and_tier() -> None:
    ledger = Ledger()
    for outcome in ("exact", "stale", "semantic", "joined", "miss", "bypass"):
        ledger.book(decision(outcome=outcome, status=200, model="m", served=1, saved=1, ms=1.0))
    ledger.book(decision("globex", outcome="miss", endpoint="rr", status=200, model="n", served=5, consumed=5))
    by = ledger.stats()["by"]
    requests = {view: {name: sums["requests"] for name, sums in found.items()} for view, found in by.items()}
    assert requests == {
        "endpoint": {"default": 6, "rr": 1},
        "tenant": {"acme": 6, "globex": 1},
        "model": {"m": 6, "n": 1},
        "tier": {"exact": 2, "semantic": 1, "joined": 1, "backend": 3},
    }
    assert by["model"]["n"]["tokens"] == sums(served=5, consumed=5)
    assert ledger.stats("globex")["by"]["tenant"].keys() == {"globex"}


def names(ledger: Ledger, tenant: str | None = None) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, sums in ledger.totals(tenant):
        found[key.model] = found.get(key.model, 0) + sums.requests
    return found


def test_a_model_has_its_name_once_it_has_answered() -> None:
    ledger = Ledger()
    ledger.book(decision(outcome="miss", model="m", status=404, error="model_not_found"))
    ledger.book(decision(outcome="miss", model="m", status=200, error="backend_reply_broken"))
    assert names(ledger) == {OTHER: 2}
    ledger.book(decision(outcome="miss", model="m", status=200))
    ledger.book(decision(outcome="miss", model="m", status=500, error="backend_error"))
    ledger.book(decision(outcome=None, status=400, error="invalid_json"))
    assert names(ledger) == {OTHER: 2, "m": 2, "": 1}


def test_names_that_one_tenant_makes_up_are_no_harm_to_others() -> None:
    ledger = Ledger(known=lambda model: model == "gpt-4o")
    for number in range(MAX_MODELS + 10):
        ledger.book(decision(outcome="miss", model=f"made-up-{number}", status=200))
    for model in ("made-up-0", "honest", "gpt-4o"):
        for tenant in ("acme", "globex"):
            ledger.book(decision(tenant, outcome="miss", model=model, status=200))
    mine = names(ledger, "acme")
    assert (len(mine), mine[OTHER], mine["made-up-0"], mine["gpt-4o"]) == (MAX_MODELS + 2, 11, 2, 1)
    assert names(ledger, "globex") == {"made-up-0": 1, "honest": 1, "gpt-4o": 1}


@pytest.mark.parametrize("outcome", ["exact", "stale", "miss", "bypass"])
def test_every_outcome_has_its_count(outcome: str) -> None:
    ledger = Ledger()
    ledger.book(decision(outcome=outcome))
    assert ledger.stats()["requests"] == {outcome: 1}


def test_codes_that_an_upstream_invents_are_bounded() -> None:
    ledger = Ledger()
    for number in range(MAX_CODES + 10):
        ledger.book(decision(error=f"code {number}"))
    ledger.book(decision(error="code 0"))
    assert len(ledger.errors) == MAX_CODES + 1
    assert ledger.errors["default", "other"] == 10
    assert ledger.errors["default", "code 0"] == 2


# Calls that end before or after the request they were made for


def test_a_call_that_ends_after_its_request_is_added_as_unserved() -> None:
    """Its client had left; the answer was made to its end for others, or for the cache."""
    ledger = Ledger()
    d = decision(outcome="miss", error="client_disconnected")
    ledger.book(d)
    ledger.charge(d, Charge(18, 5.0, 0.5, by_token=True, estimated=18, cached=4))
    stats = ledger.stats()
    assert stats["requests"] == {"miss": 1}  # no second request
    assert stats["tokens"] == sums(unserved=18, consumed=18, billable=18)
    assert stats["parts"]["tokens"] == {"cached": 4, "estimated": 18}
    assert stats["usd"] == money(unserved=0.5, consumed=0.5, billable=0.5)


def test_it_counts_where_its_request_was_counted() -> None:
    ledger = Ledger()
    for tenant, outcome in (("acme", "miss"), ("globex", "stale"), ("", None)):
        d = decision(tenant, outcome=outcome)
        ledger.book(d)
        ledger.charge(d, Charge(7))
    assert [sums.unserved for _, sums in ledger.totals()] == [7, 7, 7]
    assert ledger.stats("acme")["tokens"]["consumed"] == 7
    assert ledger.stats()["requests"] == {"miss": 1, "stale": 1, "error": 1}


def recorded(*, served: int = 0, saved: int = 0, calls: list[int], after: list[int]) -> tuple[Recorder, Decision]:
    """A request that ends after some of its calls (their tokens), and before the others."""
    recorder, d = Recorder(10), decision(outcome="miss", served=served, saved=saved)
    for tokens in calls:
        recorder.charge(d, Charge(tokens, 5.0, tokens / 1024))
    recorder.finish(d, 0.0)
    for tokens in after:
        recorder.charge(d, Charge(tokens, 5.0, tokens / 1024))
    return recorder, d


@pytest.mark.parametrize(
    ("given", "consumed", "unserved"),
    [
        ({"served": 18, "calls": [18], "after": []}, 18, 0),  # a miss
        ({"served": 0, "calls": [18], "after": []}, 18, 18),  # its client left at the last moment
        ({"served": 0, "calls": [], "after": [18]}, 18, 18),  # its client left, others stayed
        ({"served": 18, "saved": 18, "calls": [], "after": []}, 0, 0),  # joined, or a hit
        ({"served": 18, "saved": 18, "calls": [], "after": [20]}, 20, 20),  # served stale, refreshed beside it
        ({"served": 18, "saved": 18, "calls": [7], "after": []}, 7, 7),  # the call failed, a stale answer was served
        ({"served": 0, "calls": [], "after": []}, 0, 0),
    ],
)
def test_a_decision_balances_whenever_its_calls_end(given: Any, consumed: int, unserved: int) -> None:
    recorder, d = recorded(**given)
    assert (d.consumed, d.unserved) == (consumed, unserved)
    assert d.served + d.unserved == d.consumed + d.saved
    tokens = recorder.ledger.stats()["tokens"]
    assert (tokens["consumed"], tokens["unserved"], tokens["served"]) == (consumed, unserved, d.served)
    assert recorder.ledger.stats()["usd"]["consumed"] == consumed / 1024
    assert d.as_dict()["tokens"]["unserved"] == unserved


@pytest.mark.parametrize(
    ("calls", "cached", "tiers"),
    [
        ([None], None, []),
        ([0], 0, [{"tier": "prefix", "result": "miss", "tokens": 0}]),
        ([None, 64], 64, [{"tier": "prefix", "result": "hit", "tokens": 64}]),
    ],
)
def test_what_the_backend_had_of_the_prompt_is_in_the_decision(
    calls: list[int | None], cached: int | None, tiers: list[Any]
) -> None:
    recorder, d = Recorder(10), decision(outcome="miss", served=80)
    for tokens in calls:
        recorder.charge(d, Charge(80, 5.0, cached=tokens))
    recorder.finish(d, 0.0)
    shown = d.as_dict()
    assert (shown["tokens"].get("cached"), shown["tiers"]) == (cached, tiers)


def test_a_decision_is_recorded_once_whoever_ends_it_first() -> None:
    recorder, d = Recorder(10), decision(outcome="miss")
    recorder.finish(d, 0.0)
    first = d.ms
    recorder.finish(d, 1.0)
    assert (len(list(recorder.ring)), d.ms) == (1, first)
    assert recorder.ledger.stats()["requests"] == {"miss": 1}


@pytest.mark.parametrize("late", [False, True])
def test_money_for_an_answer_that_nobody_got_is_unserved_also_where_no_tokens_are_counted(late: bool) -> None:
    """Own hardware is paid by the hour: what a failed call took was served to nobody."""
    recorder, d = Recorder(10), decision(outcome="miss", error="backend_reply_broken")
    if late:
        recorder.finish(d, 0.0)
    recorder.charge(d, Charge(0, 5.0, 0.5))
    recorder.finish(d, 0.0)
    assert recorder.ledger.stats()["usd"] == money(unserved=0.5, consumed=0.5)


flown = st.builds(
    lambda served, joined, calls, after: {
        "served": 18 if served else 0,
        "saved": 18 if served and joined else 0,
        "calls": [*calls, *([18] if served and not joined else [])],
        "after": after,
    },
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 99), max_size=2),
    st.lists(st.integers(0, 99), max_size=2),
)


@some
@given(flown)
def test_decisions_and_books_agree(given: Any) -> None:
    recorder, d = recorded(**given)
    tokens = recorder.ledger.stats()["tokens"]
    assert d.served + d.unserved == d.consumed + d.saved
    assert d.unserved >= 0
    assert tokens == sums(served=d.served, unserved=d.unserved, consumed=d.consumed, saved=d.saved)
