"""Response headers, as DESIGN 5 has them."""

import re
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.entry import Cost, Usage
from cache.stores.memory import Slot
from gateway.auth import ANYBODY
from gateway.decisions import Decision, Tier
from gateway.front import Replay
from gateway.heads import decision_headers, reuse, saved_value
from gateway.principal import Principal
from tests.contract.stores import START, make_entry
from tests.gateway.values import some

FORWARD = {"bypass", "method", "uri-miss", "vary-miss", "miss", "request", "stale", "partial"}
"""What RFC 9211, 2.2 knows as reasons for forwarding."""


def decision(**fields: Any) -> Decision:
    d = Decision("req_1", START, "default", "chat")
    for name, value in fields.items():
        setattr(d, name, value)
    return d


def headers(d: Decision) -> dict[str, str]:
    found = [(name.decode(), value.decode("latin-1")) for name, value in decision_headers(d)]
    assert len({name for name, _ in found}) == len(found)
    assert all(name == name.lower() for name, _ in found)
    return dict(found)


def cache_status(*tiers: Tier) -> str:
    return headers(decision(tiers=tiers))["cache-status"]


def test_every_answer_has_an_id_and_keeps_outer_caches_out() -> None:
    assert headers(decision()) == {"cache-control": "private, no-store", "x-request-id": "req_1"}


@pytest.mark.parametrize(
    ("tier", "member"),
    [
        (Tier("exact", "hit", ttl=59), "exact; hit; ttl=59"),
        (Tier("exact", "hit", ttl=0), "exact; hit; ttl=0"),
        (Tier("exact", "hit", ttl=-5), "exact; hit; ttl=-5"),  # stale: RFC 9211 has negative ones
        (Tier("exact", "hit"), "exact; hit"),
        (Tier("exact", "miss"), "exact; fwd=miss"),
        (Tier("exact", "miss", "expired"), "exact; fwd=stale"),
        (Tier("exact", "skipped"), "exact; fwd=bypass"),
        (Tier("exact", "skipped", "over_budget"), "exact; fwd=bypass"),
        (Tier("semantic", "skipped", "over_budget"), "semantic; fwd=bypass"),
    ],
)
def test_cache_status_says_what_a_tier_said(tier: Tier, member: str) -> None:
    assert cache_status(tier) == member


@pytest.mark.parametrize(
    "why",
    ["no_cache", "no_store", "tier_off", "tier_not_asked", "store_requested", "stateful", "hosted_tool", "sampled"],
)
def test_a_tier_that_was_skipped_says_so_in_a_word_of_the_standard(why: str) -> None:
    forward = cache_status(Tier("exact", "skipped", why)).removeprefix("exact; fwd=")
    assert forward in {"bypass", "request"}


def test_an_answer_older_than_asked_is_forwarded_in_a_word_of_the_standard() -> None:
    assert cache_status(Tier("exact", "miss", "older_than_asked")).removeprefix("exact; fwd=") in FORWARD


def test_the_prefix_tier_is_not_in_cache_status() -> None:
    assert cache_status(Tier("exact", "miss"), Tier("prefix", "hit", tokens=64)) == "exact; fwd=miss"


def test_the_tier_nearest_the_backend_comes_first() -> None:
    assert (
        cache_status(Tier("exact", "miss"), Tier("semantic", "hit", ttl=5)) == "semantic; hit; ttl=5, exact; fwd=miss"
    )


def test_outcome_age_timing_and_upstream_id() -> None:
    d = decision(outcome="exact", age=0, phases={"auth": 0.1234, "exact": 2.0}, upstream_id="req-up")
    found = headers(d)
    assert found["x-refrain-cache"] == "exact"
    assert found["age"] == "0"
    assert found["server-timing"] == "auth;dur=0.12, exact;dur=2.00"
    assert found["x-refrain-upstream-id"] == "req-up"
    assert "age" not in headers(decision(outcome="miss"))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ((412, 0.0031, 2630.4), b"tokens=412; usd=0.0031; ms=2630"),
        ((412, None, 0.4), b"tokens=412; ms=0"),
        ((1, 0.0, 1.0), b"tokens=1; usd=0; ms=1"),
        ((1, 120.0, 1.0), b"tokens=1; usd=120; ms=1"),
        ((1, 1e-12, 1.0), b"tokens=1; usd=0; ms=1"),
        ((1, 0.00000001, 1.0), b"tokens=1; usd=0.00000001; ms=1"),
    ],
)
def test_what_was_saved(arguments: Any, value: bytes) -> None:
    assert saved_value(*arguments) == value


@some
@given(st.integers(0, 2**53), st.none() | st.floats(0, 1e6), st.floats(0, 1e9))
def test_what_was_saved_can_always_be_parsed(tokens: int, usd: float | None, ms: float) -> None:
    shown = saved_value(tokens, usd, ms).decode()
    match = re.fullmatch(r"tokens=(\d+);(?: usd=(\d+(?:\.\d+)?);)? ms=(\d+)", shown)
    assert match
    assert int(match[1]) == tokens
    assert (match[2] is None) == (usd is None)
    assert usd is None or abs(float(match[2]) - usd) <= 1e-8 + 1e-9 * usd


def test_a_reuse_takes_everything_from_the_entry() -> None:
    d = decision()
    assert reuse(d, make_entry(), START + 60.9) == 60
    assert (d.age, d.backend, d.upstream_id, d.status) == (60, "local", "up-1", 200)
    assert (d.served, d.saved, d.usd_saved, d.ms_saved) == (46, 46, 0.002, 5.5)
    assert headers(d)["x-refrain-saved"] == "tokens=46; usd=0.002; ms=6"
    assert reuse(d, make_entry(), START - 100) == d.age == 0


@pytest.mark.parametrize("usage", [Usage(12, 34), Usage()], ids=["usage reported", "no usage reported"])
def test_the_long_way_and_the_byte_identical_one_say_the_same(usage: Usage) -> None:
    """An upstream that reports no usage still took time, and the reuse saved it."""
    slot = Slot(make_entry(usage=usage, cost=Cost(5.5, 0.002)), START, 0.0)
    d = decision(outcome="exact")
    reuse(d, slot.entry, START)
    replay = Replay(
        generation=1, principal=Principal("a", "b"), credential=ANYBODY, endpoint="default", api="chat", model="m",
        form="json",
        expires=START + 1, until=START + 1, deadline=inf, slot=slot,
    )  # fmt: skip
    short = {name.decode(): value.decode() for name, value in replay.head}
    long = headers(d)
    for name in ("x-refrain-saved", "x-refrain-cache", "cache-control", "x-refrain-upstream-id"):
        assert long.get(name) == short.get(name), name
