"""What /metrics says of a ledger and of parts in a given state. (tests/e2e/test_metrics.py asks a running gateway.)"""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import Priority
from cache.stores.base import StoreStats
from gateway.decisions import Decision
from gateway.ledger.ledger import Ledger
from gateway.ledger.sums import SECONDS
from gateway.metrics.lag import Lag
from gateway.metrics.ledger import SHOWN
from gateway.metrics.observed import TIER_SECONDS, Observed
from gateway.metrics.render import Queue, Seen, render
from gateway.principal import Principal
from tests.gateway.values import few
from tests.support.exposition import families, faults, samples, total, value

OFF = {"state": "off"}


def decision(**fields: Any) -> Decision:
    d = Decision("req_1", 0.0, "default", "chat")
    for name, given_value in fields.items():
        setattr(d, name, given_value)
    return d


def seen(ledger: Ledger | None = None, **parts: Any) -> Seen:
    ledger = ledger or Ledger()
    nothing: dict[str, Any] = {"observed": Observed(), "stores": {}, "ready": {}, "learnt": {}, "semantic": OFF}
    nothing |= {"retrievers": {}, "queues": {}, "refused": {}, "batches": {}, "lines": {}}
    nothing |= {
        "label": str,
        "flights": 0,
        "listeners": 0,
        "decisions": 0,
        "lag": Lag().seconds,
        "version": "1.2",
        "started": 1.8e9,
    }
    return Seen(rows=list(ledger.totals()), errors=dict(ledger.errors), **{**nothing, **parts})


def page(ledger: Ledger | None = None, **parts: Any) -> str:
    text = render(seen(ledger, **parts)).decode()
    assert list(faults(text)) == []
    return text


def booked(*decisions: Decision) -> Ledger:
    ledger = Ledger()
    for d in decisions:
        ledger.book(d)
    return ledger


def test_nothing_is_counted_before_the_first_request() -> None:
    ours = {name: v for (name, _), v in samples(page()).items() if not name.startswith("refrain_process_")}
    assert {name for name, v in ours.items() if v} == {"refrain_build_info", "refrain_start_time_seconds"}


@pytest.mark.parametrize(
    ("outcome", "tier", "shown"),
    [
        ("exact", "exact", "exact"),
        ("stale", "exact", "stale"),
        ("semantic", "semantic", "semantic"),
        ("joined", "none", "joined"),
        ("miss", "none", "miss"),
        ("bypass", "none", "bypass"),
        (None, "none", "error"),
    ],
)
def test_requests_are_counted_by_endpoint_tier_and_outcome(outcome: str | None, tier: str, shown: str) -> None:
    text = page(booked(*[decision(outcome=outcome, ms=2.5) for _ in range(3)]))
    assert value(text, "refrain_requests_total", endpoint="default", tier=tier, outcome=shown) == 3
    labels = {"endpoint": "default", "outcome": shown}
    assert value(text, "refrain_request_seconds_count", **labels) == 3
    assert value(text, "refrain_request_seconds_sum", **labels) == pytest.approx(0.0075)
    assert value(text, "refrain_request_seconds_bucket", le="0.002", **labels) == 0
    assert value(text, "refrain_request_seconds_bucket", le="0.005", **labels) == 3


def test_every_bound_that_is_shown_is_one_of_the_ledgers() -> None:
    """So that fewer of them count exactly the same."""
    assert set(SHOWN) | set(TIER_SECONDS) <= set(SECONDS)


def test_the_time_to_the_first_token() -> None:
    text = page(booked(decision(outcome="miss", ms=900.0, first_ms=150.0), decision(outcome="exact", ms=0.15)))
    name = "refrain_first_token_seconds"
    assert value(text, f"{name}_sum", endpoint="default", outcome="miss") == pytest.approx(0.15)
    assert value(text, f"{name}_bucket", endpoint="default", outcome="miss", le="0.2") == 1
    assert value(text, f"{name}_bucket", endpoint="default", outcome="miss", le="0.1") == 0
    assert value(text, f"{name}_sum", endpoint="default", outcome="exact") == pytest.approx(0.00015)


