"""The gate of a backend: who is let in, in which order, and who is refused."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.base import Call, CannotBeInTime, Overloaded, Priority
from gateway.gate import MOST, PRIORITIES, UNKNOWN, Gate, Limits, Place


@dataclass
class Turn:
    deadline: float | None = None
    patient: bool = False
    heard: list[str] = field(default_factory=list)

    def waits(self) -> None:
        self.heard.append("waits")

    def begins(self) -> None:
        self.heard.append("begins")


class Desk:
    """A gate, its clock, and who has come to it; `went` are those that were let in, by name."""

    def __init__(self, running: int | None = 2, batch: int = 1, waiting: int = 4) -> None:
        self.now = 100.0
        self.refused: Counter[tuple[Priority, str]] = Counter()
        self.gate = Gate("fake", Limits(running, batch, waiting), self._refuse, lambda: self.now)
        self.went: list[str] = []
        self.places: dict[str, Place] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def _refuse(self, priority: Priority, reason: str) -> None:
        self.refused[priority, reason] += 1

    async def come(
        self, *names: str, deadline: float | None = None, patient: bool = False, tenant: str | None = None
    ) -> None:
        """Names are a party, which is a tenant of its own unless one is given, and a number; those of the batch class
        begin with a capital letter."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._enter(name, Turn(deadline, patient), tenant or name[0]))
            await turns()

    async def _enter(self, name: str, turn: Turn, tenant: str) -> None:
        priority: Priority = "batch" if name[0].isupper() else "interactive"
        call = Call("chat/completions", b"{}", party=name[0], tenant=tenant, priority=priority, turn=turn)
        place = await self.gate.enter(call)
        self.places[name] = place
        self.went.append(name)

    async def go(self, *names: str, after: float = 0.0) -> None:
        """These give their places back, each so many seconds after the one before."""
        for name in names:
            self.now += after
            self.places.pop(name).leave()
            await turns()

    async def error(self, name: str) -> BaseException | None:
        await asyncio.wait([self.tasks[name]])
        return self.tasks[name].exception()

    async def end(self) -> None:
        """All go; nothing is left over."""
        while self.places:
            await self.go(next(iter(self.places)))
        assert set(self.gate.running.values()) == set(self.gate.waiting.values()) == {0}


async def turns() -> None:
    """Let everybody do what they can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def usual(desk: Desk, seconds: float, name: str = "z0") -> None:
    """Let the gate know what a call of this one's class takes."""
    await desk.come(name)
    await desk.go(name, after=seconds)
    desk.went.clear()


# The order


async def test_so_many_run_at_once_and_a_place_is_handed_on() -> None:
    desk = Desk(running=2)
    await desk.come("a1", "a2", "a3", "a4")
    assert desk.went == ["a1", "a2"]
    assert repr(desk.gate) == "Gate(fake, interactive: 2 running, 2 waiting, batch: 0 running, 0 waiting)"
    await desk.go("a2")
    assert desk.went == ["a1", "a2", "a3"]
    await desk.go("a1", "a3")
    assert desk.went == ["a1", "a2", "a3", "a4"]
    await desk.end()


async def test_a_place_is_given_back_once() -> None:
    desk = Desk(running=1)
    await desk.come("a1", "a2", "a3")
    place = desk.places["a1"]
    await desk.go("a1")
    place.leave()
    await turns()
    assert desk.went == ["a1", "a2"]
    await desk.end()


async def test_parties_take_turns_in_each_class() -> None:
    desk = Desk(running=1, waiting=9)
    await desk.come("a1", "a2", "a3", "a4", "b1", "A1", "A2", "B1")
    for name in ("a1", "a2", "b1", "a3", "a4", "A1", "B1"):
        await desk.go(name)
    assert desk.went == ["a1", "a2", "b1", "a3", "a4", "A1", "B1", "A2"]
    await desk.end()


async def test_interactive_calls_go_before_batch_calls_that_wait() -> None:
    desk = Desk(running=1)
    await desk.come("a1", "B1", "b2", "b3")
    await desk.go("a1")
    assert desk.went == ["a1", "b2"]
    await desk.go("b2", "b3")
    assert desk.went == ["a1", "b2", "b3", "B1"]
    await desk.end()


@pytest.mark.parametrize(("running", "batch"), [(1, 1), (4, 2), (None, 8)])
async def test_batch_calls_have_a_share(running: int | None, batch: int) -> None:
    desk = Desk(running=running, batch=batch, waiting=9)
    await desk.come(*(f"A{number}" for number in range(10)))
    assert desk.gate.running == {"interactive": 0, "batch": batch}
    assert desk.gate.waiting["batch"] == 10 - batch
    most = (running or 30) - batch
    await desk.come(*(f"a{number}" for number in range(most)))
    assert desk.gate.running == {"interactive": most, "batch": batch}
    await desk.end()
    assert len(desk.went) == 10 + most


