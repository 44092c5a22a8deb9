"""Queues in which parties take turns: each party's next comes after one of every other's, however many it has.

A tenant may have any number of users, so where tenants share something they take turns first, and the users of each
tenant among themselves.
"""

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sized
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """Of one party the first that came is the first to go."""

    def __init__(self) -> None:
        self._parties: OrderedDict[str, dict[T, None]] = OrderedDict()  # none is empty; the first one's turn is next
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, party: str, item: T) -> None:
        self._parties.setdefault(party, {})[item] = None
        self._length += 1

    def pop(self) -> T:
        """The next one. Raises StopIteration when there is none."""
        party = next(iter(self._parties))
        item = next(iter(self._parties[party]))
        self._parties.move_to_end(party)
        self.discard(party, item)
        return item

    def pop_last(self, party: str) -> T:
        """The one of this party that has waited least."""
        item = next(reversed(self._parties[party]))
        self.discard(party, item)
        return item

    def discard(self, party: str, item: T) -> bool:
        """Take this one out, if it is there; says whether it was."""
        items = self._parties.get(party, {})
        if item not in items:
            return False
        del items[item]
        self._length -= 1
        if not items:
            del self._parties[party]
        return True

    def of(self, party: str) -> int:
        """How many this party has in it."""
        return len(self._parties.get(party, ()))

    def largest(self) -> str:
        """The party with the most. Raises ValueError when there is none."""
        return max(self._parties, key=self.of)

    def ahead(self, party: str) -> int:
        """How many would go before one that this party would push now."""
        return _ahead(self._parties, party, self.of(party))


class TenantQueue(Generic[T]):
    """Tenants take turns, and the users of each."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, FairQueue[T]] = OrderedDict()  # as the parties above
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, tenant: str, user: str, item: T) -> None:
        self._tenants.setdefault(tenant, FairQueue()).push(user, item)
        self._length += 1

    def pop(self) -> T:
        """The next one. Raises StopIteration when there is none."""
        tenant = next(iter(self._tenants))
        item = self._tenants[tenant].pop()
        self._tenants.move_to_end(tenant)
        self._taken(tenant)
        return item

    def discard(self, tenant: str, user: str, item: T) -> None:
        """Take this one out, if it is there."""
        if (queue := self._tenants.get(tenant)) is not None and queue.discard(user, item):
            self._taken(tenant)

    def displace(self, tenant: str, user: str) -> T | None:
        """Take out the last one of whoever has so many that this user would still have fewer with one more: the largest
        tenant's, or else one of its own tenant's. None where nobody has."""
        if not self._tenants:
            return None
        own = self._tenants.get(tenant)
        largest = max(self._tenants, key=lambda name: len(self._tenants[name]))
        queue = self._tenants[largest]
        if len(queue) <= (0 if own is None else len(own)) + 1:  # in its place we would be displaced ourselves
            if own is None or own.of(own.largest()) <= own.of(user) + 1:
                return None
            largest, queue = tenant, own
        item = queue.pop_last(queue.largest())
        self._taken(largest)
        return item

    def ahead(self, tenant: str, user: str) -> int:
        """How many would go before one that this user would push now."""
        own = self._tenants.get(tenant)
        return _ahead(self._tenants, tenant, 0 if own is None else own.ahead(user))

    def _taken(self, tenant: str) -> None:
        """One of this tenant's is out."""
        self._length -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]


def _ahead(parties: Mapping[str, Sized], party: str, own: int) -> int:
    """How many go before one that has so many of its own party's before it."""
    before, total = 1, own
    for name, items in parties.items():
        if name == party:
            before = 0  # those behind it have their turns after its own
        else:
            total += min(len(items), own + before)
    return total
