"""The books outlive the process, and a disk that fails is in nobody's way."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.decisions import Decision
from gateway.ledger.ledger import OTHER, Charge, Key, Ledger, ledger_path
from gateway.ledger.sums import Sums
from gateway.ledger.table import ANY, DAY, MODELS, MOST_LINES, NOTHING, RESOLUTIONS, TENANTS, Line, pick
from gateway.ledger.waiting import MAX_MODELS, MAX_TENANTS, MOST_MINUTES, OTHERS, Waiting
from gateway.principal import Principal
from tests.contract.stores import START, Clock

HOUR = 3600


def decision(tenant: str = "acme", **fields: Any) -> Decision:
    d = Decision("req_1", 0.0, fields.pop("endpoint", "default"), "chat")
    d.principal = Principal(tenant, "alice")
    d.outcome, d.status, d.backend, d.model, d.ms = "miss", 200, "fake", "m", 5.0
    for name, value in fields.items():
        setattr(d, name, value)
    return d


def call(tokens: int = 18, **fields: Any) -> Decision:
    return decision(consumed=tokens, served=tokens, usd=0.25, usd_used=0.25, **fields)


def figures(ledger: Ledger) -> list[tuple[Key, tuple[Any, ...]]]:
    return sorted((key, sums.row()) for key, sums in ledger.totals())


async def seen(ledger: Ledger, **more: Any) -> dict[str, int]:
    """Requests of the last hour, by outcome."""
    summary = await ledger.summary(START - HOUR, START + HOUR, 60, **more)
    return {outcome: sums.requests for outcome, sums in summary.outcomes.items()}


async def opened(path: Path | None, clock: Callable[[], float] | None = None) -> Ledger:
    ledger = Ledger(clock or Clock())
    await ledger.open(path)
    return ledger


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def spoil(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)


def spoil_pages(path: Path) -> None:
    """All but the first two and the last."""
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xa5" * (len(content) - 12288)
    path.write_bytes(content)


def block(path: Path) -> None:
    """No file can be there."""
    path.rename(path.with_name("kept"))
    path.mkdir()


def unblock(path: Path) -> None:
    path.rmdir()
    path.with_name("kept").rename(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "cache.ledger.db"


@pytest.mark.parametrize(
    ("store", "durable", "path"),
    [
        ("sqlite:///.refrain/cache.db", None, ".refrain/cache.ledger.db"),
        ("sqlite:////var/answers", None, "/var/answers.ledger"),
        ("sqlite:///cache.db", "sqlite:///kept/durable.db", "kept/durable.ledger.db"),
        ("redis://host", "sqlite:///durable.db", "durable.ledger.db"),
        ("sqlite:///cache.db", "memory://", None),
        ("memory://", None, None),
    ],
)
def test_where_it_lies(store: str, durable: str | None, path: str | None) -> None:
    assert ledger_path(store, durable) == (path and Path(path))


async def test_a_restart_finds_everything(path: Path) -> None:
    first = await opened(path)
    for d in (call(), call(7, tenant="globex", endpoint="rr"), decision(outcome=None, model="", error="x", status=400)):
        first.book(d)
    first.charge(decision(), Charge(5, 1.0, 0.125, by_token=True, estimated=5, cached=2))
    before = figures(first)
    await first.aclose()
    again = await opened(path)
    assert figures(again) == before
    again.book(call())
    assert {key.model for key, _ in again.totals()} == {"m", ""}
    again.book(decision(status=500, error="backend_error"))  # it has answered before
    assert {key.model for key, _ in again.totals()} == {"m", ""}
    assert again.stats()["requests"] == {"miss": 4, "error": 1}
    await again.aclose()
    assert (await opened_once(path))["requests"] == {"miss": 4, "error": 1}
    assert mode(path) == 0o600


async def opened_once(path: Path) -> dict[str, Any]:
    ledger = await opened(path)
    try:
        return ledger.stats()
    finally:
        await ledger.aclose()


async def test_what_is_new_is_on_the_disk_within_a_second_without_an_end(path: Path) -> None:
    ledger = await opened(path)
    ledger.book(call())
    ledger.stats()  # looking takes nothing away
    await asyncio.sleep(1)
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute(
            "SELECT resolution, requests, consumed, usd FROM cube WHERE tenant = 'acme' AND endpoint = ? ORDER BY 1",
            (ANY,),
        ).fetchall()
        assert db.execute("SELECT requests, consumed FROM totals").fetchall() == [(1, 18)]
    assert rows == [(resolution, 1, 18, 0.25) for resolution in sorted(RESOLUTIONS)]
    await ledger.aclose()


async def test_several_processes_add_to_one_file(path: Path) -> None:
    one, other = await opened(path), await opened(path)
    for ledger in (one, other):
        ledger.book(call())
    await one.aclose()
    await other.aclose()
    assert (await opened_once(path))["tokens"]["consumed"] == 36


# Files that cannot be used


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 5000], ids=["text", "cut"])
async def test_a_damaged_file_is_set_aside(path: Path, content: bytes) -> None:
    spoil(path, content)
    ledger = await opened(path)
    ledger.book(call())
    await ledger.aclose()
    assert (path.parent / "cache.ledger.db.damaged-1").read_bytes() == content
    assert (await opened_once(path))["tokens"]["consumed"] == 18


async def test_a_page_that_goes_bad_costs_the_past_but_not_the_present(path: Path) -> None:
    first = await opened(path)
    for number in range(200):
        first.book(call(endpoint=f"e{number}"))
    await first.aclose()
    spoil_pages(path)
    ledger = await opened(path)
    assert ledger.stats()["tokens"]["consumed"] == 0
    ledger.book(call())
    await ledger.aclose()
    assert (await opened_once(path))["tokens"]["consumed"] == 18
    assert path.with_name("cache.ledger.db.damaged-1").exists()


def changed(path: Path, statement: str) -> bytes:
    """What is in the file after this statement of another program."""
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute(statement)
    return path.read_bytes()


@pytest.mark.parametrize("statement", ["CREATE TABLE theirs (x)", "PRAGMA user_version = 7"])
async def test_another_programs_file_is_left_whole(path: Path, statement: str) -> None:
    if statement.startswith("PRAGMA"):
        await (await opened(path)).aclose()
    before = changed(path, statement)
    for number in (1, 2):
        await (await opened(path)).aclose()
        assert (path.parent / "cache.ledger.db.damaged-1").read_bytes() == before, number
    assert not (path.parent / "cache.ledger.db.damaged-2").exists()


async def test_a_file_that_goes_away_is_begun_anew_with_what_comes(path: Path) -> None:
    ledger = await opened(path)
    ledger.book(call())
    await seen(ledger)
    for file in path.parent.iterdir():
        file.unlink()
    ledger.book(call(7))
    assert await seen(ledger) == {"miss": 1}
    assert ledger.stats()["tokens"]["consumed"] == 25  # what this process has seen, it knows
    await ledger.aclose()
    assert (await opened_once(path))["tokens"]["consumed"] == 7


async def test_a_disk_that_cannot_be_written_loses_nothing_while_the_process_lives(path: Path) -> None:
    first = await opened(path)
    first.book(call(100))
    await first.aclose()
    block(path)
    ledger = await opened(path)
    ledger.book(call(7))
    assert (await seen(ledger), ledger.stats()["tokens"]["consumed"]) == ({"miss": 1}, 7)
    unblock(path)
    ledger.book(call(3))
    await seen(ledger)
    assert ledger.stats()["tokens"]["consumed"] == 110  # the past is read as soon as it can be
    await ledger.aclose()
    assert (await opened_once(path))["tokens"]["consumed"] == 110


async def test_a_locked_file_is_written_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.file.BUSY_TIMEOUT", 0.01)
    ledger = await opened(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger.book(call())
        assert await seen(ledger) == {}  # what others have, can be read
        assert ledger.stats()["requests"] == {"miss": 1}
        other.execute("ROLLBACK")
    await ledger.aclose()
    assert (await opened_once(path))["requests"] == {"miss": 1}


# Questions about time


async def test_sums_over_time(path: Path | None) -> None:
    clock = Clock()
    ledger = await opened(path, clock)
    for at, d in (
        (0, call()),
        (30, call(endpoint="rr")),
        (61, decision(outcome="exact", saved=18, served=18, usd_saved=0.25, ms_saved=40.0)),
        (150, call(tenant="globex")),
    ):
        clock.time = START + at
        ledger.book(d)
        await seen(ledger)  # writes it down
    whole = await ledger.summary(START, START + 180, 60)
    requests = {(start - START, outcome): point.requests for (start, outcome), point in whole.points.items()}
    assert requests == {(0, "miss"): 2, (60, "exact"): 1, (120, "miss"): 1}
    assert whole.points[START + 60, "exact"] == (1, 18, 0, 0.25, 0, 40.0)
    miss = whole.outcomes["miss"]
    assert (miss.requests, miss.consumed, miss.usd, sum(miss.buckets), miss.ms) == (3, 54, 0.75, 3, 15.0)
    assert whole.endpoints == [Line("default", 3, 1, 18, 0.25, 0.5), Line("rr", 1, 0, 0, 0, 0.25)]
    assert whole.tenants == [Line("acme", 3, 1, 18, 0.25, 0.5), Line("globex", 1, 0, 0, 0, 0.25)]
    assert whole.models == [Line("m", 4, 1, 18, 0.25, 0.75)]

    acme = await ledger.summary(START, START + 180, 120, tenant="acme")
    assert {(start - START, o): p.requests for (start, o), p in acme.points.items()} == {
        (0, "miss"): 2,
        (0, "exact"): 1,
    }
    assert (acme.tenants, [line.name for line in acme.endpoints]) == (whole.tenants[:1], ["default", "rr"])
    both = await ledger.summary(START, START + 180, 60, tenant="acme", endpoint="rr")
    assert both.outcomes["miss"].requests == 1
    assert (both.tenants, both.endpoints) == ([Line("acme", 1, 0, 0, 0, 0.25)], [Line("rr", 1, 0, 0, 0, 0.25)])
    assert both.models == [Line("m", 1, 0, 0, 0, 0.25)]
    assert await ledger.summary(START, START + 180, 60, tenant="nobody") == NOTHING
    assert await ledger.summary(START, START + 180, 60, tenant="") == NOTHING  # nobody's, not everybody's

    late = await ledger.summary(START + 130, START + 180, 60)
    assert {outcome: sums.requests for outcome, sums in late.outcomes.items()} == {"miss": 1}
    early = await ledger.summary(START + 30, START + 120, 60)  # a period that has begun comes whole
    assert {outcome: sums.requests for outcome, sums in early.outcomes.items()} == {"miss": 2, "exact": 1}
    days = await ledger.summary(START - 30 * DAY, START + DAY, DAY, tenant="globex")
    assert list(days.points) == [(START // DAY * DAY, "miss")]
    assert await ledger.first_day() == await ledger.first_day(tenant="acme", endpoint="rr") == START // DAY * DAY
    assert await ledger.first_day(tenant="globex", endpoint="rr") is None
    await ledger.aclose()


async def test_a_ledger_in_memory_answers_alike() -> None:
    await test_sums_over_time(None)


async def test_lists_are_bounded_and_the_busiest_come_first(path: Path) -> None:
    ledger = await opened(path)
    for number in range(MOST_LINES + 20):
        for _ in range(1 + number // 10):
            ledger.book(call(endpoint=f"e{number}"))
    lines = (await ledger.summary(START, START + 60, 60)).endpoints
    assert len(lines) == MOST_LINES
    assert [line.requests for line in lines] == sorted((line.requests for line in lines), reverse=True)
    assert lines[0] == Line("e110", 12, 0, 0, 0, 3.0)
    await ledger.aclose()


@pytest.mark.parametrize(
    ("back", "step", "resolution"),
    [
        (900, 60, 60),
        (HOUR, 300, 60),
        (2 * HOUR, 600, 600),
        (6 * HOUR, 60, 600),
        (6 * HOUR, 600, 600),
        (24 * HOUR, 3600, 3600),
        (7 * DAY, 600, 3600),
        (7 * DAY, 6 * HOUR, 3600),
        (30 * DAY, 3600, DAY),
        (30 * DAY, 7 * DAY, DAY),
    ],
)
def test_the_resolution_fits_the_question(back: float, step: float, resolution: int) -> None:
    assert pick(START - back, START, step) == resolution


async def test_minutes_and_hours_go_and_days_stay(path: Path) -> None:
    clock = Clock()
    ledger = await opened(path, clock)
    for days in (0, 20, 40):
        clock.time = START + days * DAY
        ledger.book(call())
        await seen(ledger)
    with closing(sqlite3.connect(path)) as db:
        for table in ("cube", "lines"):
            found = dict(db.execute(f"SELECT resolution, COUNT(DISTINCT start) FROM {table} GROUP BY 1").fetchall())
            assert found == {60: 1, 600: 1, 3600: 1, DAY: 3}
    summary = await ledger.summary(0, clock.time + 1, DAY)
    assert (len(summary.points), summary.outcomes["miss"].requests) == (3, 3)
    await ledger.aclose()


async def test_a_page_of_the_past_that_goes_bad_is_found_by_whoever_looks(path: Path) -> None:
    """What is looked at when the file is opened is only what all time's sums are read from."""
    clock = Clock()
    first = await opened(path, clock)
    for day in range(300):
        clock.time = START + day * DAY
        first.book(call(endpoint=f"e{day % 7}"))
        await first._write()
    await first.aclose()
    spoil_table(path, "cube")
    ledger = await opened(path, clock)
    assert ledger.stats()["tokens"]["consumed"] == 300 * 18
    assert not path.with_name("cache.ledger.db.damaged-1").exists()
    for number in range(7):
        await ledger.summary(START, clock.time + 1, DAY, endpoint=f"e{number}")
    assert path.with_name("cache.ledger.db.damaged-1").exists()
    ledger.book(call())
    assert (await ledger.summary(START, clock.time + 1, DAY)).outcomes["miss"].requests == 1
    assert ledger.stats()["tokens"]["consumed"] == 301 * 18
    await ledger.aclose()
    assert (await opened_once(path))["tokens"]["consumed"] == 301 * 18  # what could be read was taken along


