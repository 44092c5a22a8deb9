"""What a run measures, by name, and the table made of it."""

from collections.abc import Iterable
from typing import NamedTuple

Figures = dict[str, float]


class Row(NamedTuple):
    """`reference` is what Refrain is held against; `result` is what `bar` speaks of."""

    what: str
    refrain: str
    reference: str
    result: str
    bar: str = ""


def table(rows: Iterable[Row]) -> str:
    lines = ["| | Refrain | bare uvicorn, or upstream | result | bar |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
