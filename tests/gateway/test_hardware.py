"""What an hour costs is shared by the calls that are made in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prices.hardware import FLOOR, SETTLED, Hardware, Machine, call_on_own, utilization_used
from tests.gateway.values import some


class Mono:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def mono() -> Mono:
    return Mono()


def test_calls_that_run_side_by_side_share_the_time(mono: Mono) -> None:
    machine = Machine(mono)
    first = machine.begin()
    mono.now += 2
    second = machine.begin()
    mono.now += 4
    assert machine.took(first) == pytest.approx(2 + 2)
    machine.end()
    mono.now += 1
    assert machine.took(second) == pytest.approx(2 + 1)
    machine.end()
    mono.now += 100
    assert machine.took(second) == pytest.approx(3)


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40)


@some
@given(steps)
def test_the_parts_of_all_calls_are_the_time_in_which_the_machine_works(steps: list[tuple[bool, int]]) -> None:
    mono = Mono()
    machine, running, shares, busy = Machine(mono), [], 0.0, 0
    for begins, pause in [*steps, *[(False, 0)] * len(steps)]:
        if begins:
            running.append(machine.begin())
        elif running:
            shares += machine.took(running.pop(0))
            machine.end()
        mono.now += pause
        busy += pause if running else 0
    assert shares == pytest.approx(busy)


def test_utilization_is_the_busy_part_of_the_last_hour(mono: Mono) -> None:
    machine = Machine(mono)
    assert machine.utilization() is None
    machine.begin()
    mono.now += 150
    machine.end()
    mono.now += 150
    assert machine.utilization() == pytest.approx(0.5)
    mono.now += 3300
    assert machine.utilization() == pytest.approx(150 / 3600, abs=1 / 60)
    mono.now += 3600
    assert machine.utilization() == 0
    machine.begin()
    mono.now += 5 * 3600
    assert machine.utilization() == pytest.approx(1, abs=1 / 60)


def test_a_cold_start_and_an_idle_machine_make_no_absurd_prices(mono: Mono) -> None:
    machine = Machine(mono)
    machine.begin()
    mono.now += 1
    machine.end()
    mono.now += 100
    assert utilization_used(machine, None) == 1
    mono.now += SETTLED
    assert machine.utilization() == pytest.approx(1 / (SETTLED + 101))
    assert utilization_used(machine, None) == FLOOR
    assert utilization_used(machine, 0.02) == 0.02  # whoever sets it means it


def test_a_call_costs_its_part_of_the_hour() -> None:
    time_only = {"hourly": 0.36, "output": 0, "decode_tps": None}
    assert call_on_own(**time_only, seconds=1, shared=1, utilization=1) == pytest.approx(0.0001)
    assert call_on_own(**time_only, seconds=4, shared=1, utilization=1) == pytest.approx(0.0001)
    assert call_on_own(**time_only, seconds=1, shared=1, utilization=0.5) == pytest.approx(0.0002)
    assert call_on_own(hourly=0, output=5, decode_tps=3, seconds=1, shared=1, utilization=1) == 0


def test_where_the_speed_is_known_it_is_the_tokens_that_count() -> None:
    """As in the example of `refrain estimate`: 2,400 tokens a second, here by 16 calls of 150 each."""
    one = call_on_own(3.60, seconds=32, shared=2, output=300, decode_tps=150, utilization=0.70)
    assert one * 1000 == pytest.approx(0.1786, abs=5e-5)
    alone = call_on_own(3.60, seconds=2, shared=2, output=300, decode_tps=150, utilization=1)
    assert alone == pytest.approx(3.60 * 2 / 3600)


def test_the_speed_is_asked_for_by_backend_and_model(mono: Mono) -> None:
    asked = []

    def speed(backend: str, model: str) -> float:
        asked.append((backend, model))
        return 100.0

    hardware = Hardware(mono, speed)
    mark = hardware.machine("local").begin()
    mono.now += 3
    found = hardware.cost("local", "m", mark, ms=3000, output=200, hourly=3.6, utilization=0.5)
    assert found == pytest.approx(3.6 * 200 / (100 * 0.5 * 3600))
    assert hardware.cost("local", "m", mark, ms=3000, output=0, hourly=3.6, utilization=None) == pytest.approx(0.003)
    assert asked == [("local", "m")]
    mono.now += 60
    assert hardware.utilization("local", None) == {"configured": None, "measured": 1.0, "used": 1.0}
