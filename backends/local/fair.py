"""The queue before the model: who comes next, among parties that share it fairly."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar


class Member(Protocol):
    @property
    def party(self) -> str: ...


M = TypeVar("M", bound=Member)


class FairQueue(Generic[M]):
    """First come, first served within a party. Between parties the one with the fewest running comes first, of equal
    ones that which was served longest ago. What is put back comes before all others."""

    def __init__(self) -> None:
        self._returned: deque[M] = deque()
        self._parties: OrderedDict[str, deque[M]] = OrderedDict()  # served longest ago first

    def __iter__(self) -> Iterator[M]:
        yield from self._returned
        for members in self._parties.values():
            yield from members

    def __bool__(self) -> bool:
        return bool(self._returned or self._parties)

    def put(self, member: M) -> None:
        self._parties.setdefault(member.party, deque()).append(member)

    def put_back(self, member: M) -> None:
        """One that was running and has to wait again, before those put back earlier: they had begun later."""
        self._returned.appendleft(member)

    def first(self, running: Mapping[str, int]) -> M | None:
        """The next one, which stays in the queue. `running`: how many each party has running."""
        if self._returned:
            return self._returned[0]
        party = min(self._parties, key=lambda party: running.get(party, 0), default=None)
        return None if party is None else self._parties[party][0]

    def take(self, member: M) -> None:
        """Take out one whose turn it is: its party has been served. Raises ValueError where it is not in the queue."""
        self.remove(member)
        if member.party in self._parties:
            self._parties.move_to_end(member.party)

    def remove(self, member: M) -> None:
        """Take out one that waits no more. Raises ValueError where it is not in the queue."""
        if member in self._returned:
            self._returned.remove(member)
            return
        members = self._parties.get(member.party, deque())
        members.remove(member)
        if not members:
            del self._parties[member.party]