async def test_without_a_limit_interactive_calls_wait_for_nothing() -> None:
    desk = Desk(running=None, waiting=1)
    await usual(desk, 100.0)
    await desk.come(*(f"a{number}" for number in range(50)), deadline=desk.now + 0.1)
    assert len(desk.went) == 50
    assert not desk.refused
    await desk.end()


async def test_who_does_not_have_to_wait_hears_of_nothing() -> None:
    gate = Gate("fake", Limits(1, 1, 1))
    first, second = Turn(), Turn()
    place = await gate.enter(Call("embeddings", b"", turn=first))
    waiting = asyncio.create_task(gate.enter(Call("embeddings", b"", turn=second)))
    await turns()
    assert (first.heard, second.heard) == ([], ["waits"])
    place.leave()
    (await waiting).leave()
    assert (first.heard, second.heard) == ([], ["waits", "begins"])


# Refusals


async def test_beyond_the_queue_calls_of_each_class_are_refused() -> None:
    desk = Desk(running=1, waiting=2)
    await desk.come("a1", "a2", "a3", "a4")
    error = await desk.error("a4")
    assert isinstance(error, Overloaded)
    assert error.retry_after == UNKNOWN
    assert desk.refused == {("interactive", "backend_overloaded"): 1}
    assert desk.gate.waiting["interactive"] == 2
    await desk.come("A1", "A2", "A3")
    assert isinstance(await desk.error("A3"), Overloaded)
    assert desk.refused["batch", "backend_overloaded"] == 1
    assert desk.gate.waiting == {"interactive": 2, "batch": 2}
    await desk.end()


@pytest.mark.parametrize(("running", "usual_seconds", "expected"), [(1, 10.0, 30.0), (2, 10.0, 15.0), (1, 500.0, MOST)])
async def test_who_is_refused_hears_when_there_will_be_a_turn(
    running: int, usual_seconds: float, expected: float
) -> None:
    desk = Desk(running=running, waiting=2)
    await usual(desk, usual_seconds)
    await desk.come(*(f"a{number}" for number in range(running + 3)))
    error = await desk.error(f"a{running + 2}")
    assert isinstance(error, Overloaded)
    assert error.retry_after == pytest.approx(expected)
    await desk.end()


async def test_the_usual_time_follows_the_latest_calls() -> None:
    desk = Desk(running=1, waiting=1)
    await usual(desk, 100.0)
    for _ in range(100):
        await desk.come("z1")
        await desk.go("z1", after=2.0)
    await desk.come("a1", "a2", "a3")
    error = await desk.error("a3")
    assert isinstance(error, Overloaded)
    assert 4.0 <= error.retry_after < 5.0
    await desk.end()


async def test_a_full_queue_is_no_partys_alone() -> None:
    desk = Desk(running=1, waiting=3)
    await desk.come("a1", "a2", "a3", "a4", "b1")
    assert isinstance(await desk.error("a4"), Overloaded)
    await desk.come("b2")  # two against one: in its place it would be displaced itself
    assert isinstance(await desk.error("b2"), Overloaded)
    await desk.come("c1")
    assert isinstance(await desk.error("a3"), Overloaded)
    assert desk.gate.waiting["interactive"] == 3
    assert desk.refused == {("interactive", "backend_overloaded"): 3}
    for name in ("a1", "a2", "b1"):
        await desk.go(name)
    assert desk.went == ["a1", "a2", "b1", "c1"]
    await desk.end()


async def test_what_cannot_be_in_time_is_refused_at_once() -> None:
    desk = Desk(running=1, waiting=9)
    await usual(desk, 10.0)
    await desk.come("a1", "a2")
    await desk.come("a3", deadline=desk.now + 19.9)
    error = await desk.error("a3")
    assert isinstance(error, CannotBeInTime)
    assert error.retry_after == pytest.approx(0.1)
    assert "fake" in str(error)
    await desk.come("a4", deadline=desk.now + 20.1)
    await desk.come("b1", deadline=desk.now + 20.1)  # its turn comes before a4's
    assert desk.gate.waiting["interactive"] == 3
    assert desk.refused == {("interactive", "deadline_too_short"): 1}
    await desk.end()


async def test_where_nothing_is_known_nothing_is_too_late() -> None:
    desk = Desk(running=1)
    await desk.come("a1")
    await desk.come("a2", deadline=desk.now + 0.001)
    assert desk.gate.waiting["interactive"] == 1
    await desk.end()


async def test_a_deadline_that_is_too_short_displaces_nobody() -> None:
    desk = Desk(running=1, waiting=2)
    await usual(desk, 10.0)
    await desk.come("a1", "a2", "a3")
    await desk.come("b1", deadline=desk.now + 1.0)
    assert isinstance(await desk.error("b1"), CannotBeInTime)
    assert desk.gate.waiting["interactive"] == 2
    await desk.end()


