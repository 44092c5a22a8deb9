import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli import app


@pytest.fixture
def refrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The command line in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def refrain(*args: str, **env: str) -> Result:
        return CliRunner().invoke(app, args, env=env)

    return refrain


def test_no_file(refrain) -> None:
    result = refrain("check")
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["models"] == {"*": "local"}
    assert result.stderr == "no file, so the defaults: ok\n"


def test_the_file_of_the_working_directory(refrain) -> None:
    Path("refrain.yaml").write_text("server: {port: 9, workers: 2}")
    result = refrain("check")
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["server"]["port"] == 9
    assert result.stderr == "note: server.workers: accepted, but does nothing yet\nrefrain.yaml: ok\n"


def test_a_broken_file(refrain) -> None:
    Path("other.yaml").write_text("server: {port: x}\nendpoints: {a: {cache: {exact: {ttl: 60}}}}")
    result = refrain("check", "--config", "other.yaml")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "other.yaml cannot be used:",
        "server.port: must be a whole number",
        "endpoints.a.cache.exact.ttl: needs a number with a unit: write it like 250ms, 60s, 15m, 24h or 7d",
    ]


def test_a_file_that_is_not_there(refrain) -> None:
    result = refrain("check", "--config", "none.yaml")
    assert result.exit_code == 1
    assert "cannot be read: No such file" in result.stderr


def test_json(refrain) -> None:
    Path("refrain.yaml").write_text("server: {workers: 2}")
    result = refrain("check", "--json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    assert shown["valid"] is True
    assert shown["config"]["server"]["workers"] == 2
    assert shown["notes"] == ["server.workers: accepted, but does nothing yet"]


def test_json_of_a_broken_file(refrain) -> None:
    Path("refrain.yaml").write_text("server: {port: x}")
    result = refrain("check", "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    assert json.loads(result.stdout) == {
        "valid": False,
        "problems": [{"path": "server.port", "message": "must be a whole number"}],
    }


def test_secrets_are_masked(refrain) -> None:
    Path("refrain.yaml").write_text(
        "backends: {up: {kind: remote, base_url: 'http://x', api_key: '${UP_KEY}'}}\n"
        "auth: {keys: [{key: '${MY_KEY}', tenant: t, user: u}]}"
    )
    for args in (["check"], ["check", "--json"]):
        result = refrain(*args, UP_KEY="CANARY-1", MY_KEY="CANARY-2")
        assert result.exit_code == 0
        assert "***" in result.stdout
        assert "CANARY" not in result.output
