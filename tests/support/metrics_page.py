"""docs/metrics.md, read: what may be asked for in a query."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_ROW = re.compile(r"^\| `(refrain_\w+)` \| (\w+) \|([^|]*)\| (.+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Documented:
    type: str
    labels: frozenset[str]


def documented() -> dict[str, Documented]:
    rows = _ROW.findall((ROOT / "docs/metrics.md").read_text())
    found = {name: Documented(kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}
    assert len(found) == len(rows), "a metric is explained twice"
    return found
