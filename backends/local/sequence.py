"""A request on its way through the model: a job, and a sequence of tokens for each of its choices."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from backends.base import Priority
from backends.local.choice import Choice
from backends.local.kv import SequenceKv
from backends.local.sampler import Sampler
from backends.local.work import Event, Work

STRIDE = 256


@dataclass(eq=False, slots=True)
class Job:
    """`emit` is called once at a time, with Usage or Failed as the last event; it does not raise. Times are
    time.perf_counter()."""

    work: Work
    emit: Callable[[Event], None]
    cancelled: threading.Event = field(default_factory=threading.Event)
    submitted: float = field(default_factory=time.perf_counter)
    started: float | None = None
    """When the first of its choices left the queue."""
    first_token: float | None = None
    cached: int | None = None
    """Tokens of the prompt that the prefix cache had for the choice that began."""
    completion: int = 0
    choices_left: int = 0


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens` are the prompt and what was made since; `kv` has the keys and values of a beginning of them. The rest
    is computed next, be it prompt, the latest token, or all of it again after others needed the memory."""

    job: Job
    tokens: list[int]
    kv: SequenceKv
    sampler: Sampler
    choice: Choice
    begun: bool = False
    """It was in a step."""

    @property
    def party(self) -> str:
        return self.job.work.party

    @property
    def priority(self) -> Priority:
        return self.job.work.priority

    @property
    def left(self) -> int:
        """Tokens to compute before the next one is known."""
        return len(self.tokens) - self.kv.length

    def shared(self, other: "Sequence") -> int:
        """How many tokens at the beginning of both are the same and may be shared."""
        if self.job.work.salt != other.job.work.salt:
            return 0
        mine, theirs = self.tokens, other.tokens
        size, same = min(len(mine), len(theirs)), 0
        # Most of it in slices: this runs beside the model, on prompts of any length.
        while same < size and mine[same : same + STRIDE] == theirs[same : same + STRIDE]:
            same += STRIDE
        while same < size and mine[same] == theirs[same]:
            same += 1
        return min(same, size)
