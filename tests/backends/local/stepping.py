"""A scheduler whose steps a test lets through one by one, so that what happens between two steps is certain."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from backends.base import Priority
from backends.local.attention import Segment
from backends.local.kv import GROWTH
from backends.local.metrics import PRIORITIES, Metrics
from backends.local.opening import Opener
from backends.local.plan import BATCH_BESIDE
from backends.local.prefix import BLOCK
from backends.local.runner import Runner
from backends.local.scheduler import Scheduler
from backends.local.sequence import Job
from backends.local.work import Begun, ChoiceEnd, Event, Failed, Piece, Sampling, Usage, Work

WAIT = 10.0
GREEDY = Sampling(temperature=0)


def prompt(length: int, first: int = 2) -> list[int]:
    """Tokens that say nothing; another `first`, other tokens from the first one on."""
    return [2 + (first + 7 * place + place * place // 3) % 97 for place in range(length)]


@dataclass(eq=False)
class Answer:
    """What came of a request: its events, and the tokens that each choice was given."""

    work: Work
    events: list[Event] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    job: Job | None = None

    @property
    def end(self) -> Usage | Failed | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Usage | Failed) else None

    @property
    def begun(self) -> Begun | None:
        first = self.events[0] if self.events else None
        return first if isinstance(first, Begun) else None

    def text(self, choice: int) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Piece) and e.choice == choice)

    def check(self) -> None:
        """The events came in an order that a client can follow, and one of them, the last, is final."""
        assert self.end is not None
        assert sum(isinstance(event, Usage | Failed) for event in self.events) == 1, self.events
        begun = [number for number, event in enumerate(self.events) if isinstance(event, Begun)]
        assert begun == [0] or (not begun and len(self.events) == 1)
        ended: set[int] = set()
        for event in self.events:
            if isinstance(event, Piece | ChoiceEnd):
                assert event.choice not in ended
            if isinstance(event, ChoiceEnd):
                ended.add(event.choice)
        if isinstance(self.end, Usage):
            assert ended == set(range(self.work.n))
            made = sum(map(len, self.tokens.values()))
            assert (self.end.prompt, self.end.completion) == (len(self.work.prompt), made)
            assert self.begun is not None
            assert self.begun.cached == self.end.cached


class Steered(Runner):
    """A runner that stops before each step until it is let through, unless `free`."""

    def __init__(self, runner: Runner, *, free: bool) -> None:
        vars(self).update(vars(runner))
        self.changed = threading.Condition()
        self.free = free
        self.waits = False
        self.steps: list[list[int]] = []
        """Of each step, how many tokens of each sequence it computed."""
        self.standing: Sequence[Segment] = ()
        """What stands before the model."""
        self.error: BaseException | None = None
        """What the next step raises instead."""

    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        with self.changed:
            self.waits = not self.free
            self.standing = segments
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.free or not self.waits, WAIT), "nobody let this step through"
            error, self.error = self.error, None
        if error is not None:
            raise error
        self.steps.append([len(segment.tokens) for segment in segments])
        return super().forward(segments)


class Recorded:
    """A Choice, and a list of the tokens that it is given. `fail` raises after so many."""

    def __init__(self, choice: Any, tokens: list[int], fail: int | None) -> None:
        self._choice = choice
        self._tokens = tokens
        self._fail = fail
        self.index = choice.index

    @property
    def finish_reason(self) -> Any:
        return self._choice.finish_reason

    def push(self, drawn: Any) -> Any:
        if self._fail == len(self._tokens):
            raise RuntimeError("this choice breaks")
        self._tokens.append(drawn.token)
        return self._choice.push(drawn)


class Stage:
    """A scheduler with its model and the answers to what was asked. Leaving it closes the scheduler and checks that
    nothing is left behind."""

    def __init__(
        self,
        runner: Runner,
        opener: Opener,
        *,
        kv_tokens: int = 4096,
        max_running: int = 16,
        max_queue: int = 1000,
        free: bool = False,
    ) -> None:
        self.runner = Steered(runner, free=free)
        self.max_running = max_running
        self.log: list[str] = []
        self.metrics = Metrics()
        self.answers: list[Answer] = []
        self._live: set[Answer] = set()
        self._opener = opener
        self._opening = threading.local()
        self.scheduler = Scheduler(
            self.runner,
            self._open,
            kv_tokens=kv_tokens,
            max_running=max_running,
            max_queue=max_queue,
            metrics=self.metrics,
            log=self.log.append,
        )

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.let_go()
        self.scheduler.close(WAIT)
        if kind is not None:
            return
        self.check_memory()
        for answer in self.answers:
            answer.check()

    def ask(
        self,
        prompt: Sequence[int],
        max_tokens: int = 8,
        *,
        n: int = 1,
        salt: str = "",
        party: str = "",
        priority: Priority = "interactive",
        stops: tuple[str, ...] = (),
        ignore_eos: bool = True,
        sampling: Sampling = GREEDY,
        fail: int | None = None,
    ) -> Answer:
        """Submit a request. Raises QueueFull."""
        work = Work(
            prompt=tuple(prompt),
            sampling=sampling,
            n=n,
            max_tokens=max_tokens,
            stops=stops,
            ignore_eos=ignore_eos,
            salt=salt,
            party=party,
            priority=priority,
        )
        answer = self._opening.answer = Answer(work)
        self._opening.fail = fail

        def emit(event: Event) -> None:
            with self.runner.changed:
                answer.events.append(event)
                if isinstance(event, Usage | Failed):
                    self._live.discard(answer)
                    self.runner.changed.notify_all()

        with self.runner.changed:
            self._live.add(answer)
        try:
            answer.job = self.scheduler.submit(work, emit)
        except BaseException:
            with self.runner.changed:
                self._live.discard(answer)
            raise
        self.answers.append(answer)
        return answer

    def cancel(self, answer: Answer) -> None:
        assert answer.job is not None
        self.scheduler.cancel(answer.job)

    def step(self, times: int = 1) -> bool:
        """Let so many steps through; False when there is nothing more to do. Afterwards the next step stands before
        the model."""
        for _ in range(times):
            if not self.settle():
                return False
            with self.runner.changed:
                self.runner.waits = False
                self.runner.changed.notify_all()
        return self.settle()

    def settle(self) -> bool:
        """Wait until a step stands before the model; False when all answers have ended."""
        with self.runner.changed:
            arrived = self.runner.changed.wait_for(lambda: self.runner.waits or not self._live, WAIT)
            assert arrived, f"the scheduler does nothing: {self.log}"
            return bool(self._live)

    def finish(self, most: int = 10_000) -> None:
        """Let all answers come to their end, in `most` steps."""
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError(f"{len(self._live)} answers have not ended after {most} steps")

    def wait(self) -> None:
        """Where steps are free: wait until all answers have ended."""
        with self.runner.changed:
            assert self.runner.changed.wait_for(lambda: not self._live, 6 * WAIT), f"{len(self._live)} have no end"

    def let_go(self) -> None:
        with self.runner.changed:
            self.runner.free = True
            self.runner.changed.notify_all()

    @property
    def running(self) -> int:
        """Sequences that have memory. To be asked while a step stands before the model."""
        return len(self.scheduler._running)

    def taken(self, priority: Priority) -> list[int]:
        """How many tokens of each sequence of this priority are in the step that stands before the model."""
        running = self.scheduler._running.of(priority)
        return [len(part.tokens) for part in self.runner.standing if any(part.kv is s.kv for s in running)]

    def check_memory(self) -> None:
        """After all has ended, only the prefix cache holds memory, and gives it back."""
        budget, prefix = self.scheduler.budget, self.scheduler.prefix
        assert budget.used == prefix.blocks * BLOCK
        prefix.clear()
        assert (budget.used, prefix.blocks) == (0, 0)

    def check_held(self) -> None:
        """While a step stands before the model: what is held is counted, and no more than there is."""
        scheduler = self.scheduler
        held = sum(sequence.kv.capacity for sequence in scheduler._running)
        assert scheduler.budget.used == held + scheduler.prefix.blocks * BLOCK <= scheduler.budget.tokens
        assert len(scheduler._running) <= self.max_running

    def check_order(self) -> None:
        """As `check_held`, where nothing was asked since the step before: batch takes little beside interactive
        requests, and none of these waits for anything that batch has."""
        scheduler = self.scheduler
        interactive, batch = (scheduler._running.of(priority) for priority in PRIORITIES)
        if self.taken("interactive"):
            assert sum(self.taken("batch")) <= BATCH_BESIDE
        first = next((s for s in scheduler._queue if s.priority == "interactive"), None)
        if first is not None and batch:
            room = scheduler.prefix.available + sum(sequence.kv.capacity for sequence in batch)
            wanted = first.kv.wanted(len(first.tokens) + 1) + GROWTH * len(interactive)
            assert len(interactive) == self.max_running or wanted > room

    def _open(self, work: Work, index: int) -> tuple[Any, Any]:
        sampler, choice = self._opener(work, index)
        tokens = self._opening.answer.tokens[index] = []
        return sampler, Recorded(choice, tokens, self._opening.fail)
