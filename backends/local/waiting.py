"""The requests that wait for the model. Interactive ones come before batch ones; each priority has a limit and fairness
of its own. Whoever uses this sees to it that one thread at a time does."""

from collections.abc import Callable, Collection, Iterator, Mapping

from backends.base import Priority
from backends.local.fair import FairQueue
from backends.local.metrics import PRIORITIES, Metrics
from backends.local.sequence import Job, Sequence
from backends.local.work import QueueFull


class Waiting:
    """At most `most` requests of each priority, beside those that come in with the next step."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most = most
        self._metrics = metrics
        self._queues = {priority: FairQueue[Sequence]() for priority in PRIORITIES}  # the first one first

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def check(self, job: Job, free: int) -> None:
        """Raises QueueFull where too many would wait. `free`: how many choices of its priority there is room for: what
        fits leaves the queue with the next step, and does not count."""
        behind = 0
        for other in [*self._requests(job.work.priority), job]:
            free -= other.work.n
            behind += free < 0
        if behind > self._most:
            raise QueueFull

    def put(self, sequence: Sequence) -> None:
        self._queues[sequence.priority].put(sequence)
        self._count(sequence.priority)

    def put_back(self, sequence: Sequence) -> None:
        """One that was running: it comes before all others of its priority."""
        self._queues[sequence.priority].put_back(sequence)

    def first(self, running: Callable[[Priority], Mapping[str, int]]) -> Sequence | None:
        """The next one, which stays here. `running`: how many of a priority each party has running."""
        for priority, queue in self._queues.items():
            if queue:
                return queue.first(running(priority))
        return None

    def take(self, sequence: Sequence) -> None:
        """Take out one whose turn it is."""
        self._queues[sequence.priority].take(sequence)
        self._count(sequence.priority)

    def drop(self, jobs: Collection[Job]) -> set[Job]:
        """Take out what waits of these requests; those of which anything did."""
        mine = [sequence for sequence in self if sequence.job in jobs]
        for sequence in mine:
            self._queues[sequence.priority].remove(sequence)
        for priority in PRIORITIES:
            self._count(priority)
        return {sequence.job for sequence in mine}

    def withdraw(self, job: Job) -> bool:
        """Take out a request that has not started; whether it was here."""
        return job.started is None and bool(self.drop({job}))

    def _requests(self, priority: Priority) -> list[Job]:
        """Those that have not started."""
        return list(dict.fromkeys(s.job for s in self._queues[priority] if s.job.started is None))

    def _count(self, priority: Priority) -> None:
        self._metrics.waiting.labels(priority).set(len(self._requests(priority)))