def test_tokens_and_money_by_kind() -> None:
    text = page(
        booked(
            decision(outcome="miss", consumed=10, served=10, billable=10, cached=4, usd=0.5, usd_billable=0.5),
            decision(outcome="exact", saved=10, served=10, usd_saved=0.25, ms_saved=1500.0),
            decision(outcome="miss", consumed=7, unserved=7, usd=None, estimated=7),
        )
    )
    kinds = ("served", "unserved", "consumed", "billable", "estimated", "saved", "cached")
    found = {kind: value(text, "refrain_tokens_total", endpoint="default", kind=kind) for kind in kinds}
    assert found == {
        **{"served": 20, "unserved": 7, "consumed": 17, "billable": 10},
        **{"estimated": 7, "saved": 10, "cached": 4},
    }
    usd = {k: value(text, "refrain_usd_total", endpoint="default", kind=k) for k in ("consumed", "billable", "saved")}
    assert usd == {"consumed": 0.5, "billable": 0.5, "saved": 0.25}
    assert value(text, "refrain_saved_seconds_total", endpoint="default") == 1.5


def test_the_same_by_model_once_it_has_answered() -> None:
    good = {"outcome": "miss", "status": 200, "backend": "openai"}
    text = page(
        booked(
            decision(model="gpt", consumed=10, served=10, usd=0.5, **good),
            decision(
                model="made-up", consumed=3, outcome="miss", status=404, error="model_not_found", backend="openai"
            ),
            decision(error="invalid_json", status=400),
        )
    )
    name = "refrain_model_tokens_total"
    assert value(text, name, backend="openai", model="gpt", kind="consumed") == 10
    assert value(text, name, backend="openai", model="other", kind="consumed") == 3
    assert value(text, "refrain_model_usd_total", backend="openai", model="gpt", kind="consumed") == 0.5
    assert {dict(labels)["model"] for n, labels in samples(text) if n == name} == {"gpt", "other"}


def test_errors_by_code() -> None:
    text = page(booked(decision(error="invalid_json", status=400)))
    assert value(text, "refrain_errors_total", code="invalid_json", endpoint="default") == 1


def test_labels_are_escaped() -> None:
    evil = 'a"b\\c\nrefrain_evil 1'
    text = page(booked(decision(error=evil)))
    assert value(text, "refrain_errors_total", code=evil, endpoint="default") == 1
    assert "refrain_evil" not in families(text)


def test_an_upstream_cannot_make_ever_new_series() -> None:
    """`error` may be a code that an upstream sent; whoever writes it must not be able to fill our memory."""
    ledger = booked(*[decision(outcome="miss", error=f"upstream_code_{number}") for number in range(2000)])
    assert len(samples(page(ledger))) < 1000


def test_stores_and_backends_are_gauges_of_this_moment() -> None:
    stores = {"memory": StoreStats(3, 4096, 9999, evicted=2), "store": StoreStats(0, 0, 0, dropped=5, healthy=False)}
    text = page(stores=stores, ready={"local": True, "openai": False})
    found = {name: value(text, name, store="memory") for name in ("refrain_entries", "refrain_store_bytes")}
    assert found == {"refrain_entries": 3, "refrain_store_bytes": 4096}
    assert value(text, "refrain_store_max_bytes", store="memory") == 9999
    assert value(text, "refrain_evictions_total", store="memory") == 2
    assert value(text, "refrain_store_dropped_total", store="store") == 5
    assert [value(text, "refrain_store_healthy", store=name) for name in stores] == [1, 0]
    assert value(text, "refrain_backend_ready", backend="local") == 1
    assert value(text, "refrain_backend_ready", backend="openai") == 0
    assert total(page(), "refrain_entries") == 0


def test_what_runs_and_waits_is_shown_by_class_and_what_was_refused_by_reason() -> None:
    queues = {"fake": Queue({"interactive": 3, "batch": 1}, {"interactive": 0, "batch": 7})}
    refused: dict[tuple[str, Priority, str], int] = {("fake", "interactive", "backend_overloaded"): 2}
    text = page(queues=queues, refused=refused)
    assert value(text, "refrain_backend_running", backend="fake", priority="interactive") == 3
    assert value(text, "refrain_backend_waiting", backend="fake", priority="batch") == 7
    labels = {"backend": "fake", "priority": "interactive", "code": "backend_overloaded"}
    assert value(text, "refrain_backend_refused_total", **labels) == 2


def test_requests_of_all_tenants_are_one_series_and_no_tenant_is_named() -> None:
    tenants = [decision(principal=Principal(t, "alice"), outcome="miss", consumed=5) for t in ("acme", "globex")]
    text = page(booked(*tenants))
    assert value(text, "refrain_requests_total", endpoint="default", outcome="miss", tier="none") == 2
    assert value(text, "refrain_tokens_total", endpoint="default", kind="consumed") == 10
    assert value(text, "refrain_request_seconds_count", endpoint="default", outcome="miss") == 2
    assert not any(name in text for name in ("acme", "globex", "alice", "tenant"))


