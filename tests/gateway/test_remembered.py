"""Keys remembered for a while: until one instant, and never more than so many."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.remembered import LIMIT, Remembered
from tests.contract.stores import START, Clock
from tests.gateway.values import some


def key(number: int) -> bytes:
    return number.to_bytes(32)


def test_a_key_is_there_up_to_one_instant() -> None:
    clock = Clock()
    remembered = Remembered(120, clock)
    assert key(1) not in remembered
    remembered.add(key(1))
    for after, there in ((0, True), (119.999, True), (120, False), (1e9, False)):
        clock.time = START + after
        assert (key(1) in remembered) == there
        assert key(2) not in remembered


def test_adding_it_again_begins_anew() -> None:
    clock = Clock()
    remembered = Remembered(120, clock)
    remembered.add(key(1))
    clock.time = START + 100
    remembered.add(key(1))
    clock.time = START + 219
    assert key(1) in remembered
    clock.time = START + 220
    assert key(1) not in remembered


def test_looking_does_not_prolong_it() -> None:
    clock = Clock()
    remembered = Remembered(120, clock)
    remembered.add(key(1))
    for second in range(120):
        clock.time = START + second
        assert key(1) in remembered
    clock.time = START + 120
    assert key(1) not in remembered


def test_a_key_can_be_forgotten() -> None:
    remembered = Remembered(120, Clock())
    remembered.add(key(1))
    remembered.add(key(2))
    remembered.discard(key(1))
    remembered.discard(key(3))
    assert key(1) not in remembered
    assert key(2) in remembered


def test_the_oldest_go_when_there_are_too_many() -> None:
    remembered = Remembered(120, Clock())
    for number in range(LIMIT + 5):
        remembered.add(key(number))
    there = [key(number) in remembered for number in range(LIMIT + 5)]
    assert there == [False] * 5 + [True] * LIMIT
    remembered.add(key(5))  # now the youngest, and no other had to go for it
    remembered.add(key(LIMIT + 5))
    assert key(5) in remembered
    assert key(6) not in remembered
    assert key(7) in remembered
    assert size(remembered) == LIMIT


def test_those_that_have_ended_take_no_place() -> None:
    clock = Clock()
    remembered = Remembered(120, clock)
    for number in range(1000):
        remembered.add(key(number))
    clock.time = START + 120
    remembered.add(key(1000))
    assert size(remembered) == 1


def size(remembered: Remembered) -> int:
    return len(remembered._until)


steps = st.lists(
    st.tuples(st.sampled_from(["add", "discard"]), st.integers(0, 4), st.sampled_from([0.0, 1.0, 60.0, 119.5, 121.0])),
    max_size=30,
)


@some
@given(steps)
def test_it_says_what_a_plain_list_of_times_would(steps: list[tuple[str, int, float]]) -> None:
    clock = Clock()
    remembered = Remembered(120, clock)
    until: dict[int, float] = {}
    for what, number, later in steps:
        clock.time += later
        if what == "add":
            remembered.add(key(number))
            until[number] = clock.time + 120
        else:
            remembered.discard(key(number))
            until.pop(number, None)
        for other in range(5):
            assert (key(other) in remembered) == (clock.time < until.get(other, 0))


def test_a_clock_that_steps_back_keeps_nothing_for_ever() -> None:
    clock = Clock()
    remembered = Remembered(120, clock)
    remembered.add(key(1))
    clock.time = START - 1000
    remembered.add(key(2))
    assert key(1) in remembered
    clock.time = START - 880
    assert key(2) not in remembered
    clock.time = START + 120
    assert key(1) not in remembered
    remembered.add(key(3))
    assert size(remembered) == 1
