"""JSON paths (RFC 9535) into the answers of a search service. They are ours, what they are applied to is foreign.

A path into a result leads to one value at most: names and indexes only. It is walked here rather than by the library,
which would parse a text that it is given as JSON. A path that could lead to several would be a trap where it names
permissions: of a list of them it would leave out those that have another shape than expected.

The path to the results may be any, within what bounds its time: `..` once, and no regular expressions, which the
library would run, and take, from the answer.
"""

from itertools import islice
from typing import Any

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from jsonpath.selectors import IndexSelector, NameSelector
from jsonpath.token import TOKEN_DDOT

Step = str | int


class _Environment(JSONPathEnvironment):
    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        del self.function_extensions["match"], self.function_extensions["search"]


_environment = _Environment(strict=True)


class OnePath:
    """Leads to one value at most. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self.text = text
        steps = _steps(_compile(text))
        if steps is None:
            raise ValueError("must lead to one value, by names and indexes only, such as $.id or $.meta.ids[0]")
        self._steps = steps

    def value(self, root: Any) -> Any:
        """None where there is nothing."""
        return _walk(root, self._steps)


class ListPath:
    """Leads to one list, or to several values, which are the list then. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._path = _compile(text)
        self._steps = _steps(self._path)

    def values(self, root: Any, most: int) -> list[Any] | None:
        """None where there is no list. Of several values at most `most`, and one more."""
        if self._steps is not None:
            value = _walk(root, self._steps)
            return value if isinstance(value, list) else None
        if not isinstance(root, dict | list):  # the library would parse a text
            return None
        try:
            return [match.obj for match in islice(self._path.finditer(root), most + 1)]
        except JSONPathError:  # nested too deep for `..`
            return None


def _compile(text: str) -> JSONPath:
    try:
        if sum(token.kind == TOKEN_DDOT for token in _environment.lexer.tokenize(text)) > 1:
            raise ValueError("must not have `..` more than once")
        path = _environment.compile(text)
    except (JSONPathError, RecursionError):
        raise ValueError("must be a JSON path (RFC 9535), such as $.results or $['hits'][0].id") from None
    assert isinstance(path, JSONPath)  # compounds of paths are not in the RFC
    return path


def _steps(path: JSONPath) -> tuple[Step, ...] | None:
    """None: it may lead to several values."""
    if not path.singular_query():
        return None
    steps: list[Step] = []
    for segment in path.segments:
        match segment.selectors[0]:
            case NameSelector(name=step) | IndexSelector(index=step):
                steps.append(step)
    return tuple(steps)


def _walk(value: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        elif isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value