def test_hits_of_the_exact_tier_are_among_the_look_ups_with_their_whole_time() -> None:
    observed = Observed()
    observed.lookup("exact", "miss")
    requests = [decision(outcome="exact", ms=0.3), decision(outcome="exact", ms=0.3), decision(outcome="stale", ms=800)]
    text = page(booked(*requests), observed=observed)
    assert value(text, "refrain_tier_lookups_total", tier="exact", result="hit") == 3
    assert value(text, "refrain_tier_lookups_total", tier="exact", result="miss") == 1
    assert value(text, "refrain_tier_seconds_count", tier="exact", result="hit") == 2  # not what waited for a backend
    assert value(text, "refrain_tier_seconds_sum", tier="exact", result="hit") == pytest.approx(0.0006)


def test_what_the_latency_model_has_learnt_of_models_that_are_named() -> None:
    observed = Observed()
    observed.call("local", "small", 900.0, first_ms=100.0, output=81)
    facts = {"overhead_ms": 80.0, "prefill_tps": 40000.0, "decode_tps": None, "samples": 9, "error": 0.05}
    text = page(observed=observed, learnt={"local": {"small": facts, "made-up": facts}})
    labels = {"backend": "local", "model": "small"}
    assert value(text, "refrain_model_overhead_seconds", **labels) == pytest.approx(0.08)
    assert value(text, "refrain_model_prefill_tokens_per_second", **labels) == 40000
    assert value(text, "refrain_model_prediction_error_ratio", **labels) == 0.05
    assert total(text, "refrain_model_decode_tokens_per_second") == 0
    assert value(text, "refrain_output_token_seconds_sum", backend="local") == pytest.approx(0.01)
    assert "made-up" not in text


def test_the_semantic_tier() -> None:
    stats = {"state": "ready", "hits": 3, "misses": {"no_neighbour": 2}, "reported": {"right": 1, "wrong": 4}}
    text = page(semantic={**stats, "questions": 7, "vectors": 6, "bytes": 5})
    assert value(text, "refrain_semantic_ready") == 1
    assert value(text, "refrain_semantic_lookups_total", result="hit") == 3
    assert value(text, "refrain_semantic_lookups_total", result="no_neighbour") == 2
    assert value(text, "refrain_semantic_reports_total", verdict="wrong") == 4


amounts = st.lists(st.floats(0, 0.01), min_size=1, max_size=30)


@few
@given(amounts, st.randoms(use_true_random=False))
def test_sums_do_not_hang_on_the_order_of_the_ledger(usd: list[float], random: Any) -> None:
    """A counter that is smaller by its last digit looks like one that began anew, and all of it would count twice."""
    requests = [
        decision(principal=Principal(f"t{n}", "x"), outcome="miss", usd=u, usd_billable=u) for n, u in enumerate(usd)
    ]
    before = total(page(booked(*requests)), "refrain_usd_total", kind="billable")
    random.shuffle(requests)
    assert total(page(booked(*requests)), "refrain_usd_total", kind="billable") == before


def test_counters_never_go_down() -> None:
    ledger, observed = Ledger(), Observed()
    before: dict[Any, float] = {}
    for number, outcome in enumerate(["miss", "exact", "bypass", "miss", "stale", None, "exact"]):
        d = decision(outcome=outcome, ms=1.5 * number, usd=0.1, consumed=3, unserved=number % 2, served=2)
        ledger.book(d)
        observed.request(d)
        text = page(ledger, observed=observed.copy())
        gauges = {name for name, family in families(text).items() if family.type == "gauge"}
        after = {key: v for key, v in samples(text).items() if key[0] not in gauges}
        assert after.keys() >= before.keys()
        assert [key for key in before if after[key] < before[key]] == []
        before = after


@pytest.mark.parametrize(("endpoints", "models", "seconds"), [(5, 10, 0.05), (10, 200, 0.25)])
def test_a_page_is_written_soon(endpoints: int, models: int, seconds: float) -> None:
    """Of an ordinary gateway, and of one with 4,000 cells. (About 4 and 50 ms, in a thread.)"""
    ledger, observed = Ledger(known=lambda _: True), Observed(lambda _: True)
    for model in range(models):
        observed.call("openai", f"m{model}", 900.0, first_ms=100.0, output=20)
        for endpoint in range(endpoints):
            for outcome in ("miss", "exact"):
                d = decision(outcome=outcome, model=f"m{model}", status=200, backend="openai", ms=3.0)
                d.endpoint = f"endpoint{endpoint}"
                ledger.book(d)
    times = []
    for _ in range(7):
        begun = time.thread_time()  # other work on the machine is not counted
        text = render(seen(ledger, observed=observed))
        times.append(time.thread_time() - begun)
    assert text.count(b"\n") > models * 15
    assert min(times) < seconds
