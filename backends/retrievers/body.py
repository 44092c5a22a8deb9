"""What a search service is asked with: a JSON body made from a template, or parameters of the URL.

In a template `{query}` stands for a JSON string with its quotes, `{top_k}` for a number, and `{permissions}` for a list
of strings, or null for somebody who may see all documents:

    {"q": {query}, "size": {top_k}, "filter": {"acl": {permissions}}}

All other braces are JSON's own. Each of the three stands where a value may stand, and is put in as a whole value, in
one pass: no question can end its string early, and one that holds `{permissions}` is not looked at again.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import msgspec

LONGEST = 20_000
"""Characters of a template."""
DEFAULT = '{"query": {query}, "top_k": {top_k}, "permissions": {permissions}}'

_PLACE = re.compile(r"\{(query|top_k|permissions)\}")
# Values that no template holds by itself.
_SAMPLES: dict[str, Any] = {
    "query": "a question \"that\" has \\ and {query} in it\n",
    "top_k": 927_461_835,
    "permissions": ["a permission \"that\" has \\ and {query} in it\n"],
}  # fmt: skip


class Template:
    """Raises ValueError that says what is wrong with `text`."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"must be at most {LONGEST} characters long")
        # Text and name of a place by turns.
        self._parts = _PLACE.split(text)
        self.names = frozenset(self._parts[1::2])
        """The places that it has."""
        if "query" not in self.names:
            raise ValueError("must hold {query}")
        try:
            sample = msgspec.json.decode(self._fill(_SAMPLES))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise ValueError(
                "must be JSON once it is filled; {query} stands for a string with its quotes, {top_k} for a number, "
                'and {permissions} for a list of strings, as in {"q": {query}, "k": {top_k}}'
            ) from None
        values = Counter(_names(sample))
        if values != Counter(self._parts[1::2]):
            raise ValueError("must have {query}, {top_k} and {permissions} only where a value may stand")

    def fill(self, query: str, top_k: int, permissions: frozenset[str] | None) -> bytes:
        """Raises UnicodeEncodeError."""
        return self._fill({"query": query, "top_k": top_k, "permissions": _listed(permissions)})

    def _fill(self, values: dict[str, Any]) -> bytes:
        return b"".join(
            msgspec.json.encode(values[part]) if index % 2 else part.encode() for index, part in enumerate(self._parts)
        )


def parameters(query: str, top_k: int, permissions: frozenset[str] | None) -> str:
    """The same three for a URL, encoded. `permissions` is there once for each, once and empty for somebody who has
    none, and not at all for somebody who may see all documents. Raises UnicodeEncodeError."""
    listed = _listed(permissions)
    pairs = [] if listed is None else [("permissions", permission) for permission in listed or [""]]
    return urlencode([("query", query), ("top_k", str(top_k)), *pairs])


def _listed(permissions: frozenset[str] | None) -> list[str] | None:
    return None if permissions is None else sorted(permissions)


def _names(value: Any) -> Iterator[str]:
    """The places whose samples are values in it."""
    left = [value]
    while left:
        value = left.pop()
        if (name := next((name for name, sample in _SAMPLES.items() if value == sample), None)) is not None:
            yield name
        elif isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
