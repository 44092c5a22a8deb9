"""From a file (or none) to a Config, or to everything that is wrong with it at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.config.document import expand, parse, read
from gateway.config.models import Config
from gateway.config.price_file import with_prices
from gateway.config.problems import ConfigError, from_validation

DEFAULT_PATH = Path("refrain.yaml")
PATHS = ("path", "acl")
"""Settings of a folder retriever that are paths."""


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
    if path is None:
        return parse_config("", env, server=server)
    return parse_config(read(path), env, server=server, folder=path.parent)


def parse_config(
    text: str, env: Mapping[str, str], *, server: Mapping[str, object] | None = None, folder: Path = Path()
) -> Config:
    """The configuration in the text of a file that lies in `folder`; see load_config. Raises ConfigError."""
    data: Any = expand(parse(text), env)
    if server and isinstance(data, dict) and isinstance(data.setdefault("server", {}), dict):
        data["server"] = {**data["server"], **server}
    data, problems = with_prices(_placed(data, folder), env, folder)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError([*from_validation(error, Config), *problems]) from None
    if problems:
        raise ConfigError(problems)
    return config


def _placed(data: Any, folder: Path) -> Any:
    """The data with the paths of retrievers seen from the file's folder, not from where the gateway was started."""
    retrievers = data.get("retrievers") if isinstance(data, dict) else None
    if not isinstance(retrievers, dict):
        return data
    placed = {name: _in(folder, settings) for name, settings in retrievers.items()}
    return {**data, "retrievers": placed}


def _in(folder: Path, settings: Any) -> Any:
    if not isinstance(settings, dict) or settings.get("kind") != "folder":
        return settings
    return {k: str(folder / v) if k in PATHS and isinstance(v, str) and v.strip() else v for k, v in settings.items()}
