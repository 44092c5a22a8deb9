"""One thread that owns the model, and the queue before it: first come, first served, one request at a time."""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from backends.local.metrics import Metrics
from backends.local.work import Cancelled, Event, Failed, Work

MAX_QUEUE = 64


class QueueFull(Exception):
    """As many requests wait as may wait."""


@dataclass(eq=False, slots=True)
class Job:
    """A submitted request. `emit` is called from the scheduler's thread; Usage or Failed is its last event."""

    work: Work
    emit: Callable[[Event], None]
    cancelled: threading.Event = field(default_factory=threading.Event)


class Scheduler:
    """`execute` runs one request, giving its events; `max_queue` bounds the requests that wait behind it."""

    def __init__(
        self,
        execute: Callable[[Work, Callable[[], bool]], Iterator[Event]],
        *,
        max_queue: int,
        metrics: Metrics,
        log: Callable[[str], None],
    ) -> None:
        self._execute = execute
        self._max_queue = max_queue
        self._metrics = metrics
        self._log = log
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="torch", daemon=True)
        self._thread.start()

    def submit(self, work: Work, emit: Callable[[Event], None]) -> Job:
        """Queue the request. Raises QueueFull."""
        job = Job(work, emit)
        with self._changed:
            if len(self._waiting) >= self._max_queue + (self._running is None):  # an idle model takes one at once
                raise QueueFull
            self._waiting.append(job)
            self._metrics.waiting.set(len(self._waiting))
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Drop the request: at once where it waits, within one step where it runs. Harmless after its end."""
        job.cancelled.set()
        with self._changed:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
            self._metrics.waiting.set(len(self._waiting))
        job.emit(Failed(cancelled=True))

    def close(self, timeout: float) -> None:
        """Cancel everything and wait, `timeout` seconds at most, for the running step."""
        with self._changed:
            self._closed = True
            jobs = [*self._waiting, *([self._running] if self._running else [])]
            self._changed.notify()
        for job in jobs:
            self.cancel(job)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            start = time.perf_counter()
            try:
                for event in self._execute(job.work, job.cancelled.is_set):
                    job.emit(event)
            except Cancelled:
                job.emit(Failed(cancelled=True))
            except Exception as error:
                # Never the error's text: it may quote the prompt.
                where = "".join(traceback.format_tb(error.__traceback__))
                self._log(f"generation failed: {type(error).__name__}\n{where}")
                job.emit(Failed(cancelled=False))
            self._metrics.busy.inc(time.perf_counter() - start)

    def _next(self) -> Job | None:
        with self._changed:
            self._running = None
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._running = self._waiting.popleft()
            self._metrics.waiting.set(len(self._waiting))
            return self._running
