"""`GET /admin/overview`: figures that add up, over time, and only one's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import ADMIN, ALICE, EVE, Running, config_text, running
from tests.support.traffic import error_of, until
from tests.support.upstream import Upstream

START = 1_800_000_000.0
DAY = 86_400
EXTRA = "prices: {test-model: {input: 1.0, output: 2.0}}\n"
SHAPE = {
    *("at", "range", "totals", "outcomes", "series", "endpoints", "tenants", "models"),
    *("flights", "semantic", "prefix", "stores", "backends", "choices", "retrievers", "gateway"),
}
ANSWER = 18  # tokens of every scripted answer


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    with running(config_text(up.url, extra=EXTRA)) as gateway:
        gateway.clock.frozen = START
        yield gateway


def overview(gw: Running, key: str = ADMIN, **query: Any) -> dict[str, Any]:
    response = gw.admin("GET", "/admin/overview", key=key, params=query)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "private, no-store"
    return dict(response.json())


def written(gw: Running) -> None:
    """What was asked before has its time in the books: that of the writing, which a look brings about."""
    overview(gw)


def traffic(gw: Running) -> None:
    """Two misses and three hits for acme, one miss of globex, one refusal."""
    for text in ("a", "a", "b", "a", "b"):
        gw.chat(text)
    gw.chat("c", key=EVE, path="/rr/v1")
    assert gw.chat("d", headers={"cache-control": "only-if-cached"}).status_code == 504


def test_the_figures_of_a_range(gw: Running) -> None:
    traffic(gw)
    out = overview(gw, range="15m")
    assert out.keys() == SHAPE
    assert out["at"] == START
    assert out["range"] == {"from": START - 14 * 60, "to": START + 60, "step": 60}
    totals = out["totals"]
    assert (totals["requests"]["exact"], totals["requests"]["miss"]) == (3, 4)
    assert totals["errors"] == 1
    tokens, usd = totals["tokens"], totals["usd"]
    assert (tokens["saved"], tokens["consumed"], tokens["served"]) == (3 * ANSWER, 3 * ANSWER, 6 * ANSWER)
    for kind in (tokens, usd):
        assert kind["served"] + kind["unserved"] == pytest.approx(kind["consumed"] + kind["saved"])
    assert usd["saved"] > 0
    assert totals["hit_rate"] == pytest.approx(3 / 7)
    assert totals["ms_saved"] > 0
    exact = out["outcomes"]["exact"]
    assert exact["requests"] == 3
    assert 0 < exact["p50"] <= exact["p95"] <= exact["p99"] < out["outcomes"]["miss"]["p99"]
    assert exact["first_p50"] is not None


def test_the_series_adds_up_to_the_totals(gw: Running) -> None:
    traffic(gw)
    written(gw)
    gw.clock.frozen = START + 300
    traffic(gw)
    out = overview(gw, range="15m")
    series, totals = out["series"], out["totals"]
    assert len(series["time"]) == 15
    for outcome, counts in series["requests"].items():
        assert sum(counts) == totals["requests"][outcome]
        assert [n for n, count in enumerate(counts) if count][-1] == 14
    assert sum(series["tokens"]["saved"]) == totals["tokens"]["saved"]
    assert sum(series["usd"]["consumed"]) == pytest.approx(totals["usd"]["consumed"])
    first = series["time"].index(START)
    assert series["requests"]["miss"][first] == 4
    assert sum(row["requests"] for row in out["endpoints"]) == sum(totals["requests"].values())
    by_name = {row["name"]: row for row in out["tenants"]}
    assert by_name["globex"]["requests"] == 2
    assert by_name["acme"]["hits"] + by_name["globex"]["hits"] == totals["requests"]["exact"]


@pytest.mark.parametrize(
    ("name", "after", "seen"),
    [
        ("15m", 13 * 60, True),
        ("15m", 15 * 60, False),
        ("1h", 59 * 60, True),
        ("1h", 61 * 60, False),
        ("6h", 5.8 * 3600, True),
        ("6h", 6.1 * 3600, False),
        ("24h", 23.8 * 3600, True),
        ("24h", 24.1 * 3600, False),
        ("7d", 6.9 * DAY, True),
        ("7d", 7.1 * DAY, False),
        ("30d", 29 * DAY, True),
        ("30d", 31 * DAY, False),
        ("all", 0, True),
        ("all", 1000 * DAY, True),
    ],
)
def test_a_range_has_what_lies_in_it(gw: Running, name: str, after: float, seen: bool) -> None:
    gw.chat("a")
    written(gw)
    gw.clock.frozen = START + after
    out = overview(gw, range=name)
    assert out["totals"]["requests"] == ({"miss": 1} if seen else {})
    assert sum(map(sum, out["series"]["requests"].values())) == seen
    assert out["series"]["time"][-1] <= START + after < out["range"]["to"]


def test_a_look_after_a_look_sees_what_is_new(gw: Running) -> None:
    """The past is kept between two looks, the present is not."""
    for n in range(3):
        gw.chat(f"{n}")
        assert overview(gw)["totals"]["requests"] == {"miss": n + 1}
    gw.clock.frozen = START + 61
    gw.chat("0")
    assert overview(gw)["totals"]["requests"] == {"miss": 3, "exact": 1}
    gw.clock.frozen = START + 60 * 60
    assert overview(gw)["totals"]["requests"] == {"exact": 1}


def test_by_endpoint_and_tenant(gw: Running) -> None:
    traffic(gw)
    assert overview(gw, endpoint="rr")["totals"]["requests"] == {"miss": 1}
    assert [row["name"] for row in overview(gw, endpoint="rr")["tenants"]] == ["globex"]
    assert overview(gw, tenant="globex")["totals"]["requests"] == {"miss": 1}
    assert sum(overview(gw, tenant="acme")["totals"]["requests"].values()) == 6
    assert overview(gw, tenant="acme", endpoint="rr")["totals"]["requests"] == {}
    assert overview(gw, tenant="", endpoint="")["totals"] == overview(gw)["totals"]
    for unknown in ({"endpoint": "nowhere"}, {"tenant": "nobody"}, {"tenant": "' OR 1=1 --"}):
        assert overview(gw, **unknown)["totals"]["requests"] == {}
    choices = overview(gw, endpoint="rr", tenant="acme")["choices"]
    assert {"default", "rr", "careful"} <= set(choices["endpoints"])
    assert choices["tenants"] == ["acme", "globex", "ops"]


def test_a_query_that_means_nothing(gw: Running) -> None:
    for range_ in ("1w", "60", "1H", "15m ", "all,1h"):
        assert error_of(gw.admin("GET", "/admin/overview", params={"range": range_}), 400)["param"] == "range"


def test_the_state_of_the_gateway(gw: Running) -> None:
    gw.chat("a")
    out = overview(gw)
    assert out["flights"] == {"open": 0, "listening": 0, "joined": 0}
    assert out["stores"]["memory"]["entries"] == 1
    assert out["stores"]["memory"].keys() >= {"bytes", "max_bytes", "evicted", "healthy"}
    assert out["semantic"]["state"] == "starting"
    similarities = out["semantic"]["similarities"]
    assert len(similarities["bounds"]) == len(similarities["hit"]) == len(similarities["miss"])
    assert out["backends"]["fake"]["state"] == "ready"
    assert set(out["backends"]["fake"]["models"]) <= {"test-model"}
    assert out["gateway"]["uptime"] >= 0
    assert out["gateway"]["version"]
    assert out["gateway"]["loop_lag_ms"] >= 0
    assert out["prefix"]["input"] == 11


# Whose figures


def test_a_tenant_admin_has_the_figures_of_its_tenant(gw: Running) -> None:
    traffic(gw)
    out = overview(gw, EVE)
    assert out.keys() == SHAPE
    assert out["totals"]["requests"] == {"miss": 1}
    assert [row["name"] for row in out["tenants"]] == ["globex"]
    assert [row["name"] for row in out["endpoints"]] == ["rr"]
    assert out["choices"] == {"endpoints": ["rr"], "tenants": ["globex"]}
    assert out == {**overview(gw, EVE, tenant="globex"), "at": out["at"]}
    # What concerns everybody's gateway.
    assert out["stores"] == out["semantic"] == {}
    assert out["flights"] == {"open": None, "listening": None, "joined": 0}
    assert out["backends"] == {"fake": {"state": "ready", "detail": None, "models": {}}}
    assert out["gateway"].keys() == {"version", "uptime", "loop_lag_ms"}
    assert out["gateway"]["uptime"] is out["gateway"]["loop_lag_ms"] is None
    assert "acme" not in str(out)


def test_nothing_is_left_from_what_an_admin_saw(gw: Running) -> None:
    """Views are kept between looks: never for somebody else."""
    traffic(gw)
    assert sum(overview(gw, tenant="globex")["totals"]["requests"].values()) == 1
    assert overview(gw, tenant="globex")["stores"]
    assert overview(gw, EVE)["stores"] == {}
    assert sum(overview(gw)["totals"]["requests"].values()) == 7
    assert sum(overview(gw, EVE)["totals"]["requests"].values()) == 1


def test_nobody_else_has_any(gw: Running) -> None:
    traffic(gw)
    error_of(gw.admin("GET", "/admin/overview", key=ALICE), 403)
    error_of(gw.client.get("/admin/overview"), 401)
    for query in ({"tenant": "acme"}, {"tenant": "acme", "endpoint": "rr"}, {"tenant": "ops"}):
        error_of(gw.admin("GET", "/admin/overview", key=EVE, params=query), 403)
    twice = gw.admin("GET", "/admin/overview?tenant=globex&tenant=acme", key=EVE)
    assert twice.status_code == 403


def test_the_figures_outlive_the_process(up: Upstream, tmp_path: Path) -> None:
    text = config_text(up.url, store=f"sqlite:///{tmp_path}/cache.db")
    with running(text) as gw:
        gw.clock.frozen = START
        traffic(gw)
        before = overview(gw, range="24h")
    with running(text) as gw:
        gw.clock.frozen = START + 1
        until(lambda: overview(gw, range="24h")["totals"] == before["totals"])
        assert overview(gw, range="24h")["series"] == before["series"]
