"""What is kept beside the answers: revocations, the audit log, counters, reports of wrong answers, erased documents. On
a file and in memory, across restarts."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import durable_thread
from gateway import state_table as table
from gateway.state import AuditLine, State, StateError
from gateway.state_table import MAX_LINES

A, B = b"a" * 32, b"\x00\xff" * 16
Open = Callable[[], Awaitable[State]]


def line(**changes: Any) -> AuditLine:
    fields: dict[str, Any] = {
        "at": 1_700_000_000.25,
        "tenant": "acme",
        "user": "ops",
        "role": "tenant_admin",
        "action": "purge",
        "details": {"tags": ["hr"], "soft": True},
        "request_id": "req_1",
    }
    return AuditLine(**(fields | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "cache.state.db"


@pytest.fixture
async def open_state(path: Path) -> AsyncIterator[Open]:
    opened: list[State] = []

    async def open_one() -> State:
        opened.append(await State.open(path))
        return opened[-1]

    yield open_one
    for state in opened:
        await state.aclose()


@pytest.fixture(params=["file", "memory"])
async def state(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[State]:
    state = await State.open(path if request.param == "file" else None)
    assert state.durable is (request.param == "file")
    yield state
    await state.aclose()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process is writing."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# Revoked keys.


async def test_a_revoked_key_is_remembered(state: State) -> None:
    assert await state.revoked() == frozenset()
    await state.revoke(A, at=1.0, by="ops")
    await state.revoke(B, at=2.0, by="ops")
    await state.revoke(A, at=3.0, by="somebody else")
    assert await state.revoked() == {A, B}


async def test_who_revoked_it_first_stays(open_state: Open, path: Path) -> None:
    state = await open_state()
    await state.revoke(A, at=1.0, by="ops")
    await state.revoke(A, at=3.0, by="somebody else")
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT digest, at, by FROM revoked").fetchall() == [(A, 1.0, "ops")]


# The audit log.


async def test_a_line_has_both_halves(state: State) -> None:
    number = await state.begin(line())
    begun = {
        "number": number,
        "at": 1_700_000_000.25,
        "tenant": "acme",
        "user": "ops",
        "role": "tenant_admin",
        "action": "purge",
        "details": {"tags": ["hr"], "soft": True},
        "request_id": "req_1",
        "result": None,
    }
    assert await state.lines(tenant=None, limit=10) == [begun]
    await state.end(number, result={"purged": 12})
    assert await state.lines(tenant=None, limit=10) == [begun | {"result": {"purged": 12}}]


async def test_an_empty_result_is_a_result(state: State) -> None:
    await state.end(await state.begin(line()), result={})
    assert [x["result"] for x in await state.lines(tenant=None, limit=1)] == [{}]


async def test_a_result_is_not_written_over(state: State) -> None:
    number = await state.begin(line())
    await state.end(number, result={"purged": 12})
    for wrong in (number, number + 1, 0, -1):
        with pytest.raises(StateError, match=f"no line {wrong} "):
            await state.end(wrong, result={"purged": 0})
    assert [x["result"] for x in await state.lines(tenant=None, limit=10)] == [{"purged": 12}]


async def test_lines_are_those_of_a_tenants_people_newest_first(state: State) -> None:
    for n in range(6):
        # An admin's purge of what belongs to the tenant is the admin's line.
        await state.begin(line(tenant=("acme", "other")[n % 2], details={"tenant": "acme", "n": n}))

    async def seen(tenant: str | None, limit: int) -> list[int]:
        return [x["details"]["n"] for x in await state.lines(tenant=tenant, limit=limit)]

    assert await seen(None, 100) == [5, 4, 3, 2, 1, 0]
    assert await seen(None, 2) == [5, 4]
    assert await seen("acme", 100) == [4, 2, 0]
    assert await seen("other", 2) == [5, 3]
    assert await seen("ACME", 100) == await seen("", 100) == await seen("acme' OR 1=1 --", 100) == []


async def test_any_text_comes_back_as_it_was(state: State) -> None:
    text = "Zoë ☃ 😀 \u202e \x00 '); DROP TABLE audit; -- %s ? \\ \""
    changes = dict.fromkeys(("tenant", "user", "role", "action", "request_id"), text)
    number = await state.begin(line(**changes, details={text: [text, None, 1.5, {}]}))
    await state.end(number, result={text: text})
    await state.save_counters([(text, 1, 2.0)])
    [found] = await state.lines(tenant=text, limit=1)
    assert {name: found[name] for name in changes} == changes
    assert (found["details"], found["result"]) == ({text: [text, None, 1.5, {}]}, {text: text})
    assert await state.counters(0.0) == [(text, 1, 2.0)]


@pytest.mark.parametrize("changes", [{"user": "\ud800"}, {"details": {"x": "\ud800"}}])
async def test_what_cannot_be_kept_is_refused(state: State, changes: dict[str, Any]) -> None:
    with pytest.raises(StateError, match="cannot hold a value"):
        await state.begin(line(**changes))
    assert await state.lines(tenant=None, limit=10) == []
    await state.begin(line())


async def test_the_log_is_bounded(open_state: Open, path: Path) -> None:
    state = await open_state()
    for _ in range(5):
        await state.begin(line())
    await state.aclose()
    with closing(sqlite3.connect(path)) as database, database:  # the rest of a full log, as far as numbers tell
        database.execute("INSERT INTO audit VALUES (?, 0, 't', 'u', 'r', 'a', '{}', 'q', NULL)", (MAX_LINES - 1,))
    state = await open_state()
    assert await state.begin(line()) == MAX_LINES
    seen = [x["number"] for x in await state.lines(tenant=None, limit=10)]
    assert seen == [MAX_LINES, MAX_LINES - 1, 5, 4, 3, 2, 1]
    for _ in range(3):
        await state.begin(line())
    seen = [x["number"] for x in await state.lines(tenant=None, limit=10)]
    assert seen == [*range(MAX_LINES + 3, MAX_LINES - 2, -1), 5, 4]


# Counters.


async def test_counters_are_replaced_as_a_whole(state: State) -> None:
    await state.save_counters((name, count, 50.0) for name, count in (("a", 1), ("b", 2**40)))
    assert sorted(await state.counters(0.0)) == [("a", 1, 50.0), ("b", 2**40, 50.0)]
    await state.save_counters([("b", 3, 60.0), ("c", 4, 70.5)])
    assert sorted(await state.counters(0.0)) == [("b", 3, 60.0), ("c", 4, 70.5)]
    assert await state.counters(60.0) == [("c", 4, 70.5)]  # b's window ends then
    assert await state.counters(70.5) == []
    await state.save_counters([])
    assert await state.counters(0.0) == []


@pytest.mark.parametrize("bad", [[("b", 1, 9.0), ("b", 2, 9.0)], [("b", 2**63, 9.0)], [("\ud800", 1, 9.0)]])
async def test_counters_that_cannot_be_kept_leave_the_former(state: State, bad: list[tuple[str, int, float]]) -> None:
    await state.save_counters([("a", 1, 50.0)])
    with pytest.raises(StateError):
        await state.save_counters(bad)
    assert await state.counters(0.0) == [("a", 1, 50.0)]


# Many at once.


async def test_interleaved_lines_keep_their_results(state: State) -> None:
    async def one(n: int) -> int:
        number = await state.begin(line(details={"n": n}))
        await asyncio.sleep(0)
        await state.end(number, result={"n": n})
        return number

    numbers = await asyncio.gather(*(one(n) for n in range(100)))
    found = await state.lines(tenant=None, limit=1000)
    assert [x["number"] for x in found] == sorted(numbers, reverse=True)
    assert sorted(x["details"]["n"] for x in found) == list(range(100))
    assert all(x["result"] == x["details"] for x in found)


async def test_two_processes_share_one_file(open_state: Open) -> None:
    one, other = await open_state(), await open_state()
    await one.revoke(A, at=1.0, by="ops")
    await other.revoke(B, at=1.0, by="ops")
    assert await one.revoked() == await other.revoked() == {A, B}
    numbers = await asyncio.gather(*(s.begin(line(details={"n": n})) for n in range(25) for s in (one, other)))
    assert len(set(numbers)) == 50
    await other.end(numbers[0], result={"ended": "by the other"})
    assert await one.lines(tenant=None, limit=99) == await other.lines(tenant=None, limit=99)
    await one.save_counters([("a", 1, 9.0)])
    await other.save_counters([("a", 2, 9.0)])
    assert await one.counters(0.0) == [("a", 2, 9.0)]
    await one.aclose()
    await other.revoke(b"c", at=1.0, by="ops")
    assert await other.revoked() == {A, B, b"c"}


# Ends and delays.


async def test_everything_survives_a_restart(open_state: Open) -> None:
    first = await open_state()
    await first.revoke(A, at=1.0, by="ops")
    done, under_way = await first.begin(line()), await first.begin(line(action="revoke"))
    await first.end(done, result={"purged": 1})
    await first.save_counters([("a", 7, 100.0)])
    await first.aclose()
    second = await open_state()
    assert await second.revoked() == {A}
    assert await second.counters(99.0) == [("a", 7, 100.0)]
    lines = await second.lines(tenant=None, limit=10)
    assert [(x["number"], x["result"]) for x in lines] == [(under_way, None), (done, {"purged": 1})]
    assert await second.begin(line()) == under_way + 1


async def test_memory_is_forgotten() -> None:
    first = await State.open(None)
    await first.revoke(A, at=1.0, by="ops")
    await first.aclose()
    second = await State.open(None)
    assert await second.revoked() == frozenset()
    await second.aclose()


async def test_after_the_end_every_call_is_refused(state: State) -> None:
    last = asyncio.gather(state.begin(line()), state.revoke(A, at=1.0, by="ops"))
    await asyncio.sleep(0)
    await state.aclose()
    assert (await last)[0] == 1  # asked for before
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: state.revoke(A, at=1.0, by="ops"),
        state.revoked,
        lambda: state.begin(line()),
        lambda: state.end(1, result={}),
        lambda: state.lines(tenant=None, limit=1),
        lambda: state.save_counters([]),
        lambda: state.counters(0.0),
    ]
    for call in calls:
        with pytest.raises(StateError, match="closed"):
            await call()
    await state.aclose()


async def test_a_lock_that_does_not_end_stalls_nothing_else(open_state: Open, path: Path) -> None:
    state = await open_state()
    await state.revoke(A, at=1.0, by="ops")
    with locked(path):
        begun = time.perf_counter()
        call = asyncio.ensure_future(state.begin(line()))
        stall, last = 0.0, begun
        while not call.done():
            await asyncio.sleep(0.001)
            stall, last = max(stall, time.perf_counter() - last), time.perf_counter()
        with pytest.raises(StateError, match="held by another process"):
            await call
        assert 1.5 < time.perf_counter() - begun < 4
        assert stall < 0.5
        assert await state.revoked() == {A}  # reading needs no lock
    assert len(await state.lines(tenant=None, limit=10)) == 0
    assert await state.begin(line()) == 1


async def test_what_is_late_is_an_error_and_what_waits_behind_it_is_not_done(
    open_state: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = await open_state()
    monkeypatch.setattr(durable_thread, "DEADLINE", 0.2)
    with locked(path):
        calls = (
            state.revoke(A, at=1.0, by="ops"),
            state.revoke(B, at=1.0, by="ops"),
            state.lines(tenant=None, limit=1),
        )
        late = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in late] == [StateError] * 3
    assert all("took more than 0.2 s" in str(error) for error in late)
    monkeypatch.undo()
    assert B not in await state.revoked()
    await state.revoke(B, at=1.0, by="ops")
    assert B in await state.revoked()


# Answers that were reported wrong.


async def test_what_was_reported_wrong_is_remembered(state: State) -> None:
    assert await state.wrong_pairs() == []
    await state.report_wrong([(A, B)], at=1.0, by="ops")
    await state.report_wrong([(B, A)], at=2.0, by="ops")
    await state.report_wrong([(A, A)], at=3.0, by="Zoë ☃")
    await state.report_wrong([(A, B)], at=4.0, by="somebody else")
    assert sorted(await state.wrong_pairs()) == sorted([(A, B), (B, A), (A, A)])
    await state.report_wrong((pair for pair in [(A, B), (B, B), (B, B)]), at=5.0, by="ops")
    await state.report_wrong([], at=6.0, by="ops")
    assert sorted(await state.wrong_pairs()) == sorted([(A, B), (B, A), (A, A), (B, B)])


async def test_reports_survive_a_restart_and_who_was_first_stays(open_state: Open, path: Path) -> None:
    first, other = await open_state(), await open_state()
    await first.report_wrong([(A, B)], at=1.0, by="ops")
    await other.report_wrong([(B, A)], at=2.0, by="ops")
    await other.report_wrong([(A, B)], at=3.0, by="somebody else")
    await first.aclose()
    await other.aclose()
    assert sorted(await (await open_state()).wrong_pairs()) == sorted([(A, B), (B, A)])
    with closing(sqlite3.connect(path)) as database:
        found = database.execute("SELECT at, by FROM wrong_pairs WHERE asked = ?", (A,)).fetchall()
    assert found == [(1.0, "ops")]


async def test_of_too_many_reports_the_oldest_go(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_WRONG", 3)
    for n in (3, 1, 2, 5, 4):
        await state.report_wrong([(A, bytes([n]))], at=float(n), by="ops")
    assert sorted(served for _, served in await state.wrong_pairs()) == [b"\3", b"\4", b"\5"]
    await state.report_wrong([(A, b"\0")], at=0.0, by="ops")
    assert sorted(served for _, served in await state.wrong_pairs()) == [b"\3", b"\4", b"\5"]
    await state.report_wrong([(B, bytes([n])) for n in range(4)], at=9.0, by="ops")
    assert len(await state.wrong_pairs()) == 3
    assert {asked for asked, _ in await state.wrong_pairs()} == {B}


async def test_a_file_of_an_earlier_release_gets_its_tables(open_state: Open, path: Path) -> None:
    state = await open_state()
    await state.revoke(A, at=1.0, by="ops")
    await state.aclose()
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE wrong_pairs")
        database.execute("DROP TABLE erased")
    state = await open_state()
    await state.note_erased("kb", [("a", True)], at=1.0)
    assert await state.erased() == [("kb", "a")]
    assert await state.wrong_pairs() == []
    await state.report_wrong([(A, B)], at=1.0, by="ops")
    assert await state.wrong_pairs() == [(A, B)]
    assert await state.revoked() == {A}


async def test_a_report_that_cannot_be_written_is_an_error(open_state: Open, path: Path) -> None:
    state = await open_state()
    with locked(path), pytest.raises(StateError, match="held by another process"):
        await state.report_wrong([(A, B)], at=1.0, by="ops")
    with pytest.raises(StateError, match="cannot hold a value"):
        await state.report_wrong([(A, B)], at=1.0, by="\ud800")
    assert await state.wrong_pairs() == []
    await state.aclose()
    for call in (lambda: state.report_wrong([(A, B)], at=1.0, by="ops"), state.wrong_pairs):
        with pytest.raises(StateError, match="closed"):
            await call()


# Documents that were erased.


async def test_what_was_erased_is_remembered_in_the_order_of_the_notices(state: State) -> None:
    assert await state.erased() == []
    odd = "Zoë ☃ \x00 '); DROP TABLE erased; --"
    await state.note_erased("kb", [("a", True), (odd, True), ("b", True)], at=1.0)
    await state.note_erased(odd, ((id, True) for id in ["a"]), at=2.0)
    assert await state.erased() == [("kb", "a"), ("kb", odd), ("kb", "b"), (odd, "a")]
    await state.note_erased("kb", [("a", True), ("b", False), ("new", False)], at=3.0)
    assert await state.erased() == [("kb", odd), (odd, "a"), ("kb", "a")], "the second notice is the one that counts"
    await state.note_erased("kb", [("c", True), ("c", False), (odd, False), (odd, True)], at=4.0)
    assert await state.erased() == [(odd, "a"), ("kb", "a"), ("kb", odd)]


async def test_erased_documents_survive_a_restart(open_state: Open) -> None:
    first, other = await open_state(), await open_state()
    await first.note_erased("kb", [("a", True), ("b", True)], at=1.0)
    await other.note_erased("kb", [("a", False), ("c", True)], at=2.0)
    await first.aclose()
    await other.aclose()
    assert await (await open_state()).erased() == [("kb", "b"), ("kb", "c")]


async def test_of_too_many_erased_documents_a_retriever_loses_its_oldest(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_GONE", 3)
    await state.note_erased("other", [("1", True)], at=1.0)
    await state.note_erased("kb", [(f"{n}", True) for n in (3, 1, 2)], at=1.0)
    await state.note_erased("kb", [("3", True), ("4", True)], at=0.0)
    assert await state.erased() == [("other", "1"), ("kb", "2"), ("kb", "3"), ("kb", "4")]


async def test_a_notice_that_cannot_be_written_is_an_error_and_changes_nothing(open_state: Open, path: Path) -> None:
    state = await open_state()
    await state.note_erased("kb", [("a", True)], at=1.0)
    with locked(path), pytest.raises(StateError, match="held by another process"):
        await state.note_erased("kb", [("b", True)], at=2.0)
    with pytest.raises(StateError, match="cannot hold a value"):
        await state.note_erased("kb", [("a", False), ("\ud800", True)], at=2.0)
    assert await state.erased() == [("kb", "a")]