def spoil_table(path: Path, name: str) -> None:
    """Some pages in the middle of it, where nothing is written any more."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = [
            row[0] for row in db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (name,))
        ]
        size = db.execute("PRAGMA page_size").fetchone()[0]
    content = bytearray(path.read_bytes())
    for page in pages[int(len(pages) * 0.55) : int(len(pages) * 0.65)]:
        content[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(content)


async def test_a_ledger_that_is_not_open_has_no_past() -> None:
    ledger = Ledger(Clock())
    ledger.book(call())
    assert await ledger.summary(0, START + DAY, DAY) == NOTHING
    assert ledger.stats()["requests"] == {"miss": 1}


# Names from outside


def sums() -> Sums:
    found = Sums()
    found.requests = 1
    return found


def keys(count: int, *, tenants: int) -> list[Key]:
    return [Key(f"t{n % tenants}", "default", f"m{n}", "fake", "miss") for n in range(count)]


def waiting(*batches: list[Key]) -> Waiting:
    waiting = Waiting()
    for batch in batches:
        waiting.add({key: sums() for key in batch}, START)
    return waiting


def test_tenants_beyond_the_bound_are_the_others_but_not_in_days() -> None:
    room = MAX_TENANTS[60]
    rows = waiting(keys(room + 50, tenants=room + 50)).rows()
    by: dict[int, dict[Any, int]] = {}
    for resolution, tenant, endpoint, _, _, found in rows.cube:
        if endpoint == ANY and tenant != ANY:
            mine = by.setdefault(resolution, {})
            mine[tenant] = mine.get(tenant, 0) + found[0]
    assert (len(by[60]), by[60][OTHERS]) == (room + 1, 50)
    assert all(len(by[resolution]) == room + 50 for resolution in (600, 3600, DAY))
    names = [name for resolution, number, _, _, name, _, _ in rows.lines if (resolution, number) == (60, TENANTS)]
    assert len(set(names)) == room + 1
    assert {key.tenant for key, _ in rows.totals} == {f"t{n}" for n in range(room + 50)}


def test_models_beyond_the_bound_are_other() -> None:
    rows = waiting(keys(MAX_MODELS + 100, tenants=1)).rows()
    names = [name for resolution, number, *_, name, _, _ in rows.lines if (resolution, number) == (DAY, MODELS)]
    assert OTHER in names
    assert len(set(names)) <= MAX_MODELS


def test_a_name_that_was_there_before_stays() -> None:
    room = MAX_TENANTS[60]
    first = keys(room, tenants=room)
    waits = waiting(first)
    assert len({row[1] for row in waits.rows().cube if row[0] == 60}) == room + 1
    waits.clear()
    waits.add({key: sums() for key in [*keys(room + 1, tenants=room + 1)[-1:], first[0]]}, START + 1)
    tenants = {row[1] for row in waits.rows().cube if row[0] == 60}
    assert tenants == {ANY, OTHERS, "t0"}


def test_what_waits_for_long_is_taken_together() -> None:
    waits = Waiting()
    key = Key("acme", "default", "m", "fake", "miss")
    for minute in range(3 * MOST_MINUTES):
        waits.add({key: sums()}, START + 60 * minute)
    rows = waits.rows()
    assert len({start for resolution, _, _, _, start, _ in rows.cube if resolution == 60}) == MOST_MINUTES
    assert sum(found.requests for _, found in rows.totals) == 3 * MOST_MINUTES
