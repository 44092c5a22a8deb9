"""The sequences that are in the model together, and the memory they share with the prefix cache. One thread uses this.

A sequence gets memory for all its tokens when it comes in and more while it grows. When there is none left, the one
that came in last has to leave; what the prefix cache cannot keep of it is computed again when it comes back. Batch
sequences leave before interactive ones, and also when one of these wants to come in.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from backends.base import Priority
from backends.local.kv import GROWTH, Budget
from backends.local.plan import plan
from backends.local.prefix import BLOCK, PrefixCache
from backends.local.sequence import Sequence

Parts = list[tuple[Sequence, int]]
"""How many of its tokens each sequence computes in a step."""


class Running:
    """`most` sequences at once. `budget` is in tokens."""

    def __init__(self, budget: Budget, prefix: PrefixCache, most: int) -> None:
        self._budget = budget
        self._prefix = prefix
        self._most = most
        self._sequences: list[Sequence] = []  # those that came in first come first

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._sequences))

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._sequences

    def free(self, priority: Priority) -> int:
        """How many more of this priority may come in, if there is memory."""
        return self._most - len(self) + len(self._yielding(priority))

    def parties(self, priority: Priority) -> Mapping[str, int]:
        return Counter(sequence.party for sequence in self.of(priority))

    def of(self, priority: Priority) -> list[Sequence]:
        return [sequence for sequence in self if sequence.priority == priority]

    def room(self, sequence: Sequence, put_out: Callable[[Sequence], None]) -> Literal["yes", "later", "never"]:
        """Whether this one can come in. Makes room for it, in the prefix cache and among those that make way for it,
        which `put_out` gets: the latest first, and no more than need be."""
        yielding = self._yielding(sequence.priority)
        staying = len(self) - len(yielding)
        if staying >= self._most:
            return "later"
        # What it can use of the prefix cache counts as used, so that it does not go to make room for it.
        self._prefix.known(sequence.job.work.salt, sequence.tokens)
        wanted = sequence.kv.wanted(len(sequence.tokens) + 1)
        if self._prefix.available + sum(other.kv.capacity for other in yielding) < wanted + GROWTH * staying:
            return "later" if staying else "never"
        # Those that run will grow; without this reserve they would put out the new one at once.
        while len(self) >= self._most or not self._prefix.make_room(wanted + GROWTH * len(self)):
            self._leave(yielding.pop(), put_out)
        return "yes"

    def add(self, sequence: Sequence) -> None:
        """Let one in that there is room for. It is in, too, where the system has no memory for it."""
        self._sequences.append(sequence)
        sequence.kv.grow(len(sequence.tokens) + 1)

    def remove(self, sequence: Sequence) -> None:
        self._sequences.remove(sequence)
        sequence.kv.release()

    def next_parts(self, put_out: Callable[[Sequence], None], failed: Callable[[Sequence, Exception], None]) -> Parts:
        """What the next step computes, with room for it. `put_out` gets those that have to leave for that, `failed`
        those that the system has no memory for."""
        parts = self._plan()
        for sequence, count in parts:
            length = sequence.kv.length + count
            while sequence in self and not self._prefix.make_room(sequence.kv.wanted(length)):
                self._leave((self.of("batch") or self._sequences)[-1], put_out)
            if sequence in self:
                try:
                    sequence.kv.grow(length)
                except Exception as error:
                    failed(sequence, error)
        return [(sequence, count) for sequence, count in parts if sequence in self]

    def keep(self, sequence: Sequence) -> None:
        """Remember in the prefix cache what was computed of a sequence."""
        self._prefix.keep(sequence.job.work.salt, sequence.tokens[: sequence.kv.length], sequence.kv)

    def _leave(self, sequence: Sequence, put_out: Callable[[Sequence], None]) -> None:
        self.keep(sequence)
        self.remove(sequence)
        put_out(sequence)

    def _yielding(self, priority: Priority) -> list[Sequence]:
        """Those that make way for one of this priority."""
        return self.of("batch") if priority == "interactive" else []

    def _plan(self) -> Parts:
        left: list[int] = []
        leaders: dict[int, int] = {}
        for number, sequence in enumerate(self._sequences):
            if sequence.kv.length == 0:
                leader = self._leader(sequence, number)
                if leader is not None:
                    leaders[number] = leader
                    left.append(0)
                    continue
                self._prefix.fill(sequence.job.work.salt, sequence.tokens, sequence.kv)
            left.append(sequence.left)
        # A short one that waits for a long one must not wait as long as that: it lends it its place.
        urgent = [sequence.left for sequence in self._sequences]
        batch = {number for number, sequence in enumerate(self._sequences) if sequence.priority == "batch"}
        for number, leader in reversed(leaders.items()):
            if (number in batch) == (leader in batch):
                urgent[leader] = min(urgent[leader], urgent[number])
        return [(self._sequences[part.index], part.tokens) for part in plan(left, urgent, batch)]

    def _leader(self, sequence: Sequence, number: int) -> int | None:
        """The one that came in earlier and computes tokens that this one can soon take from the prefix cache. With a
        batch one that may take long: no interactive one waits for it."""
        known = self._prefix.known(sequence.job.work.salt, sequence.tokens)
        for leader, other in enumerate(self._sequences[:number]):
            if sequence.priority == "interactive" and other.priority == "batch":
                continue
            shared = min(other.shared(sequence), len(sequence.tokens) - 1) // BLOCK * BLOCK
            if shared > known and other.kv.length < shared:
                return leader
        return None
