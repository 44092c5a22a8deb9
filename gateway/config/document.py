"""From the text of a file to plain data: YAML read strictly, `${NAME}` filled in.

The bounds keep a file of a few lines from growing to gigabytes through aliases, and from being nested deeper than
anything that we could ask for. Environment variables are put in after parsing, so that a value with a line break or
a brace in it stays one value.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gateway.config.problems import ConfigError, Problem

MAX_BYTES = 2**20
MAX_DEPTH = 20
MAX_VALUES = 100_000

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq"))
_REFERENCE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{", re.ASCII)


class _Loader(yaml.CSafeLoader):
    """YAML 1.1 without dates: 2026-01-31 is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (the attribute is declared by the parent)
        first: [(tag, regexp) for tag, regexp in resolvers if tag != _TAG + "timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def read(path: Path) -> str:
    """The text of a file. Raises ConfigError."""
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


def parse(text: str) -> Any:
    """The data in a YAML document; an empty one is an empty mapping. Raises ConfigError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}
        inspection = _Inspection()
        inspection.visit(node, ())
        if inspection.problems:
            raise ConfigError(inspection.problems)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError([Problem("", f"{line}no valid YAML: {error.problem}")]) from None
    except (yaml.YAMLError, ValueError):  # a control character; digits that make no number
        raise ConfigError([Problem("", "no valid YAML: it holds a character or number that cannot be read")]) from None
    finally:
        loader.dispose()


class _Inspection:
    """A walk over the nodes before anything is built of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._sizes: dict[int, int] = {}

    def visit(self, node: yaml.Node, path: tuple[str, ...]) -> int:
        """How many values the node stands for, aliases written out."""
        if len(path) > MAX_DEPTH:
            raise ConfigError([Problem("", f"{_line(node)}: nested more than {MAX_DEPTH} deep")])
        if id(node) not in self._sizes:
            # An alias inside its own anchor finds this, and is as large as no file may be.
            self._sizes[id(node)] = MAX_VALUES
            self._sizes[id(node)] = self._measure(node, path)
        size = self._sizes[id(node)]
        if size > MAX_VALUES:
            raise ConfigError([Problem("", f"{_line(node)}: more than {MAX_VALUES} values, aliases written out")])
        return size

    def _measure(self, node: yaml.Node, path: tuple[str, ...]) -> int:
        if node.tag not in _PLAIN_TAGS:
            self._refuse(path, node, "tags (`!...`) are not supported; put text in quotes")
        if isinstance(node, yaml.SequenceNode):
            return 1 + sum(self.visit(item, (*path, str(index))) for index, item in enumerate(node.value))
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node, path)
            return 1 + sum(self.visit(value, (*path, str(key.value))) for key, value in node.value)
        return 1

    def _check_keys(self, node: yaml.MappingNode, path: tuple[str, ...]) -> None:
        lines: dict[str, str] = {}
        for key, _ in node.value:
            if key.tag == _TAG + "merge":
                continue
            if key.tag != _TAG + "str":
                self._refuse(path, key, "a name must be text; put it in quotes")
            elif key.value in lines:
                self._refuse((*path, key.value), key, f"is there already, at {lines[key.value]}")
            else:
                lines[key.value] = _line(key)

    def _refuse(self, path: tuple[str, ...], node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(".".join(path), f"{_line(node)}: {message}"))


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def expand(data: Any, env: Mapping[str, str]) -> Any:
    """The data with `${NAME}` in its texts replaced by the variable, and `$$` by `$`. Names of settings are left as
    they are. Raises ConfigError with a problem for each variable that is missing."""
    problems: list[Problem] = []

    def text(value: str, path: tuple[str, ...]) -> str:
        def replace(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name = match[1]
            if name is None:
                problems.append(
                    Problem(".".join(path), "`${` must begin a ${NAME}; the two characters alone are `$${`")
                )
            elif name not in env:
                problems.append(Problem(".".join(path), f"the environment variable {name} is not set"))
            else:
                return env[name]
            return ""

        return _REFERENCE.sub(replace, value)

    def walk(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, str):
            return text(value, path)
        if isinstance(value, list):
            return [walk(item, (*path, str(index))) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        return value

    expanded = walk(data, ())
    if problems:
        raise ConfigError(problems)
    return expanded
