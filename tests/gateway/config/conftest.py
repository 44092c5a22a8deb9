from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from gateway.config import Config


@dataclass(frozen=True)
class Setting:
    """One leaf of the configuration. `<name>` stands for the name of an entry, `[]` for an element of a list."""

    path: str
    default: str  # as the documentation shows it
    kind: str | None  # of the backend or retriever that has it


@pytest.fixture(scope="session")
def settings() -> list[Setting]:
    """All settings there are, by a walk over the models."""
    return sorted(set(walk(Config, "", None)), key=lambda setting: (setting.path, setting.kind or ""))


def walk(model: type[BaseModel], prefix: str, kind: str | None) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        sections = list(sections_in(field.annotation, ""))
        for section, step in sections:
            its_kind = get_args(section.model_fields["kind"].annotation)[0] if "kind" in section.model_fields else kind
            yield from walk(section, f"{prefix}{name}{step}.", its_kind)
        if not sections:
            yield Setting(prefix + name, default_of(field), kind)


def sections_in(annotation: Any, step: str) -> Iterator[tuple[type[BaseModel], str]]:
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, step
    elif origin is Annotated:
        yield from sections_in(args[0], step)
    elif origin in (Union, UnionType):
        for arg in args:
            yield from sections_in(arg, step)
    elif origin is Mapping:
        yield from sections_in(args[1], ".<name>")
    elif origin is tuple:
        yield from sections_in(args[0], "[]")


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    printed = TypeAdapter(Annotated[field.annotation, *(field.metadata or [None])]).dump_python(
        field.get_default(call_default_factory=True), mode="json"
    )
    if printed is None or isinstance(printed, bool):
        return {None: "null", True: "true", False: "false"}[printed]
    return str(printed)
