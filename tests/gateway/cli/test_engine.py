"""The options of `refrain engine`, as far as they are refused or handed on without a model."""

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app


def engine(*args: str) -> Result:
    return CliRunner().invoke(app, ["engine", *args])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Say where to listen"),
        (["--port", "1", "--uds", "x"], "Say where to listen"),
        (["--port", "0", "--kv-memory", "1"], "--kv-memory needs a number with a unit: write it like 64KiB"),
        (["--port", "0", "--quantize", "int2"], "Invalid value for '--quantize'"),
        (["--port", "0", "--precision", "fp8"], "Invalid value for '--precision'"),
        (["--port", "0", "--max-running", "0"], "Invalid value for '--max-running'"),
        (["--model", "x", "eval", "--data", "y"], "--model belongs behind `eval`."),
        (["eval"], "Missing option '--data'"),
        (["other"], "No such command 'other'"),
    ],
)
def test_what_is_refused(args: list[str], message: str) -> None:
    result = engine(*args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_model_that_is_not_there() -> None:
    result = engine("--port", "0", "--model", "nope.gguf", "--quantize", "int4", "--kv-memory", "64MiB")
    assert result.exit_code == 1


def test_help_names_the_memory_and_the_command() -> None:
    result = engine("--help")
    assert result.exit_code == 0
    assert "1024MiB" in result.stdout
    assert "eval" in result.stdout