async def test_the_calls_of_the_lane_are_refused_nothing_and_fill_nobodys_queue() -> None:
    desk = Desk(running=1, waiting=1)
    await usual(desk, 10.0, "Z0")
    await desk.come("A0", *(f"A{number}" for number in range(1, 20)), deadline=desk.now + 0.1, patient=True)
    await desk.come("A20", "B1")  # B1 has fewer that count than A, but as few as it would have itself
    assert isinstance(await desk.error("B1"), Overloaded)
    assert desk.gate.waiting["batch"] == 20
    assert desk.refused == {("batch", "backend_overloaded"): 1}
    await desk.end()
    assert len(desk.went) == 21


async def test_in_a_full_queue_it_is_no_call_of_the_lane_that_makes_room() -> None:
    desk = Desk(running=1, waiting=2)
    await desk.come("A0", "B1", "B2")
    await desk.come("B3", "B4", "C1", "C2", "C3", patient=True)
    await desk.come("D1")
    assert isinstance(await desk.error("B2"), Overloaded)
    assert desk.gate.waiting["batch"] == 7
    await desk.end()
    assert set(desk.went) == {"A0", "B1", "B3", "B4", "C1", "C2", "C3", "D1"}


@pytest.mark.parametrize(("interactive", "expected"), [([], 20.0), (["a1"], 20.0)])
async def test_a_batch_call_that_cannot_be_in_time_is_refused_at_once(interactive: list[str], expected: float) -> None:
    """What comes before it in its own class is what counts, as long as the share of its class is used up."""
    desk = Desk(running=2, batch=1, waiting=9)
    await usual(desk, 10.0, "Z0")
    await desk.come(*interactive, "A1", "A2")
    await desk.come("A3", deadline=desk.now + expected - 0.1)
    assert isinstance(await desk.error("A3"), CannotBeInTime)
    await desk.come("A4", deadline=desk.now + expected + 0.1)
    assert desk.gate.waiting["batch"] == 2
    assert desk.refused == {("batch", "deadline_too_short"): 1}
    await desk.end()


async def test_a_batch_call_waits_for_the_interactive_ones_before_it() -> None:
    desk = Desk(running=1, batch=1, waiting=9)
    await usual(desk, 10.0)
    await desk.come("a1", "a2")
    await desk.come("A1", deadline=desk.now + 19.9)
    error = await desk.error("A1")
    assert isinstance(error, CannotBeInTime)
    assert error.retry_after == pytest.approx(0.1)
    await desk.end()


async def test_slow_batch_calls_refuse_no_interactive_one() -> None:
    """Places that interactive calls have become free as often as before."""
    desk = Desk(running=4, batch=2, waiting=9)
    await usual(desk, 30.0, "Z0")
    await usual(desk, 0.1)
    await desk.come("A1", "A2", "a1", "a2")
    await desk.come("a3", deadline=desk.now + 3.0)
    assert desk.gate.waiting["interactive"] == 1
    assert not desk.refused
    await desk.come("a4", deadline=desk.now + 0.09)
    assert isinstance(await desk.error("a4"), CannotBeInTime)
    await desk.end()


async def test_quick_batch_calls_promise_nothing_to_an_interactive_one() -> None:
    desk = Desk(running=2, batch=1, waiting=9)
    await usual(desk, 0.1, "Z0")
    await usual(desk, 30.0)
    await desk.come("a1", "a2", "a3")
    await desk.come("a4", deadline=desk.now + 29.0)
    assert isinstance(await desk.error("a4"), CannotBeInTime)
    await desk.end()


async def test_of_two_classes_that_run_both_have_to_be_known() -> None:
    desk = Desk(running=1, batch=1, waiting=9)
    await usual(desk, 10.0)
    await desk.come("A1")
    await desk.come("a1", deadline=desk.now + 1.0)  # nothing is known of what it waits for
    assert desk.gate.waiting["interactive"] == 1
    await desk.end()


async def test_a_tenant_with_many_users_has_one_tenants_turns() -> None:
    desk = Desk(running=1, waiting=9)
    await desk.come("a0", "a1", "b1", "c1", "d1", tenant="acme")
    await desk.come("x1", "x2", tenant="globex")
    for name in ("a0", "a1", "x1", "b1", "x2", "c1"):
        await desk.go(name)
    assert desk.went == ["a0", "a1", "x1", "b1", "x2", "c1", "d1"]
    await desk.end()


