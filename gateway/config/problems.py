"""What is wrong with a configuration, in words that name the field and never its value.

    ConfigError
      problems: (Problem(path="endpoints.chat.cache.exact.ttl", message="must be more than 0 ..."), ...)

The value stays out of every message, since it may be a secret that stands in the wrong place.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Step = str | int
Found = tuple[tuple[Step, ...], str]
"""Steps from a section to a field of it, and what is wrong there."""


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """`path` is the field, its parts joined by dots; empty: the file as a whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A configuration that cannot be used; its text has one line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def refusal(found: Iterable[Found]) -> ValidationError:
    """What a validator of a section raises about fields of it."""
    return ValidationError.from_exception_data(
        "refrain",
        [
            InitErrorDetails(type=PydanticCustomError("refused", "{text}", {"text": text}), loc=steps, input=None)
            for steps, text in found
        ],
    )


def from_validation(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """The problems in a ValidationError about `root`."""
    details = error.errors(include_url=False, include_input=False)
    return [_problem(detail, _locate(root, detail["loc"])) for detail in details]


@dataclass(frozen=True, slots=True)
class _Place:
    path: list[str]
    section: Any
    """The type that the last step of the path lies in."""
    value: Any
    """The type that belongs at the path."""


def _locate(root: type[BaseModel], steps: Iterable[Step]) -> _Place:
    """Follow pydantic's steps through the types. They hold what no user wrote: which branch of a union was taken
    (its `kind`), and "[key]" for an error about the name of an entry itself."""
    path: list[str] = []
    section: Any = None
    value: Any = root
    for step in steps:
        if step == "[key]":
            break
        options = _options(value)
        if len(options) > 1:
            value = next(option for option in options if step in _kinds(option))
            continue
        path.append(str(step))
        section = options[0] if options else None
        if isinstance(section, type) and issubclass(section, BaseModel):
            field = section.model_fields.get(str(step))
            value = field.annotation if field else None
        else:  # a mapping's or a tuple's element
            value = next((arg for arg in reversed(get_args(section)) if arg is not Ellipsis), None)
    return _Place(path, section, value)


def _options(annotation: Any) -> list[Any]:
    """The types that a value may have, without None and without what checks and prints them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _options(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [option for arg in get_args(annotation) for option in _options(arg)]
    return [] if annotation in (None, type(None)) else [annotation]


def _kinds(section: type[BaseModel]) -> tuple[str, ...]:
    return get_args(section.model_fields["kind"].annotation)


def _problem(detail: ErrorDetails, place: _Place) -> Problem:
    path, kind, context = place.path, detail["type"], detail.get("ctx", {})
    match kind:
        case "extra_forbidden":
            known = difflib.get_close_matches(path[-1], place.section.model_fields, n=1)
            message = "unknown setting" + (f"; did you mean `{known[0]}`?" if known else "")
        case "missing":
            message = "is needed"
        case "refused":
            message = context["text"]
        case "value_error":
            message = str(context["error"])
        case "literal_error":
            message = f"must be {context['expected']}"
        case "union_tag_not_found" | "union_tag_invalid":
            path = [*path, "kind"]
            message = "must be " + " or ".join(kind for option in _options(place.value) for kind in _kinds(option))
        case "model_type" | "model_attributes_type" | "dict_type" | "mapping_type":
            message = "must be a mapping of settings"
        case "tuple_type" | "frozen_set_type":
            message = "must be a list, such as [a, b]"
        case "string_type" | "path_type":
            message = "must be text; put it in quotes"
        case "bool_type" | "bool_parsing":
            message = "must be true or false"
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            message = "must be a whole number"
        case "float_type" | "float_parsing":
            message = "must be a number"
        case "greater_than":
            message = f"must be more than {context['gt']}"
        case "greater_than_equal":
            message = f"must be at least {context['ge']}"
        case "less_than_equal":
            message = f"must be at most {context['le']}"
        case "string_too_long":
            message = f"must be at most {context['max_length']} characters long"
        case _:
            message = detail["msg"]
    return Problem(".".join(path), message)
