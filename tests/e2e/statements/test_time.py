"""Statements 28 and 29: when an answer's life ends, and which lifetimes a configuration may hold."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import parse_config
from gateway.config.problems import ConfigError
from tests.support.gateway import Running, config_text, running
from tests.support.traffic import byte_identical, outcome, until, upstream_calls
from tests.support.upstream import Upstream

NOON = 1_750_000_000.0  # a whole number: adding 60 and 59.999 to it is exact enough to tell a millisecond

# POSIX spelling, whose sign is the other way round: +14, -12.
ZONES = pytest.mark.parametrize("zone", ["UTC0", "XXX-14", "XXX+12"], ids=["UTC", "+14", "-12"])


@pytest.fixture
def in_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def gw(request: pytest.FixtureRequest, up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path_factory.mktemp('store')}/cache.db"
    with running(config_text(up.url, store=url)) as gateway:
        yield gateway


def asking(gw: Running, prompt: str, way: str) -> Any:
    """The same request by the way of identical bytes, or by another spelling of it, which has to be parsed."""
    body: dict[str, Any] = {"path": "/short/v1"}
    if way == "parsed":
        body["user"] = str(time.perf_counter())
    return gw.chat(prompt, **body)


@ZONES
@pytest.mark.usefixtures("in_zone")
@pytest.mark.parametrize("way", ["same bytes", "parsed"])
@pytest.mark.parametrize(("after", "expected"), [(59.999, "exact"), (60.0, "miss"), (60.001, "miss")])
def test_statement_28_expiry_is_one_instant(
    gw: Running, up: Upstream, prompt: str, way: str, after: float, expected: str
) -> None:
    """Statement 28: fresh until just before the TTL, in every time zone and by every way to the entry."""
    gw.clock.frozen = NOON
    outcome(asking(gw, prompt, way))
    gw.clock.frozen = NOON + 30
    assert outcome(asking(gw, prompt, way)) == "exact"
    gw.clock.frozen = NOON + after
    with upstream_calls(up, expected == "miss"):
        last = asking(gw, prompt, way)
    assert outcome(last) == expected
    assert last.headers.get("age", "0") == ("59" if expected == "exact" else "0")
    if expected == "exact":
        assert byte_identical(gw, last) == (way != "parsed")


@pytest.mark.parametrize("way", ["same bytes", "parsed"])
def test_statement_28_hits_do_not_extend_a_life(gw: Running, up: Upstream, prompt: str, way: str) -> None:
    """Statement 28: however often it is used, an answer lives from its making, and its ttl counts down."""
    gw.clock.frozen = NOON
    outcome(asking(gw, prompt, way))
    for seconds in range(5, 60, 5):
        gw.clock.frozen = NOON + seconds
        hit = asking(gw, prompt, way)
        assert outcome(hit) == "exact"
        assert hit.headers["age"] == str(seconds)
        assert f"ttl={60 - seconds}" in hit.headers["cache-status"]
    gw.clock.frozen = NOON + 60
    with upstream_calls(up, 1):
        assert outcome(asking(gw, prompt, way)) == "miss"


def test_statement_28_a_clock_that_steps_back_gives_no_negative_age(gw: Running, prompt: str) -> None:
    """Statement 28: Age is never negative."""
    gw.clock.frozen = NOON
    outcome(asking(gw, prompt, "same bytes"))
    gw.clock.frozen = NOON - 3600
    for way in ("same bytes", "parsed"):
        assert int(asking(gw, prompt, way).headers.get("age", "0")) == 0


def test_statement_28_the_policy_of_the_day_holds(up: Upstream, tmp_path: Path, prompt: str) -> None:
    """Statement 28: the life ends at the earlier of the stored expiry and today's TTL; longer TTLs revive nothing."""

    def text(ttl: str, mark: str) -> str:
        base = config_text(up.url, extra=f"  {mark}: {{mode: stream}}\n")
        return base.replace("exact: {ttl: 60s}", f"exact: {{ttl: {ttl}}}")

    path = tmp_path / "refrain.yaml"

    def change(ttl: str, mark: str) -> None:
        path.write_text(text(ttl, mark))
        until(lambda: gw.admin("GET", f"/{mark}/v1/models").status_code == 200)

    with running(text("60s", "first"), path=path) as gw:
        gw.clock.frozen = NOON
        outcome(asking(gw, prompt, "same bytes"))
        gw.clock.frozen = NOON + 40
        assert byte_identical(gw, asking(gw, prompt, "same bytes"))
        change("30s", "second")
        with upstream_calls(up, 1):
            assert outcome(asking(gw, prompt, "same bytes")) == "miss"
        change("10m", "third")
        gw.clock.frozen = NOON + 69.999
        assert outcome(asking(gw, prompt, "same bytes")) == "exact"
        gw.clock.frozen = NOON + 70  # made at +40 with 30 s to live
        with upstream_calls(up, 1):
            assert outcome(asking(gw, prompt, "same bytes")) == "miss"


def configured(ttl: str, field: str = "ttl") -> Any:
    text = f"""
backends: {{fake: {{kind: remote, base_url: "http://127.0.0.1:1/v1"}}}}
models: {{"*": fake}}
endpoints: {{e: {{cache: {{exact: {{{field}: {ttl}}}}}}}}}
"""
    return parse_config(text, dict(os.environ)).endpoints["e"].cache.exact


REFUSED = [
    *("0", "0s", "-1", "-60s", '"-60s"', ".nan", ".inf", "-.inf", '"60"', "60", "60.5", "1e20", "1e20s", '"1e20s"'),
    *("99999999999999999999d", "3651d", "null", '""', "[60s]", "{s: 60}", "true", "60S", '"60 s"', "1.5h", '"٦٠s"'),
]


@pytest.mark.parametrize("ttl", REFUSED)
def test_statement_29_a_ttl_that_could_mean_for_ever_is_refused_by_name(ttl: str) -> None:
    """Statement 29: zero, negative, NaN, unit-less, absurd TTLs are refused at start with the path of the field."""
    with pytest.raises(ConfigError) as refused:
        configured(ttl)
    assert "endpoints.e.cache.exact.ttl" in str(refused.value)


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [
        ("60s", 60),
        ('"60s"', 60),
        ("250ms", 0.25),
        ("15m", 900),
        ("24h", 86_400),
        ("7d", 604_800),
        ("3650d", 315_360_000),
    ],
)
def test_statement_29_a_ttl_with_a_unit_is_taken(ttl: str, seconds: float) -> None:
    """Statement 29: "60s" means sixty seconds."""
    assert configured(ttl).ttl == seconds


@pytest.mark.parametrize("field", ["stale_while_revalidate", "stale_if_error"])
@pytest.mark.parametrize("value", ["-1", "-1s", ".nan", "60", "1e20", "3651d"])
def test_statement_29_the_other_lifetimes_too(field: str, value: str) -> None:
    """Statement 29: what keeps stale answers is held to the same rules."""
    with pytest.raises(ConfigError) as refused:
        configured(value, field)
    assert f"endpoints.e.cache.exact.{field}" in str(refused.value)


@pytest.mark.parametrize("off", ["off", '"off"', "false"])
def test_statement_29_off_is_a_word_of_its_own(off: str) -> None:
    """Statement 29: no caching is written `off`."""
    text = f"""
backends: {{fake: {{kind: remote, base_url: "http://127.0.0.1:1/v1"}}}}
models: {{"*": fake}}
endpoints: {{e: {{cache: {{exact: {off}}}}}}}
"""
    assert parse_config(text, {}).endpoints["e"].cache.exact is None
