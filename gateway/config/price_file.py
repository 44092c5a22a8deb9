"""`prices` may be the path of a file that holds the same map, so that a list from elsewhere can be used as it comes."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.config.document import expand, parse, read
from gateway.config.fields import FrozenMap, Section, Text
from gateway.config.models import Price
from gateway.config.problems import ConfigError, Problem, from_validation

SUFFIXES = (".yaml", ".yml", ".json")


class _Prices(Section):
    prices: FrozenMap[Text, Price]


def with_prices(data: Any, env: Mapping[str, str], folder: Path) -> tuple[Any, list[Problem]]:
    """The data of a configuration with the map in place of the path (from `folder` on), and what is wrong with it."""
    written = data.get("prices") if isinstance(data, dict) else None
    if not isinstance(written, str):
        return data, []
    path = folder / written
    if not _is_file(path):
        # What is not even named like one is perhaps a secret in the wrong place: it is not repeated.
        meant = path.suffix in SUFFIXES
        text = f"there is no file {written}" if meant else "must be a mapping of models, or the path of a file with one"
        return {**data, "prices": {}}, [Problem("prices", text)]
    try:
        return {**data, "prices": _read(path, env)}, []
    except ConfigError as error:
        place = f"prices ({path.name})"
        return {**data, "prices": {}}, [Problem(place, str(problem)) for problem in error.problems]


@lru_cache(maxsize=2)
def price_path(text: str, folder: Path) -> Path | None:
    """The file that a configuration's text names, if it does, for whoever wants to know of its changes."""
    try:
        data = parse(text)
    except ConfigError:
        return None
    written = data.get("prices") if isinstance(data, dict) else None
    return folder / written if isinstance(written, str) else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a zero byte
        return False


def _read(path: Path, env: Mapping[str, str]) -> Any:
    data = expand(parse(read(path)), env)
    if not data:
        raise ConfigError([Problem("", "the file is empty")])
    try:
        _Prices.model_validate({"prices": data})
    except ValidationError as error:
        found = from_validation(error, _Prices)
        raise ConfigError(Problem(p.path.partition(".")[2], p.message) for p in found) from None
    return data
