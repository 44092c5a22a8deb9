"""Readers of the request's fields, each with its type and range. An absent field and `null` are the same."""

from collections.abc import Mapping
from typing import Any

from backends.local.errors import wrong_type, wrong_value

Fields = Mapping[str, Any]


def flag(fields: Fields, name: str, param: str | None = None) -> bool:
    """False where it is absent. `param` is the field's name in errors, where it is inside another field."""
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_type(param or name, "true or false")
    return value


def integer(fields: Fields, name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer")
    if not low <= value <= high:
        raise wrong_value(name, f"between {low} and {high}")
    return value


def real(fields: Fields, name: str, low: float, high: float, default: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a number")
    if not low <= value <= high:
        raise wrong_value(name, f"between {low} and {high}")
    return float(value)
