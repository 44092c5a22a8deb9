"""What waits to be written to the SQLite store's file, in order; shared by the event loop and the writer's thread."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from cache.entry import Entry
from cache.match import Match
from cache.question import Question
from cache.stores.base import StoreUnavailable

_OP_SIZE = 128  # bytes charged for an operation, without its entry or question


@dataclass(frozen=True, slots=True, eq=False)
class Put:
    """Let the key hold `entry`, or nothing."""

    key: bytes
    entry: Entry | None

    @property
    def size(self) -> int:
        return _OP_SIZE + (self.entry.size if self.entry is not None else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Note:
    """Keep `question`, or none, beside the key's entry."""

    key: bytes
    question: Question | None

    @property
    def size(self) -> int:
        question = self.question
        if question is None:
            return _OP_SIZE
        return _OP_SIZE + len(question.text) + len(question.vector) + sum(map(len, question.same))


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """Note that the key was used."""

    key: bytes
    size = _OP_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class Purge:
    """Remove, end the life of, or count what matches; `done` gets the number once that is on disk."""

    match: Match
    soft: bool
    dry_run: bool
    done: Future[int] = field(default_factory=Future)
    size = _OP_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class Flush:
    """`done` is set once everything before is on disk."""

    done: Future[int] = field(default_factory=Future)
    size = _OP_SIZE


Op = Put | Note | Touch | Purge | Flush


def batches(ops: Sequence[Op], size: int) -> Iterator[Sequence[Op]]:
    """Cut `ops` into pieces of `size`, at least one; a piece is longer where notes on what it puts come next."""
    start = 0
    while True:
        end = start + size
        put = {op.key for op in ops[start:end] if isinstance(op, Put)}
        while end < len(ops) and isinstance(op := ops[end], Note) and op.key in put:
            end += 1
        yield ops[start:end]
        if end >= len(ops):
            return
        start = end


class WriteQueue:
    """Any thread adds; one thread takes, writes, and says when it has finished.

    Until then the bytes count and a put can be looked up, so that readers see what they wrote.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._changed = threading.Condition()
        self._ops: list[Op] = []
        self._pending: dict[bytes, Put] = {}
        self._urgent = False
        self._closed = False

    def pending(self, key: bytes) -> Put | None:
        """The newest change of the key that is not written yet."""
        return self._pending.get(key)

    def add(self, op: Op) -> None:
        """StoreUnavailable once the queue is closed."""
        with self._changed:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            self._ops.append(op)
            self.bytes += op.size
            if isinstance(op, Put):
                self._pending[op.key] = op
            self._urgent |= isinstance(op, Purge | Flush)
            if self._urgent or len(self._ops) == 1:
                self._changed.notify()

    def wake(self) -> None:
        """Let `take` return now."""
        with self._changed:
            self._urgent = True
            self._changed.notify()

    def close(self) -> None:
        """Refuse what comes; `take` gives out the rest at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, *, gather: float, idle: float) -> list[Op] | None:
        """All that waits: `gather` seconds after its first operation, at once when somebody waits for one.

        Empty after `idle` seconds without any, or `wake`. None when the queue is closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ops or self._urgent or self._closed, idle)
            if self._ops:
                self._changed.wait_for(lambda: self._urgent or self._closed, gather)
            elif self._closed:
                return None
            ops, self._ops, self._urgent = self._ops, [], False
            return ops

    def finish(self, ops: Sequence[Op]) -> None:
        """These are on disk, or given up."""
        with self._changed:
            for op in ops:
                self.bytes -= op.size
                if isinstance(op, Put) and self._pending.get(op.key) is op:
                    del self._pending[op.key]
