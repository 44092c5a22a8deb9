"""The queue in which parties take turns, against one that is plainly right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fair import FairQueue, TenantQueue

PARTIES = st.sampled_from("abc")


def queue(pushed: str) -> FairQueue[str]:
    """Items are named after their party and their number: a1, a2."""
    made: FairQueue[str] = FairQueue()
    for index, party in enumerate(pushed):
        made.push(party, f"{party}{pushed[: index + 1].count(party)}")
    return made


def drained(waiting: FairQueue[str]) -> list[str]:
    return [waiting.pop() for _ in range(len(waiting))]


@pytest.mark.parametrize(
    ("pushed", "popped"),
    [
        ("", []),
        ("aaa", ["a1", "a2", "a3"]),
        ("aaab", ["a1", "b1", "a2", "a3"]),
        ("aaabbc", ["a1", "b1", "c1", "a2", "b2", "a3"]),
        ("abcabc", ["a1", "b1", "c1", "a2", "b2", "c2"]),
    ],
)
def test_parties_take_turns(pushed: str, popped: list[str]) -> None:
    assert drained(queue(pushed)) == popped


def test_a_party_that_comes_back_has_its_turn_after_the_others() -> None:
    waiting = queue("ab")
    assert waiting.pop() == "a1"
    waiting.push("a", "a2")
    assert drained(waiting) == ["b1", "a2"]


def test_one_that_leaves_costs_its_party_no_turn() -> None:
    waiting = queue("aabb")
    waiting.discard("a", "a1")
    waiting.discard("a", "a1")
    waiting.discard("z", "z1")
    assert len(waiting) == 3
    assert drained(waiting) == ["a2", "b1", "b2"]


def test_the_last_one_of_the_largest_party() -> None:
    waiting = queue("abbbaa")
    assert waiting.of("b") == 3
    waiting.push("b", "b4")
    assert waiting.largest() == "b"
    assert waiting.pop_last("b") == "b4"
    assert waiting.of("z") == 0
    with pytest.raises(ValueError, match="empty"):
        queue("").largest()


@given(st.text(PARTIES, max_size=12), st.integers(0, 6), PARTIES)
def test_how_many_are_ahead_is_how_many_go_before(pushed: str, popped: int, party: str) -> None:
    waiting = queue(pushed)
    for _ in range(min(popped, len(waiting))):
        waiting.pop()
    ahead = waiting.ahead(party)
    waiting.push(party, "new")
    assert drained(waiting).index("new") == ahead


@given(st.text(PARTIES, max_size=15))
def test_nobody_is_passed_twice_by_one_party(pushed: str) -> None:
    order = drained(queue(pushed))
    assert sorted(order) == sorted(drained(queue(pushed)))
    for index, item in enumerate(order):
        before = [other[0] for other in order[:index]]
        number = int(item[1:])
        assert all(before.count(party) <= number for party in "abc")


# Tenants and their users


NAMES = st.sampled_from(["ga", "gb", "gc", "ha", "hb", "ia"])
"""A tenant and one of its users."""


def tenants(pushed: list[str]) -> TenantQueue[str]:
    """Items are named after their tenant, their user and their number: ga1, ga2."""
    made: TenantQueue[str] = TenantQueue()
    for index, name in enumerate(pushed):
        made.push(name[0], name[1], f"{name}{pushed[: index + 1].count(name)}")
    return made


def emptied(waiting: TenantQueue[str]) -> list[str]:
    return [waiting.pop() for _ in range(len(waiting))]


def test_tenants_take_turns_and_the_users_of_each() -> None:
    waiting = tenants(["ga", "ga", "gb", "gc", "ha", "ha"])
    assert emptied(waiting) == ["ga1", "ha1", "gb1", "ha2", "gc1", "ga2"]


@given(st.lists(NAMES, max_size=12), st.integers(0, 6), NAMES)
def test_how_many_are_ahead_of_a_tenants_user_is_how_many_go_before(pushed: list[str], popped: int, name: str) -> None:
    waiting = tenants(pushed)
    for _ in range(min(popped, len(waiting))):
        waiting.pop()
    ahead = waiting.ahead(name[0], name[1])
    waiting.push(name[0], name[1], "new")
    assert emptied(waiting).index("new") == ahead


@given(st.lists(NAMES, max_size=12), NAMES)
def test_who_displaces_has_no_more_than_whom_it_displaces(pushed: list[str], name: str) -> None:
    def of(group: str) -> int:
        return sum(other.startswith(group) for other in pushed)

    waiting = tenants(pushed)
    item = waiting.displace(name[0], name[1])
    left = emptied(waiting)
    assert len(left) == len(pushed) - (item is not None)
    others = [of(tenant) for tenant in "ghi" if tenant != name[0]]
    if item is None:
        assert max(others) <= of(name[0]) + 1
        assert all(of(other) <= of(name) + 1 for other in pushed if other[0] == name[0])
    elif item[0] != name[0]:
        assert of(item[0]) == max(others) > of(name[0]) + 1
    else:
        assert of(item[:2]) > of(name) + 1


def test_one_that_leaves_costs_its_tenant_no_turn() -> None:
    waiting = tenants(["ga", "gb", "ha"])
    waiting.discard("g", "a", "ga1")
    waiting.discard("g", "a", "ga1")
    waiting.discard("z", "a", "za1")
    assert len(waiting) == 2
    assert emptied(waiting) == ["gb1", "ha1"]
