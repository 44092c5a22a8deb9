from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cache.stores.base import StoreStats
from gateway.decisions import Decision
from gateway.ledger import Ledger
from gateway.metrics import render
from gateway.principal import Principal


def decision(**fields: Any) -> Decision:
    d = Decision("req_1", 0.0, "default", "chat")
    for name, value in fields.items():
        setattr(d, name, value)
    return d


def samples(ledger: Ledger, stores: Any = None, backends: Any = None) -> dict[tuple[Any, ...], float]:
    """(name, sorted labels) -> value, read by Prometheus's own parser."""

    def each() -> Iterator[tuple[tuple[Any, ...], float]]:
        text = render(ledger, stores or {}, backends or {}, flights=0, listeners=0, semantic={"state": "off"}).decode()
        for family in text_string_to_metric_families(text):
            for s in family.samples:
                yield (s.name, *sorted(s.labels.items())), s.value

    found = list(each())
    assert len({name for name, _ in found}) == len(found)
    assert all(name[0].startswith("refrain_") for name, _ in found)
    return dict(found)


def test_nothing_is_counted_before_the_first_request() -> None:
    names = ("refrain_flights", "refrain_flight_listeners", "refrain_semantic_ready")
    assert samples(Ledger()) == {(name,): 0.0 for name in names}


@pytest.mark.parametrize(
    ("outcome", "tier", "shown"),
    [
        ("exact", "exact", "exact"),
        ("stale", "exact", "stale"),
        ("miss", "none", "miss"),
        ("bypass", "none", "bypass"),
        (None, "none", "error"),
    ],
)
def test_requests_are_counted_by_endpoint_tier_and_outcome(outcome: str | None, tier: str, shown: str) -> None:
    ledger = Ledger()
    for _ in range(3):
        ledger.book(decision(outcome=outcome, ms=2))
    found = samples(ledger)
    assert found["refrain_requests_total", ("endpoint", "default"), ("outcome", shown), ("tier", tier)] == 3
    labels = (("endpoint", "default"), ("outcome", shown))
    assert found["refrain_request_seconds_count", *labels] == 3
    assert found["refrain_request_seconds_sum", *labels] == pytest.approx(0.006)
    assert found["refrain_request_seconds_bucket", labels[0], ("le", "0.001"), labels[1]] == 0
    assert found["refrain_request_seconds_bucket", labels[0], ("le", "0.0025"), labels[1]] == 3


def test_tokens_and_money_by_kind() -> None:
    ledger = Ledger()
    ledger.book(decision(outcome="miss", consumed=10, served=10, usd=0.5))
    ledger.book(decision(outcome="exact", saved=10, served=10, usd_saved=0.25))
    ledger.book(decision(outcome="miss", consumed=7, unserved=7, usd=None))
    found = samples(ledger)
    kinds = {
        k: found["refrain_tokens_total", ("endpoint", "default"), ("kind", k)] for k in ("served", "consumed", "saved")
    }
    assert kinds == {"served": 20, "consumed": 17, "saved": 10}
    assert found["refrain_usd_total", ("endpoint", "default"), ("kind", "consumed")] == 0.5
    assert found["refrain_usd_total", ("endpoint", "default"), ("kind", "saved")] == 0.25


def test_money_counts_where_the_backend_reports_no_tokens() -> None:
    ledger = Ledger()
    ledger.book(decision(outcome="miss", usd=0.5))
    assert samples(ledger)["refrain_usd_total", ("endpoint", "default"), ("kind", "consumed")] == 0.5


def test_errors_by_code() -> None:
    ledger = Ledger()
    ledger.book(decision(error="invalid_json", status=400))
    assert samples(ledger)["refrain_errors_total", ("code", "invalid_json"), ("endpoint", "default")] == 1


def test_labels_are_escaped() -> None:
    ledger = Ledger()
    ledger.book(decision(error='a"b\\c\nrefrain_evil 1'))
    assert samples(ledger)["refrain_errors_total", ("code", 'a"b\\c\nrefrain_evil 1'), ("endpoint", "default")] == 1


def test_an_upstream_cannot_make_ever_new_series() -> None:
    """`error` may be a code that an upstream sent; whoever writes it must not be able to fill our memory."""
    ledger = Ledger()
    for number in range(2000):
        ledger.book(decision(outcome="miss", error=f"upstream_code_{number}"))
    assert len(samples(ledger)) < 1000


def test_stores_and_backends_are_gauges_of_this_moment() -> None:
    ledger = Ledger()
    stores = {"memory": StoreStats(3, 4096, 9999, evicted=2), "store": StoreStats(0, 0, 0, healthy=False)}
    found = samples(ledger, stores, {"local": True, "openai": False})
    memory, disk = ("store", "memory"), ("store", "store")
    assert (found["refrain_entries", memory], found["refrain_store_bytes", memory]) == (3, 4096)
    assert found["refrain_evictions_total", memory] == 2
    assert (found["refrain_store_healthy", memory], found["refrain_store_healthy", disk]) == (1, 0)
    assert found["refrain_backend_ready", ("backend", "local")] == 1
    assert found["refrain_backend_ready", ("backend", "openai")] == 0
    assert ("refrain_entries", memory) not in samples(ledger)


def test_requests_of_all_tenants_are_one_series() -> None:
    ledger = Ledger()
    for tenant in ("acme", "globex"):
        ledger.book(decision(principal=Principal(tenant, "alice"), outcome="miss", ms=tenant == "acme", consumed=5))
    found = samples(ledger)
    assert found["refrain_requests_total", ("endpoint", "default"), ("outcome", "miss"), ("tier", "none")] == 2
    assert found["refrain_tokens_total", ("endpoint", "default"), ("kind", "consumed")] == 10
    assert found["refrain_request_seconds_count", ("endpoint", "default"), ("outcome", "miss")] == 2
