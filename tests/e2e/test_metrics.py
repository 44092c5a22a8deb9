"""/metrics of a gateway after real traffic: as docs/metrics.md has it, and as Prometheus reads it."""

import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CONTENT_TYPE_LATEST

from tests.support.exposition import families, faults, needs_promtool, promtool, samples, total, value
from tests.support.gateway import ALICE, EVE, Running, config_text, running
from tests.support.live import answer_of, call, holding, listening, settled, together
from tests.support.metrics_page import documented
from tests.support.semantic import ASKED, REWORDED, Room, by_wording
from tests.support.traffic import error_of, fixed, outcome
from tests.support.upstream import Reply, Upstream, numbered, upstream

EXTRA = """prices: {test-model: {input: 1.0, output: 2.0}}
retrievers: {kb: {kind: http, url: "http://127.0.0.1:9/search"}}
"""
PRICE = 0.000025  # of a scripted answer: 11 tokens in, 7 out
UNMEASURED = {
    *("refrain_model_prefill_tokens_per_second", "refrain_model_decode_tokens_per_second"),
    *("refrain_backend_refused_total", "refrain_fallbacks_total"),
}
"""Not there where tokens come faster than can be measured, as those of a script may, and where nothing was refused or
sent on to another backend (test_admission and test_fallback do that)."""


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    """One that has seen requests of every kind."""
    with running(config_text(up.url, extra=EXTRA), embedders=lambda _: by_wording()) as gateway:
        for stream in (False, True):
            for path in ("/v1", "/rr/v1"):
                gateway.chat(f"counted {stream}", path=path, stream=stream)
                gateway.chat(f"counted {stream}", path=path, stream=stream)
        room = Room(gateway)
        room.told(ASKED)
        found = room.ask(REWORDED)
        assert outcome(found) == "semantic"
        asked = {"request_id": found.headers["x-request-id"], "correct": False}
        assert gateway.admin("POST", "/admin/feedback", json=asked).status_code == 200
        gateway.chat("alone", headers={"cache-control": "no-store"})
        gateway.chat("nobody's", path="/nowhere/v1")
        gateway.chat("nobody's", key="rf-wrong")
        up.script = fixed(Reply([b'{"error": {"message": "no", "code": "overloaded"}}'], status=500))
        error_of(gateway.chat("failing"), 500)
        gate = threading.Event()
        up.script = holding(gate)
        callers = together(gateway, "shared", ["sse", "json"])
        gate.set()
        for caller in callers:
            answer_of(caller.result())
        up.script = numbered
        yield gateway


