"""A real Prometheus, with the example's configuration, on a real gateway: it may come in, understands the page, and
answers every query of the dashboard and of the alerts."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.gateway import ADMIN, ALICE, Running, config_text, running
from tests.support.metrics_page import ROOT
from tests.support.promql import dashboard_queries, filled
from tests.support.semantic import ASKED, REWORDED, Room, by_wording
from tests.support.traffic import error_of, fixed, until
from tests.support.upstream import Reply, Upstream, answer_with, chat_answer, numbered

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None and not os.environ.get("CI"), reason="Prometheus is not installed"),
]
Json = dict[str, Any]
EXAMPLES = ROOT / "examples/prometheus"
CACHED = {
    **{"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    "prompt_tokens_details": {"cached_tokens": 8},
}
QUIET = {"Restarts", "Learnt speed"}
"""May have nothing to show: there was none, or it cannot be measured on scripted answers."""
RARE = ("refrain_backend_refused_total", "refrain_fallbacks_total")
"""Nothing is refused here, and nothing falls back."""


@contextmanager
def prometheus(folder: Path, gateway: str, key: str) -> Iterator[httpx.Client]:
    """The example's configuration, with other addresses and in a hurry."""
    config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (folder / "key").write_text(key)
    (job,) = config["scrape_configs"]
    job["authorization"]["credentials_file"] = str(folder / "key")
    job["static_configs"] = [{"targets": [gateway.removeprefix("http://")]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(EXAMPLES / "alerts.yml", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(PROMETHEUS), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10, trust_env=False) as client:
                yield client
        finally:
            process.terminate()
            process.wait(20)


def scraped(client: httpx.Client) -> Json:
    """The gateway as a target, once it has been scraped."""

    def targets() -> list[Json]:
        try:
            answer = client.get("/targets")
        except httpx.TransportError:  # it is starting
            return []
        found: list[Json] = answer.json()["data"]["activeTargets"] if answer.status_code == 200 else []
        return [t for t in found if t["health"] != "unknown"]

    (target,) = until(targets, timeout=60)
    return dict(target)


def traffic(gw: Running, up: Upstream, round: int) -> None:
    for stream in (False, True):
        gw.chat(f"round {round} {stream}", stream=stream)
        gw.chat(f"round {round} {stream}", stream=stream)
    room = Room(gw)
    room.told(ASKED)
    room.ask(REWORDED)
    up.script = answer_with(chat_answer("known", usage=CACHED))
    gw.chat(f"round {round} begins alike")
    up.script = fixed(Reply([b"{}"], status=500))
    gw.chat(f"round {round} fails")
    up.script = numbered


def test_prometheus_has_an_answer_for_every_panel_and_no_alert_for_a_healthy_gateway(
    up: Upstream, tmp_path: Path
) -> None:
    dashboard = json.loads((ROOT / "examples/grafana/dashboards/refrain.json").read_text())
    extra = "prices: {test-model: {input: 1.0, output: 2.0}}\n"
    extra += 'retrievers: {kb: {kind: http, url: "http://127.0.0.1:9/search"}}\n'
    with (
        running(config_text(up.url, extra=extra), embedders=lambda _: by_wording()) as gw,
        prometheus(tmp_path, gw.url, ADMIN) as client,
    ):
        assert (target := scraped(client))["health"] == "up", target["lastError"]
        end = time.monotonic() + 8
        round = 0
        while time.monotonic() < end:
            traffic(gw, up, round := round + 1)
            time.sleep(0.5)
        time.sleep(2)
        for panel, query in dashboard_queries(dashboard):
            answer = client.get("/query", params={"query": filled(query, window="10s")}).json()
            assert answer["status"] == "success", (panel, answer)
            quiet = panel in QUIET or any(metric in query for metric in RARE)
            assert answer["data"]["result"] or quiet, f"{panel} shows nothing: {query}"
            assert not answer.get("warnings"), (panel, answer["warnings"])
        (group,) = client.get("/rules").json()["data"]["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
        assert {rule["name"] for rule in group["rules"] if rule["state"] == "firing"} == set()


def test_a_key_without_the_role_shows_in_prometheus(up: Upstream, tmp_path: Path) -> None:
    with running(config_text(up.url)) as gw:
        error_of(gw.admin("GET", "/metrics", key=ALICE), 403)
        with prometheus(tmp_path, gw.url, ALICE) as client:
            target = scraped(client)
    assert target["health"] == "down"
    assert "403" in target["lastError"]
