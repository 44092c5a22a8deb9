"""The sequences that are in the model together, and the memory they share with the prefix cache. One thread uses this.

A sequence gets memory for all its tokens when it comes in and more while it grows. When there is none left, the one
that came in last has to leave; its tokens are computed again when it comes back.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

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

    @property
    def free(self) -> int:
        """How many more may come in, if there is memory."""
        return self._most - len(self._sequences)

    def parties(self) -> Mapping[str, int]:
        return Counter(sequence.party for sequence in self._sequences)

    def room(self, sequence: Sequence) -> Literal["yes", "later", "never"]:
        """Whether this one can come in. Makes room in the prefix cache for it."""
        if self.free <= 0:
            return "later"
        # What it can use of the prefix cache counts as used, so that it does not go to make room for it.
        self._prefix.known(sequence.job.work.salt, sequence.tokens)
        wanted = sequence.kv.wanted(len(sequence.tokens) + 1)
        # Those that run will grow; without this reserve they would put out the new one at once.
        if self._prefix.make_room(wanted + GROWTH * len(self._sequences)):
            return "yes"
        if self._sequences:
            return "later"
        return "yes" if self._prefix.make_room(wanted) else "never"

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
                last = self._sequences[-1]
                self.remove(last)
                put_out(last)
            if sequence in self:
                try:
                    sequence.kv.grow(length)
                except Exception as error:
                    failed(sequence, error)
        return [(sequence, count) for sequence, count in parts if sequence in self]

    def keep(self, sequence: Sequence) -> None:
        """Remember in the prefix cache what was computed of a sequence."""
        self._prefix.keep(sequence.job.work.salt, sequence.tokens[: sequence.kv.length], sequence.kv)

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
        for number, leader in reversed(leaders.items()):
            urgent[leader] = min(urgent[leader], urgent[number])
        return [(self._sequences[part.index], part.tokens) for part in plan(left, urgent)]

    def _leader(self, sequence: Sequence, number: int) -> int | None:
        """The one that came in earlier and computes tokens that this one can soon take from the prefix cache."""
        known = self._prefix.known(sequence.job.work.salt, sequence.tokens)
        for leader, other in enumerate(self._sequences[:number]):
            shared = min(other.shared(sequence), len(sequence.tokens) - 1) // BLOCK * BLOCK
            if shared > known and other.kv.length < shared:
                return leader
        return None
