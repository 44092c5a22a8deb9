import subprocess
import sys
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli import app

ROOT = Path(__file__).parents[3]


def test_help_names_the_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in ("serve", "engine", "ask", "check", "keys"):
        assert command in result.stdout


def test_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout.strip() == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_heavy_packages_are_imported_by_the_commands_that_need_them() -> None:
    code = "import sys, gateway.cli; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"pydantic", "fastapi", "uvicorn", "httpx", "torch", "transformers", "yaml", "structlog"}
    assert heavy & set(loaded.stdout.split()) == set()


def test_the_command_of_the_package() -> None:
    code = "from gateway.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "keys", "new"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rf-")
