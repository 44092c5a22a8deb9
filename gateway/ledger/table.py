"""The statements of the ledger's database. Each function is one transaction.

Whoever looks at the dashboard wants sums over thousands of keys, so these are made when rows are written: `cube` has,
for each period, the sums of one tenant or ANY, at one endpoint or ANY, by outcome, and `lines` what the lists of
endpoints, tenants and models show. What is asked for is added up here, without Python: the event loop has the
interpreter meanwhile.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, NamedTuple

from gateway.ledger.sums import AMOUNTS, COUNTS, NUMBERS, SECONDS, Sums

APPLICATION = 0x5266724C
"""Marks the database as ours ("RfrL")."""
SCHEMA_VERSION = 1

DAY = 86_400
RESOLUTIONS = {60: 2 * 3600.0, 600: 36 * 3600.0, 3600: 14.0 * DAY, DAY: inf}
"""Seconds of a period, and for how long its rows are kept. Days are UTC's."""
OTHER = "other"
"""Stands for models that have no name in the books."""
ANY = b""
"""In the place of a tenant or an endpoint: all of them. No text is equal to it."""
REUSED = ("exact", "stale", "semantic", "joined")
OUTCOMES = (*REUSED, "miss", "bypass", "error")
ENDPOINTS, TENANTS, MODELS = range(3)
"""The lists."""
MOST_LINES = 100
"""Of one list: there may be thousands, and people look at the first."""

Name = str | bytes
Span = tuple[int, float]
"""From (inclusive), until (exclusive), in wall-clock seconds."""


class Key(NamedTuple):
    """What is kept apart. `outcome` is "error" where a request got no further."""

    tenant: str
    endpoint: str
    model: str
    backend: str
    outcome: str


class Point(NamedTuple):
    """One outcome in one step of time."""

    requests: int
    saved: int
    consumed: int
    usd_saved: float
    usd_consumed: float
    ms_saved: float


class Line(NamedTuple):
    """One name in a list."""

    name: str
    requests: int = 0
    hits: int = 0
    tokens_saved: int = 0
    usd_saved: float = 0.0
    usd_consumed: float = 0.0

    def plus(self, other: "Line") -> "Line":
        return Line(
            self.name,
            self.requests + other.requests,
            self.hits + other.hits,
            self.tokens_saved + other.tokens_saved,
            self.usd_saved + other.usd_saved,
            self.usd_consumed + other.usd_consumed,
        )


class Summary(NamedTuple):
    """A stretch of time: by outcome, by (begin of a step, outcome), and the busiest names, the busiest first."""

    outcomes: dict[str, Sums]
    points: dict[tuple[int, str], Point]
    endpoints: list[Line]
    tenants: list[Line]
    models: list[Line]


NOTHING = Summary({}, {}, [], [], [])


class Question(NamedTuple):
    """`step` is a multiple of `resolution`; None for a tenant or an endpoint is all of them."""

    resolution: int
    span: Span
    step: int
    tenant: str | None
    endpoint: str | None


class Rows(NamedTuple):
    """What is to be added."""

    totals: Iterable[tuple[Key, Sums]]
    cube: Iterable[tuple[int, Name, Name, str, int, tuple[Any, ...]]]
    """Resolution, tenant, endpoint, outcome, start, Sums.row()."""
    lines: Iterable[tuple[int, int, Name, Name, str, int, Line]]
    """Resolution, list, tenant, endpoint, name, start, line (whose name counts for nothing)."""


_COLUMNS = [*NUMBERS, *(f"{kind}{n}" for kind in "bf" for n in range(len(SECONDS) + 1))]
_TYPES = ", ".join(
    [f"{c} INTEGER NOT NULL" for c in COUNTS]
    + [f"{c} REAL NOT NULL" for c in AMOUNTS]
    + [f"{c} INTEGER NOT NULL" for c in _COLUMNS[len(NUMBERS) :]]
)
_LINE = ["requests", "hits", "saved", "usd_saved", "usd"]
_KEYS = {
    "totals": ["tenant", "endpoint", "model", "backend", "outcome"],
    "cube": ["resolution", "tenant", "endpoint", "outcome", "start"],
    "lines": ["resolution", "list", "tenant", "endpoint", "name", "start"],
}
_INTEGERS = ("resolution", "list", "start")


def _table(name: str, types: str) -> str:
    keys = ", ".join(f"{key} {'INTEGER' if key in _INTEGERS else ''} NOT NULL" for key in _KEYS[name])
    return f"CREATE TABLE {name} ({keys}, {types}, PRIMARY KEY ({', '.join(_KEYS[name])})) WITHOUT ROWID;"


def _upsert(name: str, columns: list[str]) -> str:
    names = [*_KEYS[name], *columns]
    plus = ", ".join(f"{c} = {c} + excluded.{c}" for c in columns)
    return (
        f"INSERT INTO {name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 (our names)
        f" ON CONFLICT DO UPDATE SET {plus}"
    )


SCHEMA = f"""
BEGIN;
{_table("totals", _TYPES)}
{_table("cube", _TYPES)}
{_table("lines", ", ".join(f"{c} {'REAL' if 'usd' in c else 'INTEGER'} NOT NULL" for c in _LINE))}
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
_ADD = {"totals": _upsert("totals", _COLUMNS), "cube": _upsert("cube", _COLUMNS), "lines": _upsert("lines", _LINE)}
_TOTALS = f"SELECT {', '.join([*_KEYS['totals'], *_COLUMNS])} FROM totals"  # noqa: S608
_WHERE = "WHERE resolution = ?1 AND tenant = ?2 AND endpoint = ?3"
_OUTCOME = (
    f"SELECT {', '.join(f'TOTAL({c})' if c in AMOUNTS else f'SUM({c})' for c in _COLUMNS)} FROM cube"  # noqa: S608
    f" {_WHERE} AND outcome = ?4 AND start >= ?5 AND start < ?6"
)
_POINTS = (
    "SELECT start / ?4 * ?4, outcome, SUM(requests), SUM(saved), SUM(consumed), SUM(usd_saved), SUM(usd), SUM(ms_saved)"  # noqa: S608
    f" FROM cube {_WHERE} AND start >= ?5 AND start < ?6 GROUP BY 1, 2"
)
_LINES = (
    f"SELECT name, {', '.join(f'SUM({c})' for c in _LINE)} FROM lines"  # noqa: S608
    f" {_WHERE} AND list = ?4 AND start >= ?5 AND start < ?6"
    f" GROUP BY name ORDER BY 2 DESC, 1 LIMIT {MOST_LINES}"
)


def ours(db: sqlite3.Connection) -> bool:
    """Is this a ledger of this version?"""
    marks = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    return marks == [APPLICATION, SCHEMA_VERSION]


def add(db: sqlite3.Connection, rows: Rows, now: float) -> None:
    """Add to what is there, and let go of what is older than it is kept."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(_ADD["totals"], ((*key, *sums.row()) for key, sums in rows.totals))
        db.executemany(_ADD["cube"], ((*place, *row) for *place, row in rows.cube))
        db.executemany(_ADD["lines"], ((*place, *line[1:]) for *place, line in rows.lines))
        for resolution, keep in RESOLUTIONS.items():
            if keep < inf:
                _forget(db, resolution, now - keep - resolution)


def _forget(db: sqlite3.Connection, resolution: int, before: float) -> None:
    # Every period has a row for all tenants and endpoints, which tells in no time whether there is anything to do.
    old = f"SELECT 1 FROM cube {_WHERE} AND start < ?4 LIMIT 1"  # noqa: S608
    if db.execute(old, (resolution, ANY, ANY, before)).fetchone():
        for name in ("cube", "lines"):
            db.execute(f"DELETE FROM {name} WHERE resolution = ? AND start < ?", (resolution, before))  # noqa: S608


def totals(db: sqlite3.Connection) -> Iterator[tuple[Key, Sums]]:
    """All time, by key."""
    return ((Key(*row[:5]), Sums.of(row[5:])) for row in db.execute(_TOTALS))


def first_day(db: sqlite3.Connection, tenant: str | None, endpoint: str | None) -> int | None:
    """When the earliest day began that there is anything of."""
    where = (DAY, _name(tenant), _name(endpoint))
    found: int | None = db.execute(f"SELECT MIN(start) FROM cube {_WHERE}", where).fetchone()[0]  # noqa: S608
    return found


def summary(db: sqlite3.Connection, asked: Question) -> Summary:
    """Rows that begin in the span, all as of one moment."""
    with db:
        db.execute("BEGIN")
        return _summary(db, asked)


def _summary(db: sqlite3.Connection, asked: Question) -> Summary:
    where, span = (asked.resolution, _name(asked.tenant), _name(asked.endpoint)), asked.span
    outcomes = {}
    for outcome in OUTCOMES:
        row = db.execute(_OUTCOME, (*where, outcome, *span)).fetchone()
        if row[0] is not None:
            outcomes[outcome] = Sums.of(row)
    points = {(row[0], row[1]): Point(*row[2:]) for row in db.execute(_POINTS, (*where, asked.step, *span))}

    def lines(number: int, chosen: str | None = None) -> list[Line]:
        if chosen is not None:
            return [_line(chosen, outcomes)] if outcomes else []
        return [Line(*row) for row in db.execute(_LINES, (*where, number, *span))]

    return Summary(outcomes, points, lines(ENDPOINTS, asked.endpoint), lines(TENANTS, asked.tenant), lines(MODELS))


def _name(chosen: str | None) -> Name:
    return ANY if chosen is None else chosen


def _line(name: str, outcomes: dict[str, Sums]) -> Line:
    """All of it, under this name."""
    line = Line(name)
    for outcome, sums in outcomes.items():
        line = line.plus(line_of(outcome, sums))
    return line


def line_of(outcome: str, sums: Sums, name: str = "") -> Line:
    """What a list says of these."""
    hits = sums.requests if outcome in REUSED else 0
    return Line(name, sums.requests, hits, sums.saved, sums.usd_saved, sums.usd)


def pick(since: float, now: float, step: float) -> int:
    """The resolution that a question is answered in: of those that reach back to `since`, the coarsest that is not
    coarser than `step`, else the finest."""
    reaching = [r for r, keep in RESOLUTIONS.items() if since >= now - keep]
    return max((r for r in reaching if r <= step), default=min(reaching))
