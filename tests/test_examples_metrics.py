"""The deploy files for Prometheus and Grafana: what they ask for is there, and what they contain is valid."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.exposition import needs_promtool, promtool
from tests.support.metrics_page import documented
from tests.support.promql import dashboard_queries, filled, unknown

ROOT = Path(__file__).parent.parent
PROMETHEUS = ROOT / "examples/prometheus"
GRAFANA = ROOT / "examples/grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards/refrain.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"][0]["rules"]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
ALERTS_TEST = ROOT / "tests/alerts.test.yml"
ADDED = ("prometheus", "grafana")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("rate(refrain_nothing_total[5m])", "refrain_nothing_total"),
        ('refrain_requests_total{endpoint="a", model="b"}', "refrain_requests_total{model}"),
        ("refrain_request_seconds", "refrain_request_seconds"),
        ("refrain_requests_total_count", "refrain_requests_total_count"),
        ("sum by (tenant) (refrain_requests_total)", "tenant"),
        ("sum by (le) (refrain_request_seconds_sum)", "le"),
        ("refrain_flights{oops}", "refrain_flights{oops}"),
    ],
)
def test_the_check_finds_what_is_not_exposed(query: str, found: str) -> None:
    assert list(unknown(query, documented())) == [found]


# The dashboard


def test_the_dashboard_asks_for_what_is_exposed() -> None:
    metrics = documented()
    for panel, query in dashboard_queries(DASHBOARD):
        assert list(unknown(query, metrics)) == [], panel


def test_the_dashboard_shows_nearly_everything() -> None:
    """What is left out is on purpose: it says little over time."""
    asked = " ".join(query for _, query in dashboard_queries(DASHBOARD))
    left = {name for name in documented() if not re.search(rf"\b{name}(_bucket)?\b", asked)}
    assert left == {
        *("refrain_decisions", "refrain_semantic_ready", "refrain_semantic_bytes"),
        *("refrain_model_overhead_seconds", "refrain_model_prefill_tokens_per_second"),
        *("refrain_process_virtual_memory_bytes", "refrain_process_open_fds", "refrain_process_max_fds"),
        "refrain_process_start_time_seconds",
    }


@needs_promtool
def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{n}", "expr": filled(query)} for n, (_, query) in enumerate(dashboard_queries(DASHBOARD))
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_the_dashboard_can_be_imported_anywhere() -> None:
    """Its data source is a variable, and it has no number of one installation."""
    sources = {json.dumps(p["datasource"]) for p in DASHBOARD["panels"] if p["type"] != "row"}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
    variables = {v["name"]: v["type"] for v in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "endpoint": "query"}
    assert "id" not in DASHBOARD
    assert DASHBOARD["schemaVersion"] >= 41


def test_the_panels_have_their_places() -> None:
    panels = DASHBOARD["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert {"expr", "refId"} <= panel["targets"][0].keys(), panel["title"]


# Prometheus


def test_the_alerts_ask_for_what_is_exposed() -> None:
    metrics = documented()
    for rule in RULES:
        assert list(unknown(rule["expr"], metrics)) == [], rule["alert"]


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert all(text.endswith(".") for text in rule["annotations"].values()), rule["alert"]


def test_there_is_an_alert_for_everything_that_may_go_wrong() -> None:
    assert {rule["alert"] for rule in RULES} == {
        *("RefrainDown", "RefrainBackendDown", "RefrainUpstreamFailing", "RefrainErrorsHigh", "RefrainStoreUnhealthy"),
        *("RefrainWritesDropped", "RefrainHitShareDropped", "RefrainWrongAnswersReported", "RefrainEventLoopLate"),
        "RefrainRetrieverDown",
    }


@needs_promtool
def test_promtool_accepts_the_alerts_and_the_configuration(tmp_path: Path) -> None:
    promtool("check", "rules", str(PROMETHEUS / "alerts.yml"))
    (tmp_path / "key").write_text("rf-key")
    (tmp_path / "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
    config = (PROMETHEUS / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(config.replace("/run/secrets/refrain_key", str(tmp_path / "key")))
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


@needs_promtool
def test_the_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", str(ALERTS_TEST))


def test_every_alert_is_made_to_fire_there() -> None:
    tests = ALERTS_TEST.read_text()
    assert all(f'{{alertname="{rule["alert"]}"}}' in tests for rule in RULES)


def test_prometheus_scrapes_the_gateway_with_its_key() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "refrain"  # the alerts name it
    assert job["static_configs"] == [{"targets": ["gateway:8080"]}]
    assert job["authorization"] == {"credentials_file": "/run/secrets/refrain_key"}
    assert config["rule_files"] == ["alerts.yml"]


# Compose


def test_metrics_are_a_profile_of_their_own() -> None:
    services = COMPOSE["services"]
    assert {name for name, service in services.items() if "profiles" not in service} == {"gateway"}
    for name in ADDED:
        assert services[name]["profiles"] == ["metrics"]


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_is_pinned_and_listens_on_loopback_only(name: str) -> None:
    service = COMPOSE["services"][name]
    assert re.fullmatch(r"(prom/prometheus:v|grafana/grafana:)\d+\.\d+\.\d+", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service


@pytest.mark.parametrize("name", ADDED)
def test_the_key_reaches_them_as_a_secret_only(name: str) -> None:
    service = COMPOSE["services"][name]
    assert COMPOSE["secrets"] == {"refrain_key": {"environment": "REFRAIN_KEY"}}
    assert service["secrets"] == ["refrain_key"]
    assert not any("REFRAIN_KEY" in str(value) for value in service.get("environment", {}).values())
    assert not service.get("read_only")  # Compose cannot write such a secret then


@pytest.mark.parametrize("name", ADDED)
def test_what_is_mounted_exists(name: str) -> None:
    for volume in COMPOSE["services"][name]["volumes"]:
        source, _, target = volume.removesuffix(":ro").partition(":")
        if source.startswith("."):
            assert (ROOT / source).is_dir(), source
            assert volume.endswith(":ro"), "an example is not to be changed by what reads it"
        else:
            assert source in COMPOSE["volumes"]
        assert target.startswith("/")


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/refrain.yml").read_text())["providers"]
    mounts = dict(v.removesuffix(":ro").split(":")[::-1] for v in COMPOSE["services"]["grafana"]["volumes"])
    assert mounts[provider["options"]["path"]] == "./examples/grafana/dashboards"
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/refrain.json"
