"""Who comes next. Against what the order promises, over random arrivals, returns and departures."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backends.local.fair import FairQueue

PARTIES = ["", "a", "b", "c"]


@dataclass(eq=False, frozen=True)
class Member:
    party: str
    number: int


class Door(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[Member] = FairQueue()
        self.waiting: list[Member] = []  # in the order of their arrival
        self.returned: list[Member] = []  # the next one first
        self.running: list[Member] = []
        self.count = 0
        self.passed: Counter[str] = Counter()  # of a waiting party: how often another one was served before it

    @rule(party=st.sampled_from(PARTIES))
    def put(self, party: str) -> None:
        self.count += 1
        member = Member(party, self.count)
        self.queue.put(member)
        self.waiting.append(member)

    @rule(evenly=st.booleans())
    def serve(self, evenly: bool) -> None:
        counts = Counter() if evenly else Counter(member.party for member in self.running)
        member = self.queue.first(counts)
        if member is None:
            assert not self.waiting
            assert not self.returned
            return
        assert self.queue.first(counts) is member  # it stays
        if self.returned:
            assert member is self.returned.pop(0)
        else:
            assert member is next(other for other in self.waiting if other.party == member.party)
            assert counts[member.party] == min(counts[other.party] for other in self.waiting)
            self.waiting.remove(member)
            for party in {other.party for other in self.waiting} - {member.party}:
                self.passed[party] += evenly
                assert self.passed[party] < len(PARTIES), "another party's turn came twice before its own"
            self.passed[member.party] = 0
            if not evenly:
                self.passed.clear()  # those with few running overtake the others
        self.queue.take(member)
        self.running.append(member)

    @precondition(lambda self: self.running)
    @rule()
    def put_back(self) -> None:
        """As preemption does it: the latest first."""
        member = self.running.pop()
        self.queue.put_back(member)
        self.returned.insert(0, member)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 1000))
    def end(self, which: int) -> None:
        self.running.pop(which % len(self.running))

    @precondition(lambda self: self.waiting or self.returned)
    @rule(which=st.integers(0, 1000))
    def leave(self, which: int) -> None:
        everyone = self.waiting + self.returned
        member = everyone[which % len(everyone)]
        (self.waiting if member in self.waiting else self.returned).remove(member)
        self.queue.remove(member)
        with pytest.raises(ValueError):  # noqa: PT011
            self.queue.remove(member)
        if not any(other.party == member.party for other in self.waiting):
            self.passed[member.party] = 0

    @invariant()
    def nobody_is_lost(self) -> None:
        inside = list(self.queue)
        assert bool(self.queue) == bool(inside)
        assert set(inside) == {*self.waiting, *self.returned}
        assert len(inside) == len(self.waiting) + len(self.returned)
        assert inside[: len(self.returned)] == self.returned


TestDoor = Door.TestCase
TestDoor.settings = settings(max_examples=40, stateful_step_count=40, derandomize=True, deadline=None)


def served(queue: FairQueue[Member]) -> Member:
    member = queue.first({})
    assert member is not None
    queue.take(member)
    return member


def test_one_that_comes_alone_does_not_wait_for_fifty_of_another() -> None:
    queue: FairQueue[Member] = FairQueue()
    for number in range(50):
        queue.put(Member("many", number))
    served(queue)
    queue.put(Member("one", 0))
    assert "one" in [served(queue).party for _ in range(2)]


def test_a_party_that_withdraws_does_not_lose_its_turn() -> None:
    queue: FairQueue[Member] = FairQueue()
    first = Member("a", 0)
    for member in (first, Member("b", 0), Member("a", 1), Member("b", 1)):
        queue.put(member)
    queue.remove(first)
    assert [served(queue).party for _ in range(3)] == ["a", "b", "b"]
