"""Continuous batching: one thread that owns the model, and the requests that go through it together.

A step is one forward pass: the latest token of every stream and a piece of the prompts that wait (plan.py). Requests
join and leave between two steps.

The queue, and whether a request has left it, is guarded by one lock, since other threads call `submit`, `cancel` and
`close`; all else belongs to the thread.
"""

import math
import threading
import time
import traceback
from collections.abc import Callable, Collection

import torch

from backends.local.attention import Segment
from backends.local.choice import Choice
from backends.local.kv import GROWTH, Budget, SequenceKv
from backends.local.metrics import PRIORITIES, Metrics
from backends.local.prefix import BLOCK, PrefixCache
from backends.local.runner import Runner
from backends.local.running import Running
from backends.local.sampler import Drawn, Sampler, draw
from backends.local.sequence import Job, Sequence
from backends.local.waiting import Waiting
from backends.local.work import Begun, ChoiceEnd, Event, Failed, FailReason, Piece, Usage, Work

Open = Callable[[Work, int], tuple[Sampler, Choice]]
"""Makes what writes one choice (by its index) of a request."""


class Scheduler:
    """`kv_tokens`: how many tokens' keys and values may be held, by running requests and the prefix cache together; no
    request may need more (`capacity`). `max_running` sequences run at once, `max_queue` requests of each priority may
    wait behind."""

    def __init__(
        self,
        runner: Runner,
        open_choice: Open,
        *,
        kv_tokens: int,
        max_running: int,
        max_queue: int,
        metrics: Metrics,
        log: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._open = open_choice
        self._metrics = metrics
        self._log = log
        self.budget = Budget(kv_tokens)
        self.prefix = PrefixCache(self.budget)
        self._changed = threading.Condition()
        self._queue = Waiting(max_queue, metrics)
        self._running = Running(self.budget, self.prefix, max_running)
        self._closed = False
        self._step_began: float | None = None
        self._broken = False  # after an error of the GPU all that follow fail as well
        metrics.kv_total.set(kv_tokens)
        self._thread = threading.Thread(target=self._run, name="torch", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        """The most tokens that one sequence may come to."""
        return self.budget.tokens // GROWTH * GROWTH

    @property
    def stalled(self) -> float:
        """Seconds since the step that runs now began; 0 between two steps, without end where no step can be done."""
        if self._broken:
            return math.inf
        began = self._step_began
        return 0.0 if began is None else time.perf_counter() - began

    def submit(self, work: Work, emit: Callable[[Event], None]) -> Job:
        """Queue the request. Raises QueueFull."""
        job = Job(work, emit, choices_left=work.n)
        opened = [self._open(work, index) for index in range(work.n)]
        with self._changed:
            if not self._closed:
                self._enqueue(job, opened)
                return job
        self._tell({job}, "stopping")
        return job

    def cancel(self, job: Job) -> None:
        """Drop the request: at once where it waits, before the next step where it runs. Harmless after its end."""
        job.cancelled.set()
        with self._changed:
            waiting = self._queue.withdraw(job)
        if waiting:
            self._tell({job}, "cancelled")

    def close(self, timeout: float) -> None:
        """End everything and wait, `timeout` seconds at most, for the running step."""
        with self._changed:
            self._closed = True
            jobs = [job for job in {sequence.job for sequence in self._queue} if self._queue.withdraw(job)]
            self._changed.notify()
        self._tell(jobs, "stopping")
        self._thread.join(timeout)

    def _enqueue(self, job: Job, opened: list[tuple[Sampler, Choice]]) -> None:
        self._queue.check(job, self._running.free(job.work.priority))
        for sampler, choice in opened:
            kv = SequenceKv(self._runner.shape, self.budget)
            self._queue.put(Sequence(job, list(job.work.prompt), kv, sampler, choice))
        self._changed.notify()

    def _run(self) -> None:
        while self._wait():
            began = self._step_began = time.perf_counter()
            made = 0
            try:
                made = self._step()
            except BaseException as error:  # a panic of a library among them; whose fault it is is not known
                self._failed(self._everybody(), error)
            self._step_began = None
            self._metrics.stepped(time.perf_counter() - began, made)
            self._metrics.kv_used.set(self.budget.used)
            self._metrics.kv_prefix.set(self.prefix.blocks * BLOCK)
            for priority in PRIORITIES:
                self._metrics.running.labels(priority).set(len(self._running.of(priority)))
        self._end(self._everybody(), "stopping")

    def _wait(self) -> bool:
        """Wait for something to do; False when there is nothing more."""
        with self._changed:
            while not self._closed and not self._running and not self._queue:
                self._changed.wait()
            return not self._closed

    def _everybody(self) -> set[Job]:
        with self._changed:
            return {sequence.job for sequence in [*self._running, *self._queue]}

    def _step(self) -> int:
        """One forward pass; how many tokens it made."""
        self._end({job for job in self._everybody() if job.cancelled.is_set()}, "cancelled")
        self._admit()
        parts = self._running.next_parts(self._put_out, lambda sequence, error: self._failed({sequence.job}, error))
        if not parts:
            return 0
        for sequence, _ in parts:
            self._begin(sequence)
        try:
            scores = self._runner.forward(
                [Segment(s.tokens[s.kv.length : s.kv.length + count], s.kv) for s, count in parts]
            )
        except Exception as error:
            self._failed({sequence.job for sequence, _ in parts}, error)
            return 0
        for sequence, count in parts:
            if count > 1 or sequence.kv.length <= len(sequence.job.work.prompt):
                self._running.keep(sequence)
                self._metrics.computed(count)
        whole = [(row, sequence) for row, (sequence, _) in enumerate(parts) if sequence.left == 0]
        drawn = draw(scores[[row for row, _ in whole]], [sequence.sampler for _, sequence in whole])
        for (_, sequence), token in zip(whole, drawn, strict=True):
            if sequence not in self._running:  # another choice of its request failed
                continue
            try:
                if isinstance(token, Exception):
                    raise token
                self._take(sequence, token)
            except Exception as error:
                self._failed({sequence.job}, error)
        return len(whole)

    def _admit(self) -> None:
        while True:
            with self._changed:
                sequence = self._queue.first(self._running.parties)
            if sequence is None or (room := self._running.room(sequence, self._put_out)) == "later":
                return
            if room == "never":
                self._end({sequence.job}, "out_of_memory")
                continue
            with self._changed:
                if sequence.job.cancelled.is_set() or self._closed:  # it may have left the queue meanwhile
                    return
                if sequence.job.started is None:
                    sequence.job.started = time.perf_counter()
                self._queue.take(sequence)
            try:
                self._running.add(sequence)
            except Exception as error:
                self._failed({sequence.job}, error)

    def _put_out(self, sequence: Sequence) -> None:
        self._metrics.preempted.labels(sequence.priority).inc()
        with self._changed:
            self._queue.put_back(sequence)

    def _begin(self, sequence: Sequence) -> None:
        """Note what the prefix cache had for a sequence that is in a step for the first time."""
        if not sequence.begun:
            sequence.begun = True
            self._metrics.looked_up(sequence.kv.length)
            if sequence.job.cached is None:
                sequence.job.cached = sequence.kv.length

    def _take(self, sequence: Sequence, drawn: Drawn) -> None:
        """The next token of a sequence: tell it, and end what is complete."""
        job, now = sequence.job, time.perf_counter()
        assert job.started is not None
        assert job.cached is not None
        if job.first_token is None:
            job.first_token = now
            job.emit(Begun(job.started - job.submitted, now - job.started, job.cached))
        sequence.tokens.append(drawn.token)
        job.completion += 1
        text, logprobs = sequence.choice.push(drawn)
        if text or logprobs:
            job.emit(Piece(sequence.choice.index, text, logprobs))
        if sequence.choice.finish_reason is None:
            return
        self._running.keep(sequence)
        self._running.remove(sequence)
        job.emit(ChoiceEnd(sequence.choice.index, sequence.choice.finish_reason))
        job.choices_left -= 1
        if job.choices_left == 0:
            decode = now - job.first_token
            self._metrics.finished(job.started - job.submitted, job.first_token - job.started, decode)
            job.emit(Usage(len(job.work.prompt), job.completion, job.cached, decode))

    def _failed(self, jobs: Collection[Job], error: BaseException) -> None:
        # Never the error's text: it may quote the prompt.
        where = "".join(traceback.format_tb(error.__traceback__))
        self._log(f"generation failed: {type(error).__name__}\n{where}")
        if isinstance(error, torch.AcceleratorError):
            self._broken = True
        reason: FailReason = "failed"
        if _out_of_memory(error):
            reason = "out_of_memory"
            self.prefix.clear()
        self._end(jobs, reason)

    def _end(self, jobs: Collection[Job], reason: FailReason) -> None:
        """End requests that did not come to their end."""
        if not jobs:
            return
        mine = [sequence for sequence in self._running if sequence.job in jobs]
        for sequence in mine:
            self._running.remove(sequence)
        with self._changed:
            waiting = self._queue.drop(jobs)
        # Not those that `cancel` has just taken out of the queue.
        self._tell({sequence.job for sequence in mine} | waiting, reason)

    def _tell(self, jobs: Collection[Job], reason: FailReason) -> None:
        for job in jobs:
            self._metrics.ended.labels(reason).inc()
            job.emit(Failed(reason))


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )
