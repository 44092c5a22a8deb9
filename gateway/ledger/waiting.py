"""Sums that wait to be written, and the rows that they come to.

The number of names in one period is bounded, since those of tenants and models may come from outside: beyond the bound
a tenant is one of the "(others)", a model "other". But days, and all time, never lose a tenant.
"""

from collections.abc import Iterable, Iterator, Mapping
from time import sleep
from typing import Any, TypeVar

from gateway.ledger.sums import Sums
from gateway.ledger.table import (
    ANY,
    DAY,
    ENDPOINTS,
    MODELS,
    OTHER,
    RESOLUTIONS,
    TENANTS,
    Key,
    Line,
    Name,
    Rows,
    line_of,
)

OTHERS = "(others)"
MAX_TENANTS = {60: 100, 600: 200, 3600: 400}
MAX_MODELS = 2_000
"""Of models of one tenant at one endpoint, in one period."""
CALM = 64
"""Rows between two pauses."""
PAUSE = 0.0005
"""Seconds."""
MOST_MINUTES = 120
"""Minutes kept apart while nothing can be written; of more the oldest are taken together."""


T = TypeVar("T")


class Waiting:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._minutes: dict[int, dict[Key, Sums]] = {}
        self._tenants: dict[int, _Names] = {}  # by resolution
        self._models: dict[int, _Names] = {}

    def add(self, batch: Mapping[Key, Sums], now: float) -> None:
        """The batch's sums belong to this from now on."""
        _merge(self._minutes.setdefault(int(now // 60) * 60, {}), batch)
        while len(self._minutes) > MOST_MINUTES:
            oldest = min(self._minutes)
            old = self._minutes.pop(oldest)
            _merge(self._minutes[min(self._minutes)], old)

    def rows(self) -> Rows:
        """To be taken one by one, so that others get their turns between them."""
        minutes = self._minutes.items()
        return Rows(
            _calmly((key, sums) for batch in self._minutes.values() for key, sums in batch.items()),
            _calmly(row for minute, batch in minutes for row in self._cube(minute, batch)),
            _calmly(row for minute, batch in minutes for row in self._lines(minute, batch)),
        )

    def clear(self) -> None:
        self._minutes.clear()

    def _cube(
        self, minute: int, batch: Mapping[Key, Sums]
    ) -> Iterator[tuple[int, Name, Name, str, int, tuple[Any, ...]]]:
        periods = _periods(minute)
        for (tenant, endpoint, outcome), sums in _cells(batch).items():
            row = sums.row()
            for resolution, start in periods:
                yield resolution, self._tenant(resolution, start, tenant), endpoint, outcome, start, row

    def _lines(self, minute: int, batch: Mapping[Key, Sums]) -> Iterator[tuple[int, int, Name, Name, str, int, Line]]:
        found: dict[tuple[int, Name, Name, str], Line] = {}
        for key, sums in batch.items():
            line = line_of(key.outcome, sums)
            for place in _places(key):
                known = found.get(place)
                found[place] = line if known is None else known.plus(line)
        for resolution, start in _periods(minute):
            for (number, tenant, endpoint, name), line in found.items():
                fitting = self._tenant(resolution, start, tenant)
                if number == TENANTS:
                    name = str(self._tenant(resolution, start, name))
                elif number == MODELS and not self._knows_model(resolution, start, (fitting, endpoint, name)):
                    name = OTHER
                yield resolution, number, fitting, endpoint, name, start, line

    def _tenant(self, resolution: int, start: int, tenant: Name) -> Name:
        if tenant == ANY or resolution == DAY:
            return tenant
        names = self._tenants.setdefault(resolution, _Names())
        return tenant if names.admit(start, tenant, MAX_TENANTS[resolution]) else OTHERS

    def _knows_model(self, resolution: int, start: int, place: tuple[Name, Name, str]) -> bool:
        return self._models.setdefault(resolution, _Names()).admit(start, place, MAX_MODELS)


class _Names:
    """Those of one period."""

    def __init__(self) -> None:
        self._start = -1
        self._known: set[object] = set()

    def admit(self, start: int, name: object, room: int) -> bool:
        if start != self._start:
            self._start, self._known = start, set()
        if len(self._known) < room:
            self._known.add(name)
        return name in self._known


def _merge(mine: dict[Key, Sums], batch: Mapping[Key, Sums]) -> None:
    for key, sums in batch.items():
        if key in mine:
            mine[key].merge(sums)
        else:
            mine[key] = sums


Place = tuple[Name, Name, str]


def _cells(batch: Mapping[Key, Sums]) -> dict[Place, Sums]:
    """By tenant or ANY, endpoint or ANY, and outcome."""
    each = _grouped(_calmly(((k.tenant, k.endpoint, k.outcome), sums) for k, sums in batch.items()))
    tenants = _grouped(_calmly(((t, ANY, o), sums) for (t, _, o), sums in each.items()))
    endpoints = _grouped(_calmly(((ANY, e, o), sums) for (_, e, o), sums in each.items()))
    return each | tenants | endpoints | _grouped(((ANY, ANY, o), sums) for (_, _, o), sums in tenants.items())


def _grouped(found: Iterable[tuple[Place, Sums]]) -> dict[Place, Sums]:
    groups: dict[Place, Sums] = {}
    mine: set[Place] = set()  # those that are not the caller's
    for place, sums in found:
        known = groups.get(place)
        if known is None:
            groups[place] = sums
            continue
        if place not in mine:
            known = groups[place] = known.copy()
            mine.add(place)
        known.merge(sums)
    return groups


def _calmly(found: Iterable[T]) -> Iterator[T]:
    """The same, with pauses: a thread that computes without one holds up the event loop's."""
    for number, item in enumerate(found, 1):
        yield item
        if number % CALM == 0:
            sleep(PAUSE)


def _periods(minute: int) -> list[tuple[int, int]]:
    return [(resolution, minute // resolution * resolution) for resolution in RESOLUTIONS]


def _places(key: Key) -> Iterator[tuple[int, Name, Name, str]]:
    """The lines that a key counts in: list, of whose tenant, at which endpoint, name."""
    for tenant in (key.tenant, ANY):
        yield ENDPOINTS, tenant, ANY, key.endpoint
        for endpoint in (key.endpoint, ANY):
            yield MODELS, tenant, endpoint, key.model
    for endpoint in (key.endpoint, ANY):
        yield TENANTS, ANY, endpoint, key.tenant
