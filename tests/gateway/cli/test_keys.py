import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.config import ApiKey, digest_key, hash_key, load_config


def keys_new(*args: str) -> Result:
    return CliRunner().invoke(app, ["keys", "new", *args])


def test_the_line_works_in_a_configuration(tmp_path: Path) -> None:
    result = keys_new("--tenant", "acme: 1", "--user", "yes", "--permissions", "hr, finance", "--role", "admin")
    assert result.exit_code == 0
    token, *rest = result.stdout.splitlines()
    path = tmp_path / "refrain.yaml"
    path.write_text(f"auth:\n  keys:\n{rest[-1]}\n")
    (key,) = load_config(path, {}).auth.keys
    assert key.digest == digest_key(token)
    assert (key.tenant, key.user, key.permissions, key.role) == ("acme: 1", "yes", {"hr", "finance"}, "admin")


def test_the_key_is_printed_once() -> None:
    result = keys_new()
    assert result.output.count(result.stdout.splitlines()[0]) == 1


def test_json() -> None:
    shown = json.loads(keys_new("--json", "--user", "alice").stdout)
    assert shown["entry"]["hash"] == hash_key(shown["key"])
    assert ApiKey.model_validate(shown["entry"]).user == "alice"


def test_two_keys_never_share_a_user_by_accident() -> None:
    first, second = (json.loads(keys_new("--json").stdout)["entry"] for _ in range(2))
    assert first["user"] != second["user"]
    assert first["tenant"] == second["tenant"] == "default"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--role", "root"], "Invalid value for '--role'"),
        (["--tenant", ""], "--tenant: must be text"),
        (["--permissions", "a b"], "--permissions.0: must be one word"),
    ],
)
def test_what_is_refused(args: list[str], message: str) -> None:
    result = keys_new(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "rf-" not in result.output
