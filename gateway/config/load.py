"""From a file (or none) to a Config, or to everything that is wrong with it at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.config.document import MAX_BYTES, expand, parse
from gateway.config.models import Config
from gateway.config.problems import ConfigError, Problem, from_validation

DEFAULT_PATH = Path("refrain.yaml")


def find_config(option: Path | None) -> Path | None:
    """The file to read: the one asked for, else refrain.yaml where it exists, else none."""
    if option is not None:
        return option
    return DEFAULT_PATH if DEFAULT_PATH.is_file() else None


def load_config(
    path: Path | None, env: Mapping[str, str] = os.environ, *, server: Mapping[str, object] | None = None
) -> Config:
    """The configuration in `path`; None: the one for no file at all. `server` has settings of that section that win
    over the file (the command line's). Raises ConfigError."""
    return parse_config("" if path is None else read_config(path), env, server=server)


def read_config(path: Path) -> str:
    """The text of the file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError([Problem("", f"the file has more than {MAX_BYTES} bytes")])
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([Problem("", f"the file cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem("", "the file is not UTF-8 text")]) from None


def parse_config(text: str, env: Mapping[str, str], *, server: Mapping[str, object] | None = None) -> Config:
    """The configuration in the text of a file; see load_config. Raises ConfigError."""
    data: Any = expand(parse(text), env)
    if server and isinstance(data, dict) and isinstance(data.setdefault("server", {}), dict):
        data["server"] = {**data["server"], **server}
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(from_validation(error, Config)) from None