def metrics(gw: Running) -> str:
    response = gw.admin("GET", "/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == CONTENT_TYPE_LATEST
    return response.text


def test_the_page_follows_the_format_and_the_conventions(gw: Running) -> None:
    assert list(faults(metrics(gw))) == []


@needs_promtool
def test_promtool_has_nothing_to_say_against_it(gw: Running) -> None:
    promtool("check", "metrics", stdin=metrics(gw))


def test_the_documentation_has_every_metric_with_its_type_and_labels(gw: Running) -> None:
    text = metrics(gw)
    shown = families(text)
    explained = documented()
    assert explained.keys() == shown.keys()
    assert {name: d.type for name, d in explained.items()} == {name: f.type for name, f in shown.items()}
    for name, family in shown.items():
        labels = {frozenset(s.labels) - {"le"} for s in family.samples}
        assert labels <= {explained[name].labels}, name
        assert labels or name in UNMEASURED, f"the traffic of this test leaves {name} empty"


def test_it_counts_what_happened(gw: Running) -> None:
    text = metrics(gw)

    def count(outcome: str, tier: str) -> float:
        return total(text, "refrain_requests_total", outcome=outcome, tier=tier)

    assert (count("miss", "none"), count("exact", "exact"), count("semantic", "semantic")) == (7, 4, 1)
    assert (count("joined", "none"), count("bypass", "none"), count("error", "none")) == (1, 1, 2)
    assert value(text, "refrain_requests_total", endpoint="", tier="none", outcome="error") == 2
    assert value(text, "refrain_request_seconds_count", endpoint="rr", outcome="exact") == 2
    assert value(text, "refrain_first_token_seconds_count", endpoint="rr", outcome="exact") == 2
    assert total(text, "refrain_tokens_total", kind="saved") == 18 * 6
    assert total(text, "refrain_tokens_total", kind="consumed") == 18 * 7
    assert total(text, "refrain_usd_total", kind="saved") == pytest.approx(PRICE * 6)
    assert value(text, "refrain_model_tokens_total", backend="fake", model="test-model", kind="consumed") == 18 * 7
    assert total(text, "refrain_saved_seconds_total") > 0


def test_it_counts_look_ups_and_calls(gw: Running) -> None:
    text = metrics(gw)

    def looked(tier: str, result: str) -> float:
        return value(text, "refrain_tier_lookups_total", tier=tier, result=result)

    assert (looked("exact", "hit"), looked("exact", "miss"), looked("exact", "skipped")) == (4, 9, 1)
    assert (looked("semantic", "hit"), total(text, "refrain_semantic_lookups_total", result="hit")) == (1, 1)
    assert value(text, "refrain_tier_seconds_count", tier="semantic", result="hit") == 1
    assert value(text, "refrain_semantic_reports_total", verdict="wrong") == 1
    assert value(text, "refrain_upstream_seconds_count", backend="fake", model="test-model") == 7
    assert value(text, "refrain_upstream_errors_total", backend="fake", code="backend_error") == 1
    assert value(text, "refrain_output_token_seconds_count", backend="fake") > 0
    assert value(text, "refrain_backend_ready", backend="fake") == 1
    assert value(text, "refrain_semantic_ready") == 1


def test_it_tells_of_the_process_and_of_the_loop(gw: Running) -> None:
    text = metrics(gw)
    assert value(text, "refrain_event_loop_lag_seconds_count") > 0
    assert value(text, "refrain_process_resident_memory_bytes") > 10 * 2**20
    assert value(text, "refrain_decisions") == total(text, "refrain_requests_total")
    started = value(text, "refrain_start_time_seconds")
    assert gw.clock() - 600 < started <= gw.clock()


def test_flights_are_gauges_of_this_moment(gw: Running, up: Upstream) -> None:
    gate = threading.Event()
    up.script = holding(gate)
    try:
        caller = call(gw, "held")
        listening(gw, 1)
        assert value(metrics(gw), "refrain_flights") == 1
    finally:
        gate.set()
    answer_of(caller.result())
    settled(gw)
    assert value(metrics(gw), "refrain_flights") == 0


def test_counters_do_not_go_down(gw: Running) -> None:
    before = metrics(gw)
    for number in range(5):
        gw.chat(f"growing {number}")
        after = metrics(gw)
        grown = samples(after)
        for name, family in families(before).items():
            if family.type != "gauge":
                for s in family.samples:
                    assert grown[s.name, frozenset(s.labels.items())] >= s.value, name
        before = after


def test_it_is_for_an_admin_only(gw: Running) -> None:
    for key, status in ((ALICE, 403), (EVE, 403), ("rf-wrong", 401)):
        response = gw.admin("GET", "/metrics", key=key)
        error_of(response, status)
        assert "refrain_" not in response.text
    error_of(gw.client.get("/metrics"), 401)


def test_names_and_codes_of_clients_and_upstreams_stay_out(up: Upstream) -> None:
    """This upstream answers whatever the model's name, and makes up codes."""
    with running(config_text(up.url, extra=EXTRA)) as gw:
        for number in range(30):
            gw.chat(f"{number}", model=f'"evil"\\{number}\n{{}}')
            gw.chat(f"{number}", path=f"/evil{number}/v1")
            gw.chat(f"{number}", user=f"evil{number}", metadata={"evil": "x"}, headers={"x-refrain-tags": "evil"})
        text = metrics(gw)
    assert "evil" not in text
    assert "alice" not in text
    assert "acme" not in text
    assert list(faults(text)) == []
    assert value(text, "refrain_upstream_seconds_count", backend="fake", model="other") == 30


def test_an_upstream_that_is_gone_shows(prompt: str) -> None:
    with upstream() as gone:
        text = config_text(gone.url)
    with running(text) as gw:
        error_of(gw.chat(prompt), 502)
        page = metrics(gw)
    assert value(page, "refrain_upstream_errors_total", backend="fake", code="backend_unreachable") == 1
    assert value(page, "refrain_errors_total", endpoint="default", code="backend_unreachable") == 1
    assert total(page, "refrain_upstream_seconds_count") == 0