async def test_a_full_queue_is_no_tenants_alone_whatever_users_it_names() -> None:
    desk = Desk(running=1, waiting=4)
    await desk.come("a0", "a1", "b1", "c1", "d1", tenant="acme")
    await desk.come("x1", tenant="globex")
    await desk.come("x2", "x3", tenant="globex")  # the third would be one more than the other tenant's two
    assert isinstance(await desk.error("x3"), Overloaded)
    assert desk.refused == {("interactive", "backend_overloaded"): 3}
    await desk.end()
    assert {"x1", "x2"} <= set(desk.went)
    assert len(desk.went) == 5


async def test_within_a_tenant_the_user_with_the_most_makes_room() -> None:
    desk = Desk(running=1, waiting=3)
    await desk.come("a0", "a1", "a2", "a3", tenant="acme")
    await desk.come("b1", "b2", tenant="acme")
    assert isinstance(await desk.error("a3"), Overloaded)
    assert isinstance(await desk.error("b2"), Overloaded)
    await desk.end()
    assert desk.went == ["a0", "a1", "b1", "a2"]


# Cancellation


async def test_who_leaves_the_queue_makes_room_in_it() -> None:
    desk = Desk(running=1, waiting=1)
    await desk.come("a1", "a2")
    desk.tasks["a2"].cancel()
    await turns()
    assert desk.gate.waiting["interactive"] == 0
    await desk.come("a3")
    await desk.go("a1")
    assert desk.went == ["a1", "a3"]
    await desk.end()


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_place_is_not_lost_on_who_leaves_at_that_moment(cancelled_first: bool) -> None:
    desk = Desk(running=1)
    await desk.come("a1", "a2", "a3")
    place, task = desk.places.pop("a1"), desk.tasks["a2"]
    for step in (task.cancel, place.leave) if cancelled_first else (place.leave, task.cancel):
        step()
    await turns()
    assert desk.went == ["a1", "a3"]
    await desk.end()


async def test_who_is_displaced_may_leave_at_that_moment() -> None:
    desk = Desk(running=1, waiting=2)
    await desk.come("a1", "a2", "a3")
    newcomer = asyncio.create_task(desk._enter("b1", Turn(), "b"))
    await asyncio.sleep(0)
    desk.tasks["a3"].cancel()
    await turns()
    assert desk.tasks["a3"].cancelled()
    await desk.go("a1", "a2")
    await newcomer
    assert desk.went == ["a1", "a2", "b1"]
    await desk.end()


# Other limits


async def test_more_places_are_filled_at_once_and_fewer_send_nobody_away() -> None:
    desk = Desk(running=1, batch=1, waiting=9)
    await desk.come("a1", "a2", "a3", "A1", "A2")
    desk.gate.limit(Limits(4, 2, 9))
    await turns()
    assert desk.went == ["a1", "a2", "a3", "A1"]
    desk.gate.limit(Limits(1, 1, 1))
    await desk.come("b1", "b2")
    assert isinstance(await desk.error("b2"), Overloaded)
    await desk.go("a1", "a2", "a3")
    assert desk.went == ["a1", "a2", "a3", "A1"]
    await desk.go("A1")
    assert desk.went[-1] == "b1"
    desk.gate.limit(Limits(None, 8, 1))
    await turns()
    assert desk.went[-2:] == ["b1", "A2"]
    await desk.end()


# Anything, in any order


STEPS = st.lists(st.tuples(st.sampled_from(["come", "go", "cancel", "limit"]), st.integers(0, 99)), max_size=40)


@settings(deadline=None, max_examples=200)
@given(STEPS, st.sampled_from([1, 2, 4, None]), st.integers(1, 3), st.integers(1, 4))
def test_whatever_happens_no_place_is_lost_or_given_twice(
    steps: list[tuple[str, int]], running: int | None, batch: int, waiting: int
) -> None:
    async def run() -> None:
        desk = Desk(running, batch, waiting)
        most, lowered = running, False
        for number, (step, choice) in enumerate(steps):
            match step:
                case "come":
                    await desk.come(f"{'abcABC'[choice % 6]}{number}")
                case "go" if desk.places:
                    await desk.go(list(desk.places)[choice % len(desk.places)], after=1.0)
                case "cancel" if desk.tasks:
                    list(desk.tasks.values())[choice % len(desk.tasks)].cancel()
                    await turns()
                case "limit":
                    most, lowered = 1 + choice % 4, True
                    desk.gate.limit(Limits(most, batch, waiting))
                    await turns()
            held = Counter("batch" if name[0].isupper() else "interactive" for name in desk.places)
            assert desk.gate.running == {priority: held[priority] for priority in PRIORITIES}
            total, queued = held.total(), desk.gate.waiting
            assert max(queued.values()) <= waiting
            assert held["batch"] <= batch
            if not lowered:
                assert most is None or total <= most
            free = most is None or total < most
            assert not (free and queued["interactive"])
            assert not (free and queued["batch"] and held["batch"] < batch)
        await desk.end()
        await asyncio.gather(*desk.tasks.values(), return_exceptions=True)

    asyncio.run(run())
