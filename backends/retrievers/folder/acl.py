"""Which permissions a document needs, from an ACL file:

    default: []                    # what all other documents need; [] is everyone in the tenant
    rules:                         # the first that matches wins
      - {path: "hr/**", permissions: [hr]}

A path is matched on a document's id, letter by letter (`HR/` is another folder than `hr/`):

    hr/**         everything below hr/, however deep, but not a file `hr`
    hr/*          the files right in hr/
    **/secret.md  a file `secret.md` in any folder, the uppermost included
    a/**/b.md     a/b.md, a/x/b.md, a/x/y/b.md
    ?             one character, but no `/`

What could be meant otherwise than it would be read is refused: a rule that does not match what it was written for
opens documents.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 2**20
MAX_RULES = 10_000
MAX_PERMISSIONS = 100
"""That one document may need."""
MAX_WORD = 200
MAX_PATH = 1_000
MAX_STARS = 10
"""In one path: each makes matching slower."""

_TEXT = "tag:yaml.org,2002:str"


class AclError(Exception):
    """The rules cannot be used; the text says which field is wrong, and in which line."""


@dataclass(frozen=True, slots=True)
class Rule:
    path: str
    permissions: frozenset[str]
    pattern: "re.Pattern[str]"


@dataclass(frozen=True, slots=True)
class Acl:
    default: frozenset[str]
    rules: tuple[Rule, ...] = ()

    @classmethod
    def everyone(cls) -> "Acl":
        return cls(frozenset())

    @property
    def named(self) -> frozenset[str]:
        """All permissions that any document could need."""
        return self.default.union(*(rule.permissions for rule in self.rules))

    def required(self, document: str) -> frozenset[str]:
        """The permissions of which a reader must have all."""
        rule = self._first(document)
        return self.default if rule is None else rule.permissions

    def unused(self, documents: Iterable[str]) -> list[str]:
        """The paths of rules that decide on none of these documents: perhaps mistyped, or behind a wider one."""
        used = {id(self._first(document)) for document in documents}
        return [rule.path for rule in self.rules if id(rule) not in used]

    def _first(self, document: str) -> Rule | None:
        # The same name may be written in two ways (é as one or as two characters), depending on who has made the file.
        document = unicodedata.normalize("NFC", document)
        return next((rule for rule in self.rules if rule.pattern.fullmatch(document)), None)


def load(path: Path) -> Acl:
    """Raises AclError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise AclError(f"the file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AclError("the file is not UTF-8 text") from None
    if len(data) > MAX_BYTES:
        raise AclError(f"the file has more than {MAX_BYTES:,} bytes")
    return parse(text)


def parse(text: str) -> Acl:
    """Raises AclError."""
    root = _document(text)
    if root is None:
        raise AclError("the file is empty")
    fields = _mapping(root, "", required=("default",), allowed=("default", "rules"))
    rules = _items(fields["rules"], "rules", MAX_RULES) if "rules" in fields else ()
    return Acl(
        _permissions(fields["default"], "default"),
        tuple(_rule(item, f"rules.{number}") for number, item in enumerate(rules)),
    )


def _document(text: str) -> yaml.Node | None:
    """The nodes of a YAML document without aliases, so that each of its bytes is looked at once. Raises AclError."""
    try:
        for event in yaml.parse(text, yaml.CSafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise AclError(f"{_line(event.start_mark)}aliases (`*name`) are not supported; put text in quotes")
        node = yaml.compose(text, yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        raise AclError(f"{_line(error.problem_mark)}no valid YAML: {error.problem}") from None
    except yaml.YAMLError:
        raise AclError("no valid YAML: it holds a character that cannot be read") from None
    assert node is None or isinstance(node, yaml.Node)
    return node


def _rule(node: yaml.Node, where: str) -> Rule:
    both = ("path", "permissions")
    fields = _mapping(node, where, required=both, allowed=both)
    path = _text(fields["path"], f"{where}.path")
    if problem := _problem(path):
        raise _wrong(fields["path"], f"{where}.path", problem)
    return Rule(path, _permissions(fields["permissions"], f"{where}.permissions"), _pattern(path))


def _permissions(node: yaml.Node, where: str) -> frozenset[str]:
    names = set()
    for number, item in enumerate(_items(node, where, MAX_PERMISSIONS)):
        name = _text(item, f"{where}.{number}")
        # As in the gateway's configuration: lists of permissions travel in headers and tokens, separated by these.
        if not name or not name.isprintable() or any(c in " ,;" for c in name) or len(name) > MAX_WORD:
            raise _wrong(item, f"{where}.{number}", "must be one word, without blanks, commas and semicolons")
        names.add(name)
    return frozenset(names)


def _mapping(
    node: yaml.Node, where: str, *, required: tuple[str, ...], allowed: tuple[str, ...]
) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(node, where, f"must have the fields {' and '.join(allowed)}")
    fields: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = _text(key, where)
        inner = f"{where}.{name}" if where else name
        if name not in allowed:
            raise _wrong(key, inner, f"is unknown; there are {' and '.join(allowed)}")
        if name in fields:
            raise _wrong(key, inner, "is there twice")
        fields[name] = value
    for name in required:
        if name not in fields:
            raise _wrong(node, f"{where}.{name}" if where else name, "is missing")
    return fields


def _items(node: yaml.Node, where: str, most: int) -> list[yaml.Node]:
    if not isinstance(node, yaml.SequenceNode):
        raise _wrong(node, where, "must be a list")
    if len(node.value) > most:
        raise _wrong(node, where, f"has more than {most:,} items")
    items: list[yaml.Node] = node.value
    return items


def _text(node: yaml.Node, where: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag != _TEXT:
        raise _wrong(node, where, "must be text; put it in quotes")
    return str(node.value)


def _wrong(node: yaml.Node, where: str, problem: str) -> AclError:
    place = f"{where}: " if where else ""
    return AclError(f"{place}{_line(node.start_mark)}{problem}")


def _line(mark: Any) -> str:
    """Where it is, in front of what is wrong. (There are two classes of marks that have nothing in common.)"""
    return f"line {mark.line + 1}: " if mark else ""


def _problem(path: str) -> str:
    """What is wrong with the path of a rule; "" where nothing is."""
    if not path or len(path) > MAX_PATH:
        return f"must have 1 to {MAX_PATH:,} characters"
    if any(c in path for c in "\\[]{}!"):
        return "may not have any of \\ [ ] { } !; write ? for such a character in a name"
    if path.endswith("/"):
        return f"matches no document; everything below the folder is `{path}**`"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "begins at the folder itself, without / or ., and may not have empty parts, `.` and `..`"
    if any("**" in part and part != "**" for part in parts):
        return "`**` must stand alone between two /"
    if path.count("*") > MAX_STARS:
        return f"has more than {MAX_STARS} `*`"
    return ""


def _pattern(path: str) -> "re.Pattern[str]":
    return re.compile("".join(_expressions(unicodedata.normalize("NFC", path).split("/"))), re.DOTALL)


def _expressions(parts: list[str]) -> Iterator[str]:
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            yield ".+" if last else "(?:[^/]+/)*"
        else:
            yield "".join({"*": "[^/]*", "?": "[^/]"}.get(c, re.escape(c)) for c in part)
            yield "" if last else "/"
