"""The queries of a Grafana dashboard, and what a query asks for, as far as names and labels go."""

import re
from collections.abc import Iterator
from typing import Any

from tests.support.metrics_page import Documented

ADDED = {"instance", "job"}
"""Labels that Prometheus adds to every sample."""
_SELECTOR = re.compile(r"\b(refrain_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_SUFFIX = re.compile(r"_(bucket|count|sum)$")


def unknown(query: str, metrics: dict[str, Documented]) -> Iterator[str]:
    """Metrics and labels in a query that no gateway exposes."""
    labels = set(ADDED)
    for name, matchers in _SELECTOR.findall(query):
        if name == "up":
            continue
        family = name if name in metrics else _SUFFIX.sub("", name)
        if family not in metrics or (family != name) != (metrics[family].type == "histogram"):
            yield name
            continue
        own = metrics[family].labels | ADDED | ({"le"} if name.endswith("_bucket") else set())
        labels |= own
        rest = _MATCHER.sub("", matchers).replace(",", "").strip()
        yield from (f"{name}{{{label}}}" for label in _MATCHER.findall(matchers) if label not in own)
        if rest:
            yield f"{name}{{{rest}}}"
    for names in _GROUPING.findall(query):
        yield from (label for label in re.findall(r"\w+", names) if label not in labels)


def dashboard_queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(panel, query), those of annotations too."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        if "expr" in annotation:
            yield annotation["name"], annotation["expr"]


def filled(query: str, *, window: str = "1m") -> str:
    """The query as Grafana sends it; `window` is its choice for rates."""
    found = query.replace("$__rate_interval", window).replace("$__range", "6h").replace("$endpoint", ".*")
    assert "$" not in found, query
    return found
