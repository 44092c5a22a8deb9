"""What a call that waits for its turn takes: nothing before it is sent."""

from time import perf_counter

import pytest

from gateway.prices.bill import Bill, Learners
from gateway.prices.hardware import Hardware
from tests.gateway.flying import Hub
from tests.support.upstream import chat_answer

ANSWER = chat_answer("Hello.")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def learners(clock: Clock) -> Learners:
    return Learners(hardware=Hardware(clock))


@pytest.fixture
async def bill(learners: Learners) -> Bill:
    visit, ask = Hub().visit()
    return Bill(learners, visit, ask, 100)


async def test_a_call_that_never_had_its_turn_took_nothing(bill: Bill, learners: Learners, clock: Clock) -> None:
    bill.waits()
    clock.now += 120
    bill.settle({}, left=True)
    bill.end()
    assert not bill.settled
    assert (bill.usage.total, bill.cost.ms) == (0, 0.0)
    assert learners.hardware.machine("fake").utilization() == 0.0


async def test_a_call_begins_when_its_turn_comes(bill: Bill, learners: Learners, clock: Clock) -> None:
    machine = learners.hardware.machine("fake")
    created = bill.begun
    bill.waits()
    clock.now += 60
    bill.begins()
    mark, began = bill._mark, perf_counter()
    assert created < bill.begun <= began
    assert bill._visit.decision.phases["queue"] == pytest.approx((bill.begun - created) * 1000)
    clock.now += 60
    bill.settle(ANSWER)
    bill.end()
    assert bill.settled
    assert bill.cost.ms <= (perf_counter() - bill.begun) * 1000
    assert machine.took(mark) == 60.0
    assert machine.utilization() == 0.5


async def test_its_deadline_is_that_of_its_request(bill: Bill) -> None:
    assert bill.deadline is None
    bill._visit.deadline = 5.0
    assert bill.deadline == 5.0
